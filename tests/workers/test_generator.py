"""Items from worker processes: the same as without them, whatever one of them does."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import (
    GenerationCrashedError,
    GenerationError,
    GenerationTimeoutError,
    NoRightAnswerError,
)
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.questions import NOT_REPRODUCED, is_sound
from reasoning_gym_environment.workers.generation_worker import PROGRAM_FAILED, _output_of
from reasoning_gym_environment.workers.generator import ProcessGenerator
from testing.process_table import linux_only

pytestmark = pytest.mark.asyncio(loop_scope="session")
ROOT = Path(__file__).resolve().parents[2]
TASK = "misbehaves"
SEED = 1
# `composite` needs to be told what it is composed of.
ALL_TASKS = sorted(library.registry().keys() - {"composite"})


async def act(generator: ProcessGenerator, name: str, seed: int = SEED, **config: Any) -> Any:
    item = await generator.generate(TASK, seed, {"act": name, **config})
    return item["metadata"]["acted"]


@contextmanager
def counting(generator: ProcessGenerator, **expected: int) -> Iterator[None]:
    """Check by how much the generator's counters have grown when the block is over."""
    before = Counter(generator.metrics())
    yield
    assert Counter(generator.metrics()) - before == {f"generation/{name}": by for name, by in expected.items()}


# --- the items ---

REFERENCE = """
import pickle, random, sys
from reasoning_gym_environment.tasks import reasoning_gym_source as library
items = {{}}
for task in {tasks!r}:
    random.seed({seed})
    items[task] = library.create_dataset(task, seed={seed}, size=1)[0]
with open(sys.argv[1], "wb") as file:
    pickle.dump(items, file)
"""


def reference_items(file: Path) -> dict[str, Any]:
    """What reasoning-gym makes in a process whose hash seed is 0."""
    command = [sys.executable, "-c", REFERENCE.format(tasks=ALL_TASKS, seed=SEED), str(file)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    items: dict[str, Any] = pickle.loads(file.read_bytes())
    return items


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_items_are_those_that_reasoning_gym_makes_whatever_the_hash_seed_here(
    generator: ProcessGenerator, tmp_path: Path
) -> None:
    reference = reference_items(tmp_path / "reference")
    made = {task: await generator.generate(task, SEED, {}) for task in reversed(ALL_TASKS)}
    assert [task for task in ALL_TASKS if made[task] != reference[task]] == []


async def test_an_item_whose_program_gives_something_else_each_time_says_so(generator: ProcessGenerator) -> None:
    drawn, known = [await generator.generate("codeio", seed, {}) for seed in (26, 1)]
    assert drawn["metadata"][NOT_REPRODUCED] and NOT_REPRODUCED not in known["metadata"]
    assert not is_sound("codeio", drawn) and is_sound("codeio", known)
    assert drawn == await generator.generate("codeio", 26, {}), "it is the same item each time all the same"
    with pytest.raises(NoRightAnswerError, match="codeio with seed 26: no answer to it is right"):
        await generator.generate("codeio", 26, {}, refuses=True)
    # Its small sets have the same order under several seeds for the hashes of texts.
    sets = await generator.generate("codeio", 554587232, {"difficulty": 7})
    assert sets["metadata"][NOT_REPRODUCED]


@pytest.mark.parametrize(("program", "output"), [("def main_solution(n): return n + 1", "8"), ("1 / 0", None)])
async def test_a_program_that_fails_is_told_apart_from_a_python_that_does_not_start(
    program: str, output: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pickle.dumps((program, {"n": 7}, 10, PROGRAM_FAILED))
    assert _output_of(job, 1) == output
    # It ends with another exit code than 0, as the loader of a program does without a library.
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(OSError, match=r"Python cannot be started in this worker \(exit code 1\)"):
        _output_of(job, 1)


async def test_an_item_depends_on_its_seed_and_config_alone(generator: ProcessGenerator) -> None:
    draws = [await act(generator, "draw", seed) for seed in (5, 6, 5)]
    assert draws[0] == draws[2] != draws[1]
    # decimal_arithmetic sets the precision of its whole process.
    long = {"min_terms": 8, "max_terms": 8, "min_digits": 4, "max_digits": 8}
    before = await generator.generate("decimal_chain_sum", 5, long)
    await generator.generate("decimal_arithmetic", 5, {"precision": 6, "max_num_decimal_places": 4})
    assert await generator.generate("decimal_chain_sum", 5, long) == before


# --- failures ---

FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("no_such_task", {}, "ValueError: .*not registered"),
    ("chain_sum", {"min_terms": 0}, "AssertionError"),
    ("chain_sum", {"unknown": 1}, "TypeError: .*unknown"),
    (TASK, {"act": "fail"}, "KeyError: 'no such board'"),
    (TASK, {"act": "leave"}, "SystemExit: 3"),
    (TASK, {"act": "swell"}, "at most 16777216 bytes, got 17"),
    (TASK, {"act": "confuse"}, "cannot be read here: ModuleNotFoundError"),
]


async def test_failures_name_task_seed_and_cause_and_cost_no_worker(generator: ProcessGenerator) -> None:
    with counting(generator, items=1, failed=len(FAILURES)):
        for task, config, cause in FAILURES:
            with pytest.raises(GenerationError, match=f"{task} with seed 3: .*{cause}"):
                await generator.generate(task, 3, config)
        assert await act(generator, "answer") is None


async def test_what_a_task_prints_or_writes_is_gone_with_its_item(
    generator: ProcessGenerator, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await act(generator, "print") is None
    assert capfd.readouterr() == ("", "")
    for seed in (1, 2):
        folder, *found = await act(generator, "write", seed=seed)
        assert found == [], "an earlier item's files are there"
        assert not await asyncio.to_thread(os.path.exists, folder)
    assert await act(generator, "remove") is None
    # And a temporary folder that somebody has cleaned away is made again.
    await asyncio.to_thread(shutil.rmtree, generator._folder.name)
    folder, *_ = await act(generator, "write")
    assert Path(folder).is_relative_to(generator._folder.name)


@pytest.mark.slow
async def test_an_item_that_eats_memory_fails_and_costs_the_next_items_nothing(
    generator: ProcessGenerator,
) -> None:
    with counting(generator, items=4, failed=2, worker_restarts=2):
        for _ in range(2):
            with pytest.raises(GenerationError, match="misbehaves with seed 1: MemoryError: more than 2048 MiB"):
                await act(generator, "hog")
            assert await act(generator, "answer") is None
            assert await act(generator, "answer") is None


@pytest.mark.parametrize("name", ["hang", *(pytest.param(act, marks=pytest.mark.slow) for act in ("wait", "swallow"))])
async def test_an_item_that_never_ends_costs_its_deadline_and_the_next_one_is_made(
    generator: ProcessGenerator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # "wait" does not compute, and is given up by the clock.
    with counting(generator, items=1, timed_out=1, worker_restarts=1):
        with monkeypatch.context() as patch:
            patch.setattr(generator, "_timeout_s", 0.25)
            expected = "misbehaves with seed 1: not made within 0.25 s of processor time and 3 s of elapsed time"
            with pytest.raises(GenerationTimeoutError, match=expected):
                await act(generator, name)
        assert await act(generator, "answer") is None


@pytest.mark.slow
async def test_an_item_of_which_workers_die_is_an_error_that_names_it(generator: ProcessGenerator) -> None:
    with counting(generator, items=1, failed=1, worker_restarts=2):
        with pytest.raises(GenerationCrashedError, match=r"misbehaves with seed 1: 2 workers died.* exit status -9"):
            await act(generator, "die")
        assert await act(generator, "answer") is None


# --- the workers ---


@pytest.fixture
def folder_of_the_user(tmp_path: Path) -> Iterator[Path]:
    """A folder outside of Python's search path, which pytest extends by the parent of the checkout."""
    libraries = [Path(path).resolve() for path in sys.path if path]
    candidates = (tmp_path, Path("/var/tmp"), Path("/dev/shm"), Path.home())
    outside = next(path for path in candidates if not any(path.resolve().is_relative_to(root) for root in libraries))
    with tempfile.TemporaryDirectory(dir=outside) as folder:
        yield Path(folder)


@linux_only
async def test_a_config_that_names_a_file_reads_no_file_of_the_user_and_waits_for_none(
    generator: ProcessGenerator, folder_of_the_user: Path
) -> None:
    words = folder_of_the_user / "words.txt"
    words.write_text("secret " * 100)
    pipe = folder_of_the_user / "pipe"
    os.mkfifo(pipe)
    with counting(generator, failed=2):
        for file in (words, pipe):
            with pytest.raises(GenerationError, match="PermissionError"):
                await generator.generate("spell_backward", 1, {"data_file": str(file)})


async def test_workers_start_clean_and_import_neither_atropos_nor_transformers(generator: ProcessGenerator) -> None:
    seen = await act(generator, "look")
    assert not {"atroposlib", "transformers", "pydantic", "aiohttp", "asyncio", "wandb"} & set(seen["modules"])
    assert (seen["environment"]["PYTHONHASHSEED"], seen["environment"]["OPENBLAS_NUM_THREADS"]) == ("0", "1")
    assert "HOME" not in seen["environment"]
    assert (seen["session"], seen["interrupt"], seen["stdin"]) == (True, True, b"")
