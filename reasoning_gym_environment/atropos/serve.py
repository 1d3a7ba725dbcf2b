"""The command `serve`: groups for a trainer, until the trainer has taken all its steps."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING

from ..run import Run
from ..utils.resilience import supervise
from ..utils.shutdown import shutdown_step
from . import preflight
from .serve_loop import ServeLoop

if TYPE_CHECKING:
    from ..env import ReasoningGymEnv

logger = logging.getLogger(__name__)

YOUNG_COLLECTIONS = 100
MIDDLE_COLLECTIONS = 100
"""A garbage collection of the next older generation follows this many collections. Python's default is 10 for both."""


async def register(env: ReasoningGymEnv) -> None:
    """Register with the trajectory API, and continue this run if it has a checkpoint.

    A new run gets the name of its item stream here. A resumed run keeps the stream that it had, whatever number it
    gets now. Raises EnvironmentSetupError.
    """
    run = env.run
    await run.api.register()
    if run.state.checkpoint_interval <= 0:
        logger.warning("The trainer wants no checkpoints. After a restart the item stream would start afresh.")
    else:
        env.load_checkpoint()
        run.checkpoints.check_loaded()
    if run.checkpoints.is_resumed:
        logger.info("The next item is %d of stream %r.", run.stream.index, run.stream.instance)
    else:
        run.stream.instance = run.checkpoints.stream_name()
        logger.info("This instance draws item stream %r.", run.stream.instance)
    # At once, so that a run that is killed early finds its own checkpoint and not an older run's.
    run.checkpoints.begin_latest()


async def sign_off_predecessor(run: Run) -> None:
    """Sign off an earlier process of this run, if it was killed.

    run-api does not notice when an environment is killed, and keeps its share of every batch reserved. The mark that
    the process has left can be used once. So a checkpoint without it is saved first, however long the disk takes.
    """
    checkpoints = run.checkpoints
    predecessor = checkpoints.predecessor
    if predecessor is None:
        return
    await checkpoints.saved.wait()
    await run.api.sign_off_predecessor(*predecessor)


def collect_old_garbage_rarely() -> None:
    """Make full garbage collections a hundred times rarer than Python does, for the rest of this process.

    A collection of old objects stops the event loop while it goes through each token of the groups in flight, and a
    full one also through the modules, which stay until the end. Young objects are collected as often as before.
    """
    gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)


async def serve(env: ReasoningGymEnv) -> None:
    """Train until the trainer has taken all its steps. `env` is not set up yet. Raises EnvironmentSetupError.

    The workers start while the first request of this run finds out whether the server can serve training.
    """
    preflight.refuse_testing(env.inference)
    preflight.raise_open_file_limit()
    await preflight.check_serve(env.config, env.inference)
    first_request = preflight.check_first_request(env.config, env.inference.adapters, env.prompts)
    await supervise(env.setup(), first_request)
    await register(env)
    api = env.run.api
    await api.take_over_limits()
    await env.setup_wandb()
    collect_old_garbage_rarely()
    loop = ServeLoop(env)
    try:
        await supervise(loop.run(), sign_off_predecessor(env.run))
    finally:
        await shutdown_step("stopping the groups in progress", loop.close(), None)
    state = env.run.state
    if state.ends_before_trainer:
        logger.error(
            "This environment has ended after env.total_steps, %d steps, before the trainer, which makes %d. Without "
            "another environment, the trainer waits in vain for batches. Set env.total_steps to -1, which takes over "
            "the trainer's number.",
            state.total_steps,
            state.trainer_steps,
        )
