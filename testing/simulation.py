"""A whole training run in simulated time: the real hooks, loop, item stream and API client of `serve`.

Only what lies outside of this process is simulated: run-api with its trainer, inference servers, and the workers that
make and grade items. Each takes as long as a test says, and can be restarted or fail.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from reasoning_gym_environment.atropos.serve import register, sign_off_predecessor
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.env import ReasoningGymEnv
from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer, Prompt
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.prompts import Prompts, RequestParameters
from reasoning_gym_environment.inference.server_pool import RetryPolicy
from reasoning_gym_environment.inference.servers import Reply
from reasoning_gym_environment.ledger import GIVEN_UP
from reasoning_gym_environment.records import Verdict
from reasoning_gym_environment.run import Mode, Run
from reasoning_gym_environment.sampling.item_maker import ItemMaker
from reasoning_gym_environment.sampling.item_stream import build_item_source
from reasoning_gym_environment.settings.environment import ReasoningGymEnvConfig
from reasoning_gym_environment.tasks.catalog import Catalog, Task
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, Level
from reasoning_gym_environment.trainer import checkpoints
from reasoning_gym_environment.trainer.run_state import RunState, SubclassState
from reasoning_gym_environment.utils.clock import now
from reasoning_gym_environment.utils.resilience import cancel_and_wait, supervise
from reasoning_gym_environment.utils.saved_state import load_into, state_of

from .byte_tokenizer import build_byte_tokenizer
from .fake_server import FakeServer, tokens
from .simulated_api import Delay, SimulatedApi

TOKENIZER = build_byte_tokenizer()
GROUP_SIZE = 2
SLOW_TASK = "lcm"
WRITE_S = 0.01
"""How long a disk needs to write a checkpoint."""
NETWORK_S = 0.001
"""How long a request needs to reach the inference server."""


def no_item(prompt: Prompt) -> bool:
    return False


class SimulatedGenerator:
    """Makes items. Those of SLOW_TASK take `slow_s` seconds."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    async def generate(self, task: str, seed: int, config: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        await asyncio.sleep(self.slow_s if task == SLOW_TASK else 0.0)
        return {"question": f"{task} {seed}", "answer": "1", "metadata": {}}


class SimulatedDisk:
    """Makes the calls that write checkpoints, in order. The disk can be full, or hang. Implements `BackgroundCalls`."""

    def __init__(self) -> None:
        self.is_full = False
        self.hangs_until = 0.0
        self.is_dead = False
        """Whether the process has been killed, so that it writes nothing any more."""
        self._last: asyncio.Task[Any] | None = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        self._last = asyncio.create_task(self._call(self._last, function, arguments))
        return asyncio.shield(self._last)

    async def _call(self, previous: asyncio.Task[Any] | None, function: Callable[..., Any], arguments: Any) -> Any:
        if previous is not None:
            await asyncio.wait([previous])
        await asyncio.sleep(WRITE_S)
        await asyncio.sleep(max(0.0, self.hangs_until - now()))
        if self.is_dead:
            raise asyncio.CancelledError
        if not self.is_full:
            return function(*arguments)
        with mock.patch.object(checkpoints, "write_atomically", side_effect=OSError("no space left on device")):
            return function(*arguments)


class SimulatedGrader:
    """Grades in no time: an answer is right if it is 1."""

    async def grade(self, task: str, config: Any, entry: Any, answers: Sequence[str]) -> list[Verdict]:
        return [Verdict(float(answer == "1")) for answer in answers]


def ladder_of(task: str, levels: int) -> Ladder:
    return Ladder(
        task, tuple(Level(index, index / max(1, levels - 1), {"level": index}) for index in range(levels)), "simulated"
    )


class World(ReasoningGymEnv):
    """A run of `serve`, and its environment, whose hooks are the real ones."""

    def __init__(
        self,
        *,
        latency: Delay = lambda: 0.0,
        inference: Delay = lambda: 1.0,
        workers: int = 4,
        batch_size: int = 64,
        trainer_step_s: float = 0.1,
        slow_s: float = 0.0,
        evaluation_s: float = 1.0,
        hook_s: float = 0.0,
        watch_s: float = 10.0,
        resumes: World | None = None,
        api: SimulatedApi | None = None,
        levels: int = 0,
        jitter: int = 0,
        **settings: Any,
    ) -> None:
        """With `resumes`, the run resumes from the state of that world, which has been closed.

        With `levels`, each task has so many of them. With `api`, several worlds share one run-api.
        `watch_s` is the precision of `longest_wait_s`.
        `jitter` is the seed of the pauses between requests.
        """
        values = {"tokenizer_name": "none", "group_size": GROUP_SIZE, "use_wandb": False, "seed": 7, **settings}
        self.config = ReasoningGymEnvConfig(**values)
        self.inference_s = inference
        self.fails = 0
        self.starts_at = 0.0
        """Until then the inference server refuses connections."""
        self.is_hung = False
        """Whether the inference server accepts requests and answers none."""
        self.hangs_on = self.crashes_on = no_item
        """Whether the inference server never answers the request of an item, or crashes."""
        self.crashes = 0
        self._broken_off = asyncio.get_running_loop().create_future()
        self.api = api or SimulatedApi(latency=latency, batch_size=batch_size, trainer_step_s=trainer_step_s)
        self.evaluation_s = evaluation_s
        self.evaluations = 0
        self.hook_s = hook_s
        """How long the hooks of a subclass take that come after the score."""
        self.watch_s = watch_s
        self.max_num_workers = workers
        self.items_sent_this_step = 0
        self.eval_metrics: list[tuple[str, Any]] = []
        self.test_items_with_scorers: list[Any] = []
        self.completion_lengths: list[int] = []
        self.rollouts_for_wandb: list[Any] = []
        self.settings_as_yaml = ""
        self.mode = Mode.SERVE
        self.tokenizer = TOKENIZER
        self.task_duration: list[float] = []
        self.succeeded_task_duration: list[float] = []
        self.failed_task_duration: list[float] = []
        self.server: Any = SimpleNamespace(update_weight=self._nothing)
        self.started: list[float] = []
        """When each group was started."""
        self.sampling = 0
        self.most_sampling = 0
        self.longest_wait_s = 0.0
        """The longest time for which there was room and no group was started."""
        self.dropped_before = 0
        self.has_looked = False
        """Whether this process has signed off its predecessor, or knows that there is nothing to sign off."""
        self._make_run(slow_s, levels, jitter)
        if resumes is not None:
            state = json.dumps(state_of(resumes.run.checkpoints.components))
            load_into(self.run.checkpoints.components, json.loads(state))
            self.dropped_before = resumes.dropped

    def _make_run(self, slow_s: float, levels: int, jitter: int) -> None:
        self.state = state = RunState(GROUP_SIZE, -1, 10**9)
        server = FakeServer(self._sample)
        tokenizer = ChatTokenizer(TOKENIZER, "bytes")
        self.inference = InferenceClient([server], tokenizer, policy=RetryPolicy(3, 0.5, 4.0), jitter=Random(jitter))
        self.prompts = Prompts(
            tokenizer,
            self.config,
            max_token_length=self.config.max_token_length,
            trainer=state,
            servers=self.inference,
        )
        catalog = Catalog((Task("gcd", "arithmetic"), Task(SLOW_TASK, "arithmetic")))
        grader: Any = SimulatedGrader()
        generator: Any = SimulatedGenerator(slow_s)
        runtime: Any = SimpleNamespace(
            grader=grader,
            catalog=catalog,
            library=SimpleNamespace(version="simulated"),
            metrics=dict,
            close=self._nothing,
        )
        ladders = {task.name: ladder_of(task.name, levels) for task in catalog.tasks} if levels else {}
        item_source = build_item_source(self.config, ItemMaker(catalog, generator), ladders)
        self._run = Run(
            self.config,
            Mode.SERVE,
            runtime,
            item_source,
            inference=self.inference,
            prompts=self.prompts,
            state=state,
            own=SubclassState(7),
            run_id="run",
        )
        self.link = self.api.connect(self)
        self.run.api._transport = self.link
        self.disk = SimulatedDisk()
        disk: Any = self.disk
        self.run.checkpoints._disk = disk
        self.loop = ServeLoop(self)

    async def serve(self, seconds: float, *events: tuple[float, Callable[[], Any]]) -> None:
        """Serve for so long; each event is called at its time. Then everything is closed."""
        trainer = asyncio.create_task(self.api.take_batches())
        for at, event in events:
            asyncio.get_running_loop().call_later(at, event)
        watching = asyncio.create_task(self._watch())
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait([serving, watching], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, watching):
                if task.done():
                    task.result()
        finally:
            await cancel_and_wait([trainer, watching, serving])
            await self._close()

    async def _close(self) -> None:
        await self.loop.close()
        await self.run.api.close()
        await self.run.stream.close()

    async def _serve(self) -> None:
        await self.run.api.register()
        await self.run.api.take_over_limits()
        self.run.stream.instance = "0"
        await self.loop.run()

    # --- a process among others, with checkpoints

    async def serve_with_checkpoints(self) -> None:
        """Serve until the task is cancelled; then close like a process that receives SIGTERM.

        After `kill`, nothing of that reaches run-api or the disk.
        """
        try:
            await register(self)
            await self.run.api.take_over_limits()
            await supervise(self.loop.run(), self._sign_off_predecessor())
        finally:
            await self._close()
            await self.run.checkpoints.save_latest()
            self.run.checkpoints.leave()

    async def _sign_off_predecessor(self) -> None:
        await sign_off_predecessor(self.run)
        self.has_looked = True

    def kill(self) -> None:
        """Let nothing reach run-api or the disk any more. The caller cancels the task that serves."""
        self.link.is_cut = True
        self.disk.is_dead = True
        self.run.checkpoints.leave()

    async def _watch(self) -> None:
        """Record how long there is room but no group starts, although items are available immediately."""
        waiting_since = now()
        for _ in itertools.count():
            await asyncio.sleep(self.watch_s)
            if self.loop.room <= 0 or (self.started and self.started[-1] > waiting_since):
                waiting_since = now()
            self.longest_wait_s = max(self.longest_wait_s, now() - waiting_since)

    def crash(self, seconds: float = 10.0) -> None:
        """Break the connections to the inference server, which starts again after so many seconds."""
        self.crashes += 1
        self.is_hung = False
        self.starts_at = now() + seconds
        self._broken_off.set_result(None)
        self._broken_off = asyncio.get_running_loop().create_future()

    async def _sample(self, prompt: Prompt, sampling: RequestParameters) -> Reply:
        await asyncio.sleep(NETWORK_S)
        if now() < self.starts_at:
            refused = InferenceError("connection refused")
            refused.was_sent = False
            raise refused
        broken_off = self._broken_off
        if self.crashes_on(prompt):
            self.crash()
        is_answered = not self.is_hung and not self.hangs_on(prompt)
        await asyncio.wait([broken_off], timeout=self.inference_s() if is_answered else None)
        if broken_off.done():
            raise InferenceError("server disconnected")
        if self.fails:
            self.fails -= 1
            raise InferenceError("the server fails")
        return tokens("<answer>1</answer>", *["<answer>2</answer>"] * (sampling.n - 1))

    # --- the hooks

    async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
        self.started.append(now())
        self.sampling += 1
        self.most_sampling = max(self.most_sampling, self.sampling)
        try:
            return await super().collect_trajectories(item)
        finally:
            self.sampling -= 1

    async def postprocess_histories(self, trajectories: Any) -> Any:
        await asyncio.sleep(self.hook_s)
        return trajectories

    async def cleanup(self) -> None:
        await asyncio.sleep(self.hook_s)

    async def rollout_and_score_eval(self, test_item: Any) -> float | None:
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.evaluations += 1
        await asyncio.sleep(self.evaluation_s)

    async def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    setup = setup_wandb = evaluate_log = wandb_log = add_rollouts_for_wandb = _nothing

    # --- what must hold

    @property
    def dropped(self) -> int:
        """Items that were dropped without completions, also before the run was resumed."""
        counts = self.run.failures.counts
        return self.dropped_before + counts["item_dropped"] + counts[GIVEN_UP]

    def check_nothing_is_lost(self) -> None:
        """Every item that was ever drawn is either pending or finished, and what is repeated was counted."""
        self.check_items()
        repeated = len(self.api.accepted) - len(set(self.api.accepted))
        may_be_repeated = self.run.failures.counts["group_sent_again"]
        assert repeated <= may_be_repeated
        assert self.api.accepted_without_trainer == 0

    def check_items(self) -> None:
        """Every item that was ever drawn is either pending or finished."""
        outcomes = self.run.telemetry.outcomes.totals()
        pending = {row[0] for row in self.run.stream.state_dict()["pending"]}
        drawn = self.run.stream.state_dict()["index"]
        # An attempt that brought no completions is counted each time, and its item may be pending or have succeeded.
        finished = drawn - len(pending)
        ended = sum(count for outcome, count in outcomes.items() if outcome not in ("inference_failed", "cancelled"))
        skipped = sum(self.run.stream.skipped.values())
        counted = ended + skipped + self.dropped
        assert finished == counted, (finished, outcomes, skipped, self.dropped, len(pending), drawn)
        handed_out = len(self.run.stream.pending.handed_out)
        assert not handed_out, f"{handed_out} items are stuck with callers that are gone"
