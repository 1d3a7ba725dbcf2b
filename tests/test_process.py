"""`process` writes exactly the groups asked for, or says why it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig, __version__
from reasoning_gym_environment import env as environment
from reasoning_gym_environment.commands.dumps import find_dumps, scan, summarise
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError, RequestRefusedError
from reasoning_gym_environment.inference.availability import AWAY_AFTER, MAX_FAILURES, MAX_PROBES, InferenceHealth
from reasoning_gym_environment.process import MAX_CONSECUTIVE_FAILURES
from reasoning_gym_environment.records import Completion
from reasoning_gym_environment.report.load import load
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.training_log.group_file import GroupFile

from .process_table import until

REPLY = "<think>no</think><answer>not a number</answer>"


class FakeInference:
    """Fails the requests whose number `fails(number)`; the others all get one wrong answer."""

    def __init__(self, fails: Callable[[int], bool], error: type[InferenceError] = InferenceError) -> None:
        self.fails = fails
        self.error = error
        self.asked = self.running = self.most_running = 0

    async def complete(self, prompt: Any, sampling: Any) -> list[Completion]:
        number, self.asked = self.asked, self.asked + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if self.fails(number):
            raise self.error(f"failure of request {number}")
        reply = list(REPLY.encode())
        tokens, masks = [*prompt.tokens, *reply], [-100] * len(prompt.tokens) + reply
        return [Completion(REPLY, tokens, masks, None, "stop") for _ in range(sampling.n)]


@pytest.fixture
async def make_run(
    tmp_path: Path, tokenizer_dir: Path, in_process_grading: None, in_process_generation: None
) -> AsyncIterator[Callable[..., ReasoningGymEnv]]:
    """`make_run(inference, total, workers)`: an environment as `process` starts it, that asks `inference`."""
    made: list[ReasoningGymEnv] = []

    def make(inference: FakeInference, total: int, workers: int, **fields: Any) -> ReasoningGymEnv:
        config = ReasoningGymEnvConfig(
            tokenizer_name=str(tokenizer_dir),
            include_tasks="chain_sum",
            num_eval_samples_per_task=0,
            group_size=8,
            process_concurrency=workers,
            use_wandb=False,
            include_messages=True,
            data_path_to_save_groups=str(tmp_path / "groups.jsonl"),
            **fields,
        )
        server = APIServerConfig(server_type="openai", base_url="http://127.0.0.1:9/v1", api_key="x")
        env = ReasoningGymEnv(config, [server])
        env.patience.health = InferenceHealth(first_delay_s=0.001, max_delay_s=0.01)
        env.n_groups_to_process, env.group_size_to_process = total, 3
        set_up = env.setup

        async def set_up_with_fake_inference() -> None:
            await set_up()
            assert env.components is not None
            env.components.inference.complete = inference.complete  # type: ignore[method-assign]

        env.setup = set_up_with_fake_inference  # type: ignore[method-assign]
        made.append(env)
        return env

    yield make
    for env in made:
        await env.close()


def never(number: int) -> bool:
    return False


def written(tmp_path: Path) -> list[dict[str, Any]]:
    if not (tmp_path / "groups.jsonl").exists():
        return []
    return [json.loads(line) for line in (tmp_path / "groups.jsonl").open(encoding="utf-8")]


@pytest.mark.parametrize(
    ("fails", "workers", "total"),
    [
        (never, 1, 1),
        (never, 3, 7),
        (never, 50, 4),
        (lambda number: number % 3 == 0, 3, 7),
        (lambda number: number % 3 == 0, 1, 7),
        (lambda number: number < 3, 8, 5),
        (lambda number: number % MAX_CONSECUTIVE_FAILURES != 9, 1, 3),
    ],
)
async def test_exactly_the_groups_asked_for_are_written(
    tmp_path: Path, make_run: Any, fails: Callable[[int], bool], workers: int, total: int
) -> None:
    inference = FakeInference(fails)
    env = make_run(inference, total, workers)
    await env._process_groups()
    groups = written(tmp_path)
    assert len(groups) == env.curr_step == total
    assert {len(group["tokens"]) for group in groups} == {3}
    assert len({group["messages"][0][1]["content"] for group in groups}) == total
    assert sum(not fails(number) for number in range(inference.asked)) == total
    assert inference.most_running <= min(workers, total)


async def test_several_groups_are_sampled_at_a_time(make_run: Any) -> None:
    inference = FakeInference(never)
    await make_run(inference, 12, 4)._process_groups()
    assert inference.most_running == 4


@pytest.mark.parametrize("workers", [1, 4, 20])
async def test_groups_stand_in_the_file_in_the_order_of_their_items_whatever_comes_first(
    tmp_path: Path, make_run: Any, workers: int
) -> None:
    class Shuffled(FakeInference):
        async def complete(self, prompt: Any, sampling: Any) -> list[Completion]:
            await asyncio.sleep(random.random() * 0.02)
            return await super().complete(prompt, sampling)

    random = Random(workers)
    env = make_run(Shuffled(lambda number: number % 7 == 3), 24, workers)
    await env._process_groups()
    order = [line["index"] for line in written(tmp_path)]
    assert len(order) == 24
    assert order == sorted(set(order))
    assert not list(tmp_path.glob("*.in-order"))  # noqa: ASYNC240


async def test_the_same_items_are_asked_whatever_the_concurrency(tmp_path: Path, make_run: Any) -> None:
    files = []
    for workers in (1, 8):
        await make_run(FakeInference(never), 10, workers)._process_groups()
        files.append((tmp_path / "groups.jsonl").read_text(encoding="utf-8"))
        (tmp_path / "groups.jsonl").unlink()
    assert files[0] == files[1]


class Seeded(FakeInference):
    """Answers by the prompt, and is cancelled with its run after `stops_after` requests."""

    def __init__(self, stops_after: int = 10**9) -> None:
        super().__init__(never)
        self.stops_after = stops_after
        self.stop: Callable[[], object] = lambda: None

    async def complete(self, prompt: Any, sampling: Any) -> list[Completion]:
        await asyncio.sleep(sum(prompt.tokens) % 7 * 0.001)
        if self.asked >= self.stops_after:
            self.stop()
            await asyncio.sleep(60)
        return await super().complete(prompt, sampling)


@pytest.mark.parametrize("mode", [None, "random", "curriculum"])
async def test_a_run_that_was_stopped_goes_on_and_its_file_is_that_of_one_that_was_not(
    tmp_path: Path, make_run: Any, mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "groups.jsonl"
    settings = {"complexity_mode": mode, "dump_rollouts": False}
    await make_run(Seeded(), 30, 4, **settings)._process_groups()
    whole = path.read_bytes()
    path.unlink()
    asked = 0
    for stops_after in (3, 0, 11, 7):
        inference = Seeded(stops_after)
        running = asyncio.ensure_future(make_run(inference, 30, 4, **settings)._process_groups())
        inference.stop = running.cancel
        with pytest.raises(asyncio.CancelledError):
            await running
        asked += inference.asked
    # Killed while it wrote: the last line is torn.
    path.write_bytes(path.read_bytes()[:-9])
    last = Seeded()
    await make_run(last, 30, 4, **settings)._process_groups()
    # The line that was torn, and what was in progress at each stop.
    assert 31 <= asked + last.asked <= 31 + 4 * 4
    assert path.read_bytes() == whole
    assert f"{30 - last.asked} groups are there already, 30 are asked for." in caplog.messages
    done = make_run(FakeInference(never), 30, 4, **settings)
    await done._process_groups()
    assert done.components is None, "there was nothing to make"
    more = FakeInference(never)
    await make_run(more, 32, 4, **settings)._process_groups()
    assert more.asked == 2 and len(written(tmp_path)) == 32
    await make_run(more, 2, 4, **settings)._process_groups()
    assert "32 groups are there already, 2 are asked for." in caplog.messages


async def test_a_file_of_other_settings_or_of_unknown_ones_is_refused_and_left_alone(
    tmp_path: Path, make_run: Any
) -> None:
    path = tmp_path / "groups.jsonl"
    await make_run(FakeInference(never), 2, 2)._process_groups()
    before = path.read_bytes()
    with pytest.raises(
        EnvironmentSetupError,
        match=r"groups.jsonl holds groups of other settings: seed 42 \(now 43\), train_temperature 1.0 \(now 0.5\)",
    ):
        await make_run(FakeInference(never), 3, 2, train_temperature=0.5, seed=43)._process_groups()
    assert path.read_bytes() == before
    path.write_text('{"tokens": []}\n')
    with pytest.raises(
        EnvironmentSetupError, match=r"do not say how they were made .*Set env.data_path_to_save_groups"
    ):
        await make_run(FakeInference(never), 3, 2)._process_groups()
    assert path.read_text() == '{"tokens": []}\n'


def test_two_processes_do_not_write_one_file_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    groups = GroupFile(path, {}, goes_on=True)
    code = f"from {GroupFile.__module__} import *; GroupFile(Path({str(path)!r}), {{}}, goes_on=True).close()"

    def other() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr

    refused = rf"EnvironmentSetupError: {path}: another run( \(pid {os.getpid()}\))? is at work there\. "
    assert re.search(refused, other())
    for index in (1, 0):
        groups.write({"index": index})
    groups.put_in_order()
    assert [one["index"] for one in written(tmp_path)] == [0, 1]
    assert re.search(refused, other()), "the file that took its place is held too"
    groups.close()
    assert "lines that do not say how they were made" in other()
    path.unlink()
    assert other() == "" and list(tmp_path.iterdir()) == [], "nothing is left of a start that wrote nothing"


def test_a_file_that_is_never_put_in_order_does_not_remember_its_lines(tmp_path: Path) -> None:
    groups = GroupFile(tmp_path / "groups.jsonl", {}, goes_on=False)
    groups.write({"index": 10**6})
    tracemalloc.start()
    try:
        for index in range(2000):
            groups.write({"index": 10**6 + index})
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        groups.close()
    assert len(written(tmp_path)) == 2001
    assert grown < 50_000


async def test_a_run_says_what_it_will_ask_and_a_dry_one_asks_nothing(
    tmp_path: Path, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    inference = FakeInference(never)
    env = make_run(inference, 30, 2, dry_run=True)
    await env._process_groups()
    await env.close()
    assert inference.asked == 0 and not (tmp_path / "groups.jsonl").exists()
    (plan,) = [message for message in caplog.messages if message.startswith("To ask: 30 requests, ")]
    await make_run(inference, 30, 2)._process_groups()
    assert plan in caplog.messages and inference.asked == 30


async def test_a_limit_of_tokens_ends_a_run_with_what_it_has(
    tmp_path: Path, make_run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Spending(FakeInference):
        async def complete(self, prompt: Any, sampling: Any) -> list[Completion]:
            completions = await super().complete(prompt, sampling)
            env.components.inference.spending.note(len(prompt.tokens), completions)
            return completions

    env = make_run(Spending(never), 30, 2, limit_tokens=2000)
    await env._process_groups()
    assert 1 <= len(written(tmp_path)) < 10
    assert "limit_tokens is reached: the same command with a higher one goes on." in caplog.messages
    await make_run(FakeInference(never), 30, 2)._process_groups()
    assert len(written(tmp_path)) == 30
    # With some 800 a group: those at once are what the first one leaves room for.
    (tmp_path / "groups.jsonl").unlink()
    env = make_run(Spending(never), 30, 8, limit_tokens=7000)
    await env._process_groups()
    spent = env.components.inference.spending
    assert 7000 <= spent.prompt_tokens + spent.completion_tokens < 8000


async def test_a_line_says_what_it_is(tmp_path: Path, make_run: Any) -> None:
    await make_run(FakeInference(never), 1, 1, complexity_mode="random")._process_groups()
    [line] = written(tmp_path)
    assert (line["task"], line["category"], line["index"]) == ("chain_sum", "arithmetic", 0)
    assert line["config"]["max_terms"] and line["seed"] and line["expected_answer"] and line["level"] is not None
    assert [one["outcome"] for one in line["rollout_details"]] == ["wrong"] * 3
    assert all({"native_score", "raw_score", "credit", "answer"} <= one.keys() for one in line["rollout_details"])
    assert line["settings"]["train_temperature"] == 1.0 and line["settings"]["seed"] == 42
    assert (line["version"], line["reasoning_gym_version"]) == (__version__, library.load().version)
    [(_, group)] = load([tmp_path / "groups.jsonl"]).groups
    assert (group.task, group.level) == ("chain_sum", line["level"])
    assert [one["outcome"] for one in group.rollouts] == ["wrong"] * 3
    files, others = find_dumps([tmp_path])
    assert others == []
    [run] = summarise(scan(files))["runs"]
    assert (run["run"], run["groups"], run["rollouts"], run["distinct_items"]) == ("groups", 1, 3, 1)


async def test_a_finished_group_is_written_although_one_before_it_is_not(tmp_path: Path, make_run: Any) -> None:
    class Stuck(FakeInference):
        async def complete(self, prompt: Any, sampling: Any) -> list[Completion]:
            if self.asked == 0:
                self.asked += 1
                await asyncio.sleep(60)
            return await super().complete(prompt, sampling)

    running = asyncio.ensure_future(make_run(Stuck(never), 12, 3)._process_groups())
    await until(lambda: len(written(tmp_path)) == 11)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert {line["index"] for line in written(tmp_path)} == set(range(1, 12))


async def test_a_run_that_is_stopped_while_groups_are_accepted_ends_and_has_them(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_run(FakeInference(never), 50, 3)
    accepting = asyncio.Event()

    async def slowly(group: Any) -> None:
        accepting.set()
        await asyncio.sleep(0.05)

    monkeypatch.setattr(env.log, "dump", slowly)
    running = asyncio.ensure_future(env._process_groups())
    await accepting.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=120)
    assert done and running.cancelled()
    assert len(written(tmp_path)) == 3, "what was being accepted is written"


@pytest.mark.parametrize(("workers", "good"), [(1, 0), (1, 5), (4, 0)])
async def test_ten_failures_in_a_row_end_the_run_with_the_last_reason(
    tmp_path: Path, make_run: Any, workers: int, good: int
) -> None:
    inference = FakeInference(lambda number: number >= good)
    before = asyncio.all_tasks()
    # Beside those that were under way with them.
    failed = MAX_CONSECUTIVE_FAILURES + workers - 1
    with pytest.raises(
        EnvironmentSetupError, match=f"^{failed} groups in a row could not be sampled: chain_sum: failure of request"
    ):
        await make_run(inference, 100, workers)._process_groups()
    await asyncio.sleep(0)
    assert len(written(tmp_path)) == good
    # Each item is tried several times, and the other workers are under way with theirs.
    most = (failed + workers) * (MAX_FAILURES + MAX_PROBES)
    assert good + MAX_CONSECUTIVE_FAILURES * MAX_PROBES <= inference.asked <= good + most
    assert asyncio.all_tasks() == before


async def test_many_that_are_refused_together_do_not_end_the_run(tmp_path: Path, make_run: Any) -> None:
    """As by a proxy, while the server behind it starts again."""
    inference = FakeInference(lambda number: 5 <= number < 5 + 16, RequestRefusedError)
    await make_run(inference, 40, 16)._process_groups()
    assert len(written(tmp_path)) == 40


async def test_an_outage_that_lasts_too_long_is_not_waited_out(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PROCESS_AWAY_S", 0.0)
    inference = FakeInference(lambda number: number >= 2)
    with pytest.raises(EnvironmentSetupError, match="10 groups in a row"):
        await make_run(inference, 100, 1)._process_groups()
    assert len(written(tmp_path)) == 2
    assert inference.asked < 2 + AWAY_AFTER + MAX_CONSECUTIVE_FAILURES


def run_env(env: Any, total: int = 2) -> Any:
    env.n_groups_to_process, env.group_size_to_process = total, 2
    set_up = env.setup

    async def setup() -> None:
        await set_up()

        async def complete(prompt: Any, sampling: Any) -> list[Completion]:
            return [Completion("x", [1, 2], [-100, 2], None, "stop") for _ in range(sampling.n)]

        env.components.inference.complete = complete

    env.setup = setup
    return env._process_groups()


async def test_a_process_without_messages_still_writes_its_groups_and_ends(make_env: Any, tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    await run_env(make_env(include_messages=False, data_path_to_save_groups=str(path)))
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("size", [1, 10_000])
async def test_a_process_whose_disk_is_full_ends_with_one_line_that_says_so(
    make_env: Any, size: int, tmp_path: Path
) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    env = make_env(data_path_to_save_groups=str(tmp_path / "full"), include_messages=True)
    env.postprocess_histories = partial(lengthened, size)
    with pytest.raises(EnvironmentSetupError, match=r"Cannot write groups to .*/full: .*No space left"):
        await run_env(env)


async def lengthened(size: int, group: Any) -> Any:
    return {**group, "tokens": [[1] * size for _ in group["tokens"]]}


async def test_a_process_without_a_path_is_refused_by_name(make_env: Any) -> None:
    with pytest.raises(EnvironmentSetupError, match="data_path_to_save_groups"):
        await run_env(make_env(include_messages=True, data_path_to_save_groups=None))


async def test_groups_that_their_page_would_replace_are_refused_before_they_are_sampled(
    make_env: Any, tmp_path: Path
) -> None:
    env = make_env(include_messages=True, data_path_to_save_groups=str(tmp_path / "g.html"))
    with pytest.raises(EnvironmentSetupError, match=r"g\.html is used already"):
        await run_env(env)
    assert env.components is None
