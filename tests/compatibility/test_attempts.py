"""Each attempt to make a group begins and ends once, whatever the hooks of a subclass do, in `serve` and `process`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos import loop
from reasoning_gym_environment.errors import InferenceError
from reasoning_gym_environment.sampling import pending_items
from testing.env_support import dumped
from testing.fake_api import FakeApi
from testing.inference_server import ThreadedMockServer
from testing.process_table import until

from .commands import Command, process, serve

GROUPS = 6
KEYS = ("messages", "rg_item", "dataset_obj", "finish_reason", "tokens", "masks", "logprobs")
HOOKS = ["collect_trajectories", "score", "postprocess_histories", "add_rollouts_for_wandb", "handle_send_to_api"]


class Counting(ReasoningGymEnv):
    """Counts its attempts: Atropos calls this method after each."""

    attempts = 0

    async def cleanup(self) -> None:
        self.attempts += 1


class RaisesOnce(Counting):
    """Raises in the second call of a hook."""

    hook = ""
    error: type[BaseException] = ValueError
    calls = 0

    def _call(self, hook: str) -> None:
        self.calls += hook == self.hook
        if hook == self.hook and self.calls == 2:
            self.calls += 1
            raise self.error("an error of a subclass")

    async def collect_trajectories(self, item: Any) -> Any:
        found = await super().collect_trajectories(item)
        self._call("collect_trajectories")
        return found

    async def score(self, rollout_group_data: Any) -> Any:
        self._call("score")
        return await super().score(rollout_group_data)

    async def postprocess_histories(self, trajectories: Any) -> Any:
        self._call("postprocess_histories")
        return trajectories

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        self._call("add_rollouts_for_wandb")

    async def wandb_log(self, wandb_metrics: Any = None) -> None:
        self._call("wandb_log")

    async def handle_send_to_api(self, scored_data: Any, item: Any = None, *arguments: Any, **options: Any) -> None:
        await super().handle_send_to_api(scored_data, item, *arguments, **options)
        self._call("handle_send_to_api")


class HangsOnce(Counting):
    """Never returns from the second call of a hook."""

    hook = ""
    calls = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.hangs = asyncio.Event()

    async def _hang(self, hook: str) -> None:
        self.calls += hook == self.hook
        if hook == self.hook and self.calls == 2:
            self.hangs.set()
            await asyncio.Event().wait()

    async def collect_trajectories(self, item: Any) -> Any:
        found = await super().collect_trajectories(item)
        await self._hang("collect_trajectories")
        return found

    async def score(self, rollout_group_data: Any) -> Any:
        await self._hang("score")
        return await super().score(rollout_group_data)

    async def postprocess_histories(self, trajectories: Any) -> Any:
        await self._hang("postprocess_histories")
        return trajectories

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        await self._hang("add_rollouts_for_wandb")

    async def handle_send_to_api(self, scored_data: Any, item: Any = None, *arguments: Any, **options: Any) -> None:
        await super().handle_send_to_api(scored_data, item, *arguments, **options)
        await self._hang("handle_send_to_api")

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._hang("cleanup")


class FreshDicts(Counting):
    """Passes new dicts with the keys of the original to its method."""

    async def score(self, rollout_group_data: Any) -> Any:
        return await super().score([{key: rollout[key] for key in KEYS} for rollout in rollout_group_data])


class WaitsAfterNothing(Counting):
    """Has something to do after an attempt that brought no group."""

    async def collect_trajectories(self, item: Any) -> Any:
        found = await super().collect_trajectories(item)
        if found[0] is None:
            await asyncio.sleep(0.05)
        return found


class TriesAgain(Counting):
    """Asks for another group of the same item if there was none."""

    async def collect_trajectories(self, item: Any) -> Any:
        group, backlog = await super().collect_trajectories(item)
        if group is None:
            group, backlog = await super().collect_trajectories(item)
        return group, backlog


class ReturnsLists(Counting):
    async def collect_trajectories(self, item: Any) -> Any:
        group, backlog = await super().collect_trajectories(item)
        return [None, group], backlog


class TwoGroups(Counting):
    """Makes two groups of each item."""

    async def collect_trajectories(self, item: Any) -> Any:
        first, _ = await super().collect_trajectories(item)
        second, _ = await super().collect_trajectories(item)
        return [first, second], []


class OneOfTwoFails(TwoGroups):
    """Makes two groups of each item, and fails with the first one of each pair."""

    sent = 0

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        self.sent += 1
        if self.sent % 2:
            raise ValueError("an error of a subclass")


class SendsItself(Counting):
    """Sends a group itself, and then looks at another one, which it does not send."""

    async def collect_trajectories(self, item: Any) -> Any:
        group, backlog = await super().collect_trajectories(item)
        await self.handle_send_to_api(group, item)
        await super().collect_trajectories(item)
        return None, backlog


class CatchesEverything(Counting):
    """Lets no error end the run, as its author believes."""

    async def collect_trajectories(self, item: Any) -> Any:
        try:
            return await super().collect_trajectories(item)
        except BaseException:  # noqa: BLE001
            return None, []


class KnowsItsTasks(Counting):
    """Remembers the tasks of its attempts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tasks: list[Any] = []

    async def collect_trajectories(self, item: Any) -> Any:
        self.tasks.append(asyncio.current_task())
        return await super().collect_trajectories(item)


class RaisesAfterAnything(Counting):
    """Says in its own words that it was interrupted."""

    async def collect_trajectories(self, item: Any) -> Any:
        try:
            return await super().collect_trajectories(item)
        except BaseException as error:
            raise RuntimeError("interrupted") from error


class AsksTwice(Counting):
    """Gives each item back the first time, and makes its group the second time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.questions: Counter[str] = Counter()

    async def collect_trajectories(self, item: Any) -> Any:
        question = item[1]["question"]
        self.questions[question] += 1
        if self.questions[question] == 1:
            return None, [item]
        return await super().collect_trajectories(item)


class PlainItems(Counting):
    """Makes its items with datasets of reasoning-gym."""

    async def get_next_item(self) -> Any:
        dataset: Any = reasoning_gym.create_dataset("chain_sum", size=1, seed=self.iter)
        self.iter += 1
        entry = dataset[0]
        prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": entry["question"]}]
        return tuple(frozenset(message.items()) for message in prompt), entry, dataset


class SkipsItems(Counting):
    """Uses every third item, and looks at some more in its evaluations."""

    async def get_next_item(self) -> Any:
        for _ in range(2):
            await super().get_next_item()
        return await super().get_next_item()

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        await self.collect_trajectories(await super().get_next_item())
        return {}


def endings(env: Any) -> Counter[str]:
    totals: dict[str, int] = env.run.telemetry.outcomes.totals()
    return Counter(totals)


def check_endings(env: Any) -> None:
    """Each attempt has ended once. Those that the end of the run has cancelled are not cleaned up."""
    ended = endings(env)
    assert ended.total() - ended["cancelled"] <= env.attempts <= ended.total()


def check_items(env: Any) -> None:
    """Each item that was drawn has been sent or written, or is pending."""
    stream = env.run.stream
    pending = {index for index, *_ in stream.state_dict()["pending"] if index < stream.index}
    ended = endings(env)
    assert stream.index - len(pending) == ended["sent"] + ended["written"]


async def served(env: Any, api: FakeApi) -> None:
    await serve(env, api, lambda: len(api.groups) >= GROUPS)
    assert not env.run.stream.pending.handed_out, "an item has no owner"


async def made_groups(env: Any, command: str, api: FakeApi) -> list[dict[str, Any]]:
    """The groups that a command has sent or written."""
    if command == "process":
        return await process(env)
    await served(env, api)
    return api.groups


@pytest.fixture
def made_for(made: Command, tmp_path: Path) -> Command:
    """`made_for(command, kind)`: an environment that makes some groups with this command."""

    def make(command: str, kind: Any, **settings: Any) -> Any:
        values = {"total_steps": GROUPS, "data_path_to_save_groups": str(tmp_path / "groups.jsonl")}
        return made(kind, **{**(values if command == "process" else {}), **settings})

    return make


commands = pytest.mark.parametrize("command", ["serve", "process"])


@commands
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("hook", HOOKS)
async def test_an_error_of_a_subclass_costs_one_group(
    hook: str, error: Any, command: str, made_for: Command, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    # A hook raises CancelledError if it waits for a task of its own that was cancelled.
    env = made_for(command, RaisesOnce)
    env.hook, env.error = hook, error
    groups = await made_groups(env, command, api)
    assert len(groups) >= GROUPS
    ended = endings(env)
    check_endings(env)
    assert ended["fault"] == (hook != "handle_send_to_api"), "a group that was sent or written before is no fault"
    assert sum(env.run.failures.counts.values()) == 1
    assert f"chain_sum: {error.__name__}: " in env.run.failures.last_detail
    assert len([record for record in caplog.records if record.exc_info]) == 1, "the log has one traceback"


@commands
async def test_an_error_while_metrics_are_logged_costs_no_group(command: str, made_for: Command, api: FakeApi) -> None:
    env = made_for(command, RaisesOnce, total_steps=24 if command == "process" else 3)
    env.hook = "wandb_log"
    if command == "serve":
        # Each step of the trainer is logged.
        env.calls = 1
    groups = await made_groups(env, command, api)
    assert len(groups) >= GROUPS
    check_endings(env)
    assert endings(env)["fault"] == 0
    assert env.run.failures.counts == {"error_in_wandb_log": 1}


@commands
async def test_an_error_with_one_of_several_groups_costs_no_other(
    command: str, made_for: Command, api: FakeApi
) -> None:
    env = made_for(command, OneOfTwoFails)
    groups = await made_groups(env, command, api)
    check_endings(env)
    ended = endings(env)
    assert ended["fault"] == 0
    assert env.run.failures.counts == {"error_after_a_group": env.sent // 2}
    assert len(groups) == ended["sent"] + ended["written"] >= GROUPS


async def test_a_group_that_a_subclass_has_sent_itself_stays_sent(made: Command, api: FakeApi) -> None:
    env = made(SendsItself)
    await served(env, api)
    ended = endings(env)
    check_endings(env)
    assert ended["sent"] == len(api.groups)
    assert ended["dropped"] == 0


@commands
@pytest.mark.parametrize("hook", [*HOOKS, "cleanup"])
async def test_a_hook_that_hangs_does_not_keep_a_command_from_ending(
    hook: str, command: str, made_for: Command, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "GRACE_S", 0.05)
    env = made_for(command, HangsOnce)
    env.hook = hook
    if command == "serve":
        await serve(env, api, env.hangs.is_set)
    else:
        running = asyncio.ensure_future(env.process_manager())
        await asyncio.wait_for(env.hangs.wait(), 60)
        running.cancel()
        await asyncio.wait_for(asyncio.wait([running]), 60)
    ended = endings(env)
    assert ended.keys() <= {"cancelled", "sent", "written"}
    assert ended["cancelled"] >= (hook not in ("handle_send_to_api", "cleanup"))
    check_items(env)


@pytest.mark.parametrize("kind", [CatchesEverything, RaisesAfterAnything, KnowsItsTasks])
@commands
async def test_the_item_of_a_cancelled_attempt_is_requeued_whatever_a_subclass_makes_of_the_cancellation(
    kind: Any, command: str, made_for: Command, api: FakeApi
) -> None:
    env = made_for(command, kind, total_steps=100 if command == "process" else 3)
    complete = env.inference.complete
    waiting = asyncio.Event()
    calls = 0

    async def answer_some(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > GROUPS:
            waiting.set()
            await asyncio.Event().wait()
        return await complete(*arguments, **options)

    def is_waiting() -> bool:
        if waiting.is_set() and kind is KnowsItsTasks:
            # At the end of a program, asyncio cancels all tasks.
            for task in env.tasks:
                task.cancel()
        return waiting.is_set()

    env.inference.complete = answer_some
    if command == "serve":
        await serve(env, api, is_waiting)
    else:
        running = asyncio.ensure_future(env.process_manager())
        await until(is_waiting)
        running.cancel()
        await asyncio.wait([running])
    ended = endings(env)
    assert ended["cancelled"] > 0
    assert ended.keys() <= {"cancelled", "sent", "written"}
    assert not env.run.failures.counts
    check_items(env)


@commands
async def test_new_dicts_are_the_same_attempt(command: str, made_for: Command, api: FakeApi) -> None:
    env = made_for(command, FreshDicts, dump_rollouts=True, rollout_save_score_threshold=0.0)
    groups = await made_groups(env, command, api)
    check_endings(env)
    lines = dumped(env.datadumps_dir, "*_rollouts_*")
    assert len(lines) == len({line["index"] for line in lines})
    assert len(groups) <= len(lines) <= env.attempts


@commands
@pytest.mark.parametrize("kind", [WaitsAfterNothing, TriesAgain])
async def test_an_attempt_that_brings_nothing_at_first_ends_once(
    kind: Any, command: str, made_for: Command, api: FakeApi
) -> None:
    env = made_for(command, kind, max_num_workers=2)
    complete = env.inference.complete
    calls: Counter[str] = Counter()

    async def fail_first(prompt: Any, *arguments: Any, **options: Any) -> Any:
        calls[prompt.text] += 1
        if calls[prompt.text] == 1 and len(calls) % 2:
            raise InferenceError("no reply")
        return await complete(prompt, *arguments, **options)

    env.inference.complete = fail_first
    groups = await made_groups(env, command, api)
    ended = endings(env)
    check_endings(env)
    assert ended["dropped"] == ended["fault"] == 0
    prompts = Counter(tuple(group["tokens"][0][: group["masks"][0].count(-100)]) for group in groups)
    assert max(prompts.values()) == 1
    if kind is TriesAgain:
        assert ended["inference_failed"] == 0
    elif command == "serve":
        assert ended["inference_failed"] > 0


@commands
async def test_a_list_of_groups_is_sent_group_by_group(command: str, made_for: Command, api: FakeApi) -> None:
    env = made_for(command, ReturnsLists)
    groups = await made_groups(env, command, api)
    assert len(groups) >= GROUPS
    assert all(len(group["scores"]) == 4 for group in groups)
    check_endings(env)
    assert not env.run.failures.counts


@commands
async def test_two_groups_of_an_item_are_one_attempt(
    command: str, made_for: Command, api: FakeApi, server: ThreadedMockServer
) -> None:
    env = made_for(command, TwoGroups, dump_rollouts=True, rollout_save_score_threshold=0.0)
    groups = await made_groups(env, command, api)
    check_endings(env)
    lines = dumped(env.datadumps_dir, "*_rollouts_*")
    assert len(lines) >= len(groups) >= GROUPS


@commands
async def test_items_that_a_subclass_gives_back_are_asked_again(command: str, made_for: Command, api: FakeApi) -> None:
    env = made_for(command, AsksTwice)
    groups = await made_groups(env, command, api)
    assert len(groups) >= GROUPS
    assert Counter(env.questions.values())[2] >= GROUPS
    assert max(env.questions.values()) == 2
    ended = endings(env)
    check_endings(env)
    assert ended["dropped"] == 0


@commands
async def test_items_that_a_subclass_skips_do_not_stay_pending(
    command: str, made_for: Command, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_items, "MOST_UNUSED", 5)
    env = made_for(command, SkipsItems, steps_per_eval=1)
    await (serve(env, api, lambda: len(api.groups) >= GROUPS) if command == "serve" else process(env))
    ended = endings(env)
    check_endings(env)
    assert len(env.run.stream.pending.handed_out) <= 5
    assert env.run.stream.index >= 3 * (ended["sent"] + ended["written"]) >= 3 * GROUPS


async def test_groups_of_plain_datasets_have_an_age(made: Command, api: FakeApi) -> None:
    env = made(PlainItems, max_staleness_steps=2)
    complete = env.inference.complete

    async def answer_late(prompt: Any, *arguments: Any, **options: Any) -> Any:
        completions = await complete(prompt, *arguments, **options)
        # Meanwhile the trainer makes steps.
        env.state.step += 50
        return completions

    env.inference.complete = answer_late
    await serve(env, api, lambda: endings(env)["stale"] >= GROUPS)
    assert not api.groups
    assert endings(env)["stale"] >= GROUPS
