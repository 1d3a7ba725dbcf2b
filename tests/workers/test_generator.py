"""Items from worker processes: the same as without them, whatever one of them does."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError, GenerationError, GenerationTimeoutError
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.workers.generation_worker import RESEEDED_TASKS, _Items
from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.pool import PoolClosedError
from reasoning_gym_environment.workers.protocol import ItemJob

from ..process_table import eventually, linux_only, parents, workers_of

ROOT = Path(__file__).resolve().parents[2]
TASK, MODULE = "misbehaves", str(Path(__file__).parents[1] / "generator_task.py")
SEED = 1
# `composite` needs to be told what it is composed of.
ALL_TASKS = sorted(library.registry().keys() - {"composite"})


@asynccontextmanager
async def generating(**options: Any) -> AsyncIterator[ProcessGenerator]:
    generator = ProcessGenerator(**{"timeout_s": 60.0, "task_modules": [MODULE], **options})
    await generator.start()
    try:
        yield generator
    finally:
        await generator.close()


async def act(generator: ProcessGenerator, name: str, seed: int = SEED, **config: Any) -> Any:
    item = await generator.generate(TASK, seed, {"act": name, **config})
    return item["metadata"]["acted"]


def counted(**counts: int) -> dict[str, float]:
    names = ("items", "failed", "timed_out", "worker_restarts")
    return {f"generation/{name}": float(counts.get(name, 0)) for name in names}


async def until(condition: Callable[[], bool]) -> None:
    # Another process brings it about, so there is no event to wait for.
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


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
FROM_WORKERS = """
import asyncio, pickle, sys
from reasoning_gym_environment.workers.generator import ProcessGenerator
async def main():
    generator = ProcessGenerator(num_workers=2, timeout_s=60)
    await generator.start()
    items = await asyncio.gather(*(generator.generate(task, {seed}, {{}}) for task in {tasks!r}))
    await generator.close()
    with open(sys.argv[1], "wb") as file:
        pickle.dump(dict(zip({tasks!r}, items)), file)
asyncio.run(main())
"""


def items_of(code: str, tasks: list[str], file: Path, hash_seed: str) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-c", code.format(tasks=tasks, seed=SEED), str(file)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    items: dict[str, Any] = pickle.loads(file.read_bytes())
    return items


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What reasoning-gym itself makes of every task, in a process with hash seed 0."""
    return items_of(REFERENCE, ALL_TASKS, tmp_path_factory.mktemp("reference") / "items", "0")


async def test_items_of_every_task_are_those_that_reasoning_gym_makes(reference: dict[str, Any]) -> None:
    async with generating(num_workers=2) as generator:
        items = await asyncio.gather(*(generator.generate(task, SEED, {}) for task in reversed(ALL_TASKS)))
        made = dict(zip(reversed(ALL_TASKS), items, strict=True))
        assert [task for task in ALL_TASKS if made[task] != reference[task]] == []
        assert generator.metrics()["generation/items"] == len(ALL_TASKS)


@pytest.mark.parametrize("hash_seed", ["7", "random"])
def test_items_do_not_depend_on_the_hash_seed_of_the_environment(
    reference: dict[str, Any], tmp_path: Path, hash_seed: str
) -> None:
    tasks = ["polynomial_multiplication", "ransom_note", "isomorphic_strings", "knight_swap", "word_ladder"]
    made = items_of(FROM_WORKERS, tasks, tmp_path / "items", hash_seed)
    assert made == {task: reference[task] for task in tasks}
    elsewhere = items_of(REFERENCE, tasks, tmp_path / "others", "7")
    assert elsewhere != made, "none of these items depends on the hash seed any more"


async def test_the_config_is_used_and_left_as_it_was() -> None:
    config = {"min_terms": 2, "max_terms": 3}
    async with generating() as generator:
        made = await generator.generate("chain_sum", 17, config)
    assert made == library.create_dataset("chain_sum", seed=17, size=1, **config)[0]
    assert config == {"min_terms": 2, "max_terms": 3}


@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("arc_agi", {}),
        ("arc_agi", {"use_eval": False, "rotations": [], "rotations_weights": [1.0]}),
        ("figlet_font", {}),
        ("figlet_font", {"min_word_len": 6, "max_word_len": 9}),
        ("group_anagrams", {}),
        ("group_anagrams", {"min_anagram_groups": 5, "max_anagram_groups": 9}),
    ],
)
def test_a_reseeded_dataset_gives_the_items_of_a_fresh_one(task: str, config: dict[str, Any]) -> None:
    assert task in RESEEDED_TASKS
    items = _Items()
    for seed in (3, 2**31, 3):
        fresh = library.create_dataset(task, seed=seed, size=1, **config)
        assert pickle.loads(items.answer(ItemJob(task, seed, config)).item) == fresh[0]
    assert len(items._kept) == 1


@pytest.mark.parametrize("task", sorted(RESEEDED_TASKS))
def test_reseeded_datasets_differ_in_nothing_but_the_seed_and_making_items_changes_nothing(task: str) -> None:
    one, other = (vars(library.create_dataset(task, seed=seed, size=1)) for seed in (1, 2))
    before = pickle.dumps(other)
    dataset = library.create_dataset(task, seed=2, size=1)
    for _ in range(3):
        dataset[0]
    assert pickle.dumps(vars(dataset)) == before
    assert (one.pop("seed"), other.pop("seed")) == (1, 2)
    assert {**vars(one.pop("config")), "seed": 2} == vars(other.pop("config"))
    assert one == other


async def test_what_is_drawn_from_shared_generators_depends_on_the_seed_alone() -> None:
    async with generating() as generator:
        draws = [await act(generator, "draw", seed) for seed in (5, 6, 5)]
    assert draws[0] == draws[2] != draws[1]


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


async def test_failures_name_task_seed_and_cause_and_cost_no_worker(misbehaving: ProcessGenerator) -> None:
    for task, config, cause in FAILURES:
        with pytest.raises(GenerationError, match=f"{task} with seed 3: .*{cause}"):
            await misbehaving.generate(task, 3, config)
    assert await act(misbehaving, "answer") is None
    assert misbehaving.metrics() == counted(items=1, failed=len(FAILURES))


@pytest.fixture
async def misbehaving() -> AsyncIterator[ProcessGenerator]:
    async with generating() as generator:
        yield generator


async def test_what_a_task_prints_goes_nowhere(misbehaving: ProcessGenerator, capfd: pytest.CaptureFixture) -> None:
    assert await act(misbehaving, "print") is None
    assert await act(misbehaving, "answer") is None
    assert capfd.readouterr() == ("", "")


@linux_only
async def test_what_a_task_writes_is_gone_with_its_item(misbehaving: ProcessGenerator) -> None:
    for seed in (1, 2):
        folder, *found = await act(misbehaving, "write", seed=seed)
        assert found == [], "an earlier item's files are there"
        assert not await asyncio.to_thread(os.path.exists, folder)
    assert Path(folder).is_relative_to(misbehaving._folder.name)


async def test_closing_removes_what_killed_workers_left() -> None:
    async with generating(num_workers=1, timeout_s=0.2) as generator:
        with pytest.raises(GenerationTimeoutError):
            await act(generator, "wait")
        folder = generator._folder.name
        assert len(await asyncio.to_thread(os.listdir, folder)) == 1
    assert not await asyncio.to_thread(os.path.exists, folder)


async def test_an_item_that_eats_memory_fails_and_its_worker_is_replaced(misbehaving: ProcessGenerator) -> None:
    with pytest.raises(GenerationError, match="misbehaves with seed 1: MemoryError: more than 2048 MiB"):
        await act(misbehaving, "hog")
    assert await act(misbehaving, "answer") is None
    assert misbehaving.metrics() == counted(items=1, failed=1, worker_restarts=1)


async def test_an_item_that_never_ends_costs_its_deadline_and_the_next_one_is_made() -> None:
    async with generating(timeout_s=1.0) as generator:
        with pytest.raises(
            GenerationTimeoutError, match="misbehaves with seed 1: not made within 1 s of processor time"
        ):
            await act(generator, "hang")
        assert await act(generator, "answer") is None
        assert generator.metrics() == counted(items=1, timed_out=1, worker_restarts=1)


@pytest.mark.parametrize("name", ["wait", "swallow"])
async def test_an_item_that_does_not_compute_or_cannot_be_interrupted_is_given_up_by_the_clock(name: str) -> None:
    async with generating(timeout_s=0.25) as generator:
        with pytest.raises(GenerationTimeoutError):
            await act(generator, name)
        assert await act(generator, "answer") is None
        assert generator.metrics() == counted(items=1, timed_out=1, worker_restarts=1)


async def test_other_workers_go_on_while_one_hangs() -> None:
    async with generating(num_workers=2, timeout_s=10.0) as generator:
        hanging = asyncio.ensure_future(act(generator, "hang"))
        for _ in range(20):
            await generator.generate("chain_sum", SEED, {})
        assert not hanging.done()
        hanging.cancel()
        with suppress(asyncio.CancelledError):
            await hanging


async def test_a_worker_that_dies_is_replaced_and_the_item_made_by_another(
    misbehaving: ProcessGenerator, tmp_path: Path
) -> None:
    assert await act(misbehaving, "die_once", marker=str(tmp_path / "marker")) is None
    assert misbehaving.metrics()["generation/worker_restarts"] == 1


async def test_an_item_of_which_two_workers_die_fails(
    misbehaving: ProcessGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GenerationError, match=r"misbehaves with seed 1: 2 workers died .* exit status -9"):
        await act(misbehaving, "die")
    assert await act(misbehaving, "answer") is None
    assert misbehaving.metrics()["generation/worker_restarts"] == 2
    assert "A generation worker died of misbehaves with seed 1" in caplog.text


@linux_only
async def test_an_idle_worker_that_was_killed_costs_no_item(misbehaving: ProcessGenerator) -> None:
    os.kill(workers_of(os.getpid())[0], signal.SIGKILL)
    assert await act(misbehaving, "answer") is None


async def test_items_wait_while_no_worker_can_be_started(
    misbehaving: ProcessGenerator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        items = [asyncio.create_task(act(misbehaving, action)) for action in ("die", "answer", "answer")]
        done, _ = await asyncio.wait(items, timeout=1.0)
        assert not done and caplog.text.count("A generation worker could not start") == 1
    with pytest.raises(GenerationError, match="2 workers died"):
        await items[0]
    assert [await item for item in items[1:]] == [None, None]
    assert "A generation worker is back" in caplog.text


# --- the pool ---


async def test_callers_are_served_in_the_order_in_which_they_came(misbehaving: ProcessGenerator) -> None:
    served: list[str] = []

    async def call(name: str, times: int) -> None:
        for _ in range(times):
            await act(misbehaving, "answer")
            served.append(name)

    await asyncio.gather(call("often", 3), call("once", 1), call("twice", 2))
    assert served == ["often", "once", "twice", "often", "twice", "often"]


async def test_cancelled_calls_leave_a_healthy_pool(misbehaving: ProcessGenerator, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    running = asyncio.ensure_future(act(misbehaving, "hang", marker=str(marker)))
    waiting = asyncio.ensure_future(act(misbehaving, "hang"))
    last = asyncio.ensure_future(act(misbehaving, "answer"))
    await until(marker.exists)
    for call in (waiting, running):
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await last is None
    assert misbehaving.metrics()["generation/worker_restarts"] == 1
    assert (misbehaving.metrics()["generation/timed_out"], misbehaving.metrics()["generation/failed"]) == (0, 0)


async def test_a_worker_handed_to_a_cancelled_caller_goes_to_the_next(misbehaving: ProcessGenerator) -> None:
    pool = misbehaving._pool
    worker = await pool._get()
    first, second = asyncio.ensure_future(pool._get()), asyncio.ensure_future(pool._get())
    await asyncio.sleep(0)
    pool._put(worker)
    first.cancel()
    assert await asyncio.wait_for(second, 10) is worker
    assert first.cancelled()


async def test_workers_start_clean_and_import_neither_atropos_nor_transformers(
    misbehaving: ProcessGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = await act(misbehaving, "look")
    assert not {"atroposlib", "transformers", "pydantic", "aiohttp", "wandb"} & set(seen["modules"])
    assert (seen["environment"]["PYTHONHASHSEED"], seen["environment"]["OPENBLAS_NUM_THREADS"]) == ("0", "1")
    assert "HOME" not in seen["environment"]
    assert (seen["session"], seen["interrupt"], seen["stdin"]) == (True, True, b"")


# --- start and end ---


@linux_only
async def test_closing_in_the_middle_leaves_nothing_and_answers_the_caller(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with generating(num_workers=2) as generator:
        calls = [asyncio.ensure_future(act(generator, "hang", marker=str(marker))) for _ in range(4)]
        await until(marker.exists)
        workers = workers_of(os.getpid())
        assert len(workers) == 2
        await generator.close()
        await generator.close()
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
        assert {type(result) for result in results} == {PoolClosedError}
        eventually(lambda: not set(workers) & set(parents()))
        with pytest.raises(RuntimeError, match="closed"):
            await act(generator, "answer")


PARENT = """
import asyncio
from reasoning_gym_environment.workers.generator import ProcessGenerator
async def main():
    generator = ProcessGenerator(num_workers=2, timeout_s=60, task_modules=[{module!r}])
    await generator.start()
    call = asyncio.create_task(generator.generate({task!r}, 1, {{"act": "hang", "marker": {marker!r}}}))
    await call
asyncio.run(main())
"""


@linux_only
def test_killing_the_environment_leaves_no_process(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    code = PARENT.format(module=MODULE, task=TASK, marker=str(marker))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        eventually(marker.exists)
        workers = workers_of(parent.pid)
        assert len(workers) == 2
        parent.kill()
        parent.wait()
        eventually(lambda: not set(workers) & set(parents()))


async def test_a_generator_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        await ProcessGenerator().generate("chain_sum", 1, {})


async def test_a_task_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    module = tmp_path / "broken_task.py"
    module.write_text("raise RuntimeError('half-written')")
    with pytest.raises(EnvironmentSetupError, match=r"broken_task\.py.*half-written"):
        await ProcessGenerator(num_workers=2, task_modules=[str(module)]).start()


async def test_task_modules_may_be_given_relative_to_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests")
    async with generating(task_modules=["generator_task.py"]) as generator:
        monkeypatch.chdir(ROOT)
        assert await act(generator, "answer") is None


async def test_the_given_library_is_the_one_in_use(tmp_path: Path) -> None:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this one')")
    with pytest.raises(EnvironmentSetupError, match="this one"):
        await ProcessGenerator(library_path=str(tmp_path)).start()


async def test_a_worker_that_cannot_even_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentSetupError, match=r"A generation worker could not start: .*/bin/false"):
        await ProcessGenerator().start()


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"timeout_s": 0}])
def test_senseless_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"must be .*, got 0"):
        ProcessGenerator(**options)


def test_the_description_names_workers_and_limits() -> None:
    described = ProcessGenerator(num_workers=2, timeout_s=2.5).describe()
    assert described == "2 workers, 2.5 s deadline per item, at most 2048 MiB of memory for it"
