"""Shared fixtures: an offline tokenizer, and small records to build groups from."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("WANDB_SILENT", "true")
# The tiny model's matrices are small: more threads than one only fight for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What is started in the background of a script ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from reasoning_gym_environment.records import Completion, Group, Outcome, Problem, Rollout, Score
from testing.in_process import in_process_workers
from testing.inference_server import ThreadedMockServer
from testing.support import AddingStudent
from testing.wheel import build_wheel

LONGEST_FIRST = (
    "tests/integrations/test_real_libraries.py",
    "tests/slow/test_faults.py",
    "tests/golden",
    "tests/verification/test_forms.py",
    "tests/demo",
    "tests/workers/test_grader.py",
    "tests/slow",
    "tests/test_cli.py",
)
"""Files that take minutes: begun last, one of them would be waited for by cores that have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(LONGEST_FIRST) if item.nodeid.startswith(name)), len(LONGEST_FIRST))

    items.sort(key=rank)


def pytest_collection() -> None:
    """Collecting the tests makes no garbage, and the search for it would take a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True)
def log_levels_as_before() -> Iterator[None]:
    """A command or an environment that a test starts sets the levels of the log for its process."""
    loggers = [logging.getLogger(name) for name in (None, "reasoning_gym_environment")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """The byte-level tokenizer with a ChatML template; do not change it."""
    # Not at the top: it imports transformers, which few tests need.
    from testing.byte_tokenizer import build_byte_tokenizer

    return build_byte_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `AutoTokenizer.from_pretrained` loads the byte tokenizer from."""
    from testing.byte_tokenizer import save_byte_tokenizer

    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def adding_server(byte_tokenizer: Any) -> Iterator[ThreadedMockServer]:
    """A mock inference server on a free port whose student solves every other chain_sum item."""
    with ThreadedMockServer(AddingStudent(), byte_tokenizer) as server:
        yield server


@pytest.fixture
def make_problem() -> Callable[..., Problem]:
    """`make_problem(task="chain_sum", ...)`: a problem made by hand; any field can be given."""

    def make(**fields: Any) -> Problem:
        values: dict[str, Any] = {"task": "chain_sum", "category": "arithmetic", "split": "train", "index": 7}
        entry = {"question": "What is 2 + 3?", "answer": "5", "metadata": {}}
        values |= {"seed": 11, "config": {}, "entry": entry}
        return Problem(**{**values, **fields})

    return make


@pytest.fixture
def make_completion() -> Callable[..., Completion]:
    """`make_completion(text, length=20)`: three prompt tokens and `length` completion tokens."""

    def make(text: str = "<answer>5</answer>", *, length: int = 20, **fields: Any) -> Completion:
        ids = list(range(100, 100 + length))
        values = {"tokens": [1, 2, 3, *ids], "masks": [-100] * 3 + ids, "logprobs": [1.0] * 3 + [-0.5] * length}
        return Completion(text=text, **{**values, "finish_reason": "stop", **fields})

    return make


@pytest.fixture
def make_group(
    make_problem: Callable[..., Problem], make_completion: Callable[..., Completion]
) -> Callable[..., Group]:
    """`make_group([1.0, 0.0], task=...)`: one rollout per score value, reward equal to the score."""

    def make(values: list[float], **fields: Any) -> Group:
        names = {0.0: Outcome.WRONG, 1.0: Outcome.CORRECT}
        scores = [Score(value, names.get(value, Outcome.PARTIAL), answer=str(value)) for value in values]
        rollouts = [
            Rollout(make_completion(f"text {i}"), s, s.value, base_reward=s.value) for i, s in enumerate(scores)
        ]
        problem = make_problem(**fields)
        return Group(problem, [{"role": "user", "content": problem.question}], rollouts)

    return make


@pytest.fixture
def own_datasets() -> Iterator[None]:
    """Datasets may be registered with reasoning-gym; afterwards its registry is as it was."""
    from reasoning_gym_environment.tasks import reasoning_gym_source as library

    library.load()
    datasets = dict(sys.modules["reasoning_gym.factory"].DATASETS)
    yield
    _forget_own_datasets(keep=datasets)


@pytest.fixture(scope="module", autouse=True)
def no_datasets_of_other_files() -> Iterator[None]:
    """The datasets that a file's fixtures registered in this process are gone when its tests have ended."""
    yield
    if "reasoning_gym.factory" in sys.modules:
        _forget_own_datasets(keep={})


def _forget_own_datasets(keep: dict[str, Any]) -> None:
    registered = sys.modules["reasoning_gym.factory"].DATASETS
    for name, (dataset, _) in list(registered.items()):
        if name not in keep and not dataset.__module__.startswith("reasoning_gym."):
            del registered[name]
    kept_modules = {dataset.__module__ for dataset, _ in registered.values()}
    for name in list(sys.modules):
        if name.startswith("task_module_") and name not in kept_modules:
            del sys.modules[name]


@pytest.fixture(name="in_process_workers")
def _in_process_workers() -> Iterator[None]:
    """Environments grade and generate items in this process."""
    with in_process_workers():
        yield


@pytest.fixture(scope="session")
def tasks_in_process() -> Iterator[Any]:
    """Tasks that make and grade their items in this process. They have items with tuples and nested configs."""
    from reasoning_gym_environment import Tasks

    with in_process_workers():
        tasks = Tasks("arc_agi,chain_sum,complex_arithmetic,rearc")
    with tasks:
        yield tasks


@pytest.fixture
async def make_real_env(tmp_path: Path, tokenizer_dir: Path) -> AsyncIterator[Callable[..., Any]]:
    """Environments that are set up with `await env.setup()` and closed with the test; nothing listens by default."""
    # Not at the top: tests of the lower layers need neither Atropos nor the time that its import takes.
    from atroposlib.envs.base import APIServerConfig

    from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
    from testing.fake_server import retry_quickly

    made: list[Any] = []

    def make(
        base_url: str = "http://127.0.0.1:9/v1", kind: type[ReasoningGymEnv] = ReasoningGymEnv, **fields: Any
    ) -> ReasoningGymEnv:
        values = {
            "tokenizer_name": str(tokenizer_dir),
            "include_tasks": "chain_sum,gcd",
            "num_eval_samples_per_task": 2,
            "group_size": 4,
            "max_token_length": 2048,
            "use_wandb": False,
            "data_dumps_dir": str(tmp_path / "data_dumps"),
            **fields,
        }
        settings = APIServerConfig(
            server_type="vllm", base_url=base_url, model_name="mock", api_key="x", health_check=False
        )
        env = kind(ReasoningGymEnvConfig(**values), [settings])
        retry_quickly(env.inference)
        made.append(env)
        return env

    yield make
    for env in made:
        await env.close()


@pytest.fixture
async def make_env(make_real_env: Callable[..., Any], in_process_workers: None) -> Callable[..., Any]:
    """Environments as of `make_real_env` that generate and grade in this process."""
    return make_real_env


@pytest.fixture
def ready_env(make_env: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Environments as of `make_env` that are set up: `await ready_env(...)`."""

    async def make(*arguments: Any, **fields: Any) -> Any:
        env = make_env(*arguments, **fields)
        await env.setup()
        return env

    return make
