"""Each attempt to make a group begins and ends once, whatever the hooks of a subclass do, in `serve` and `process`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.errors import InferenceError
from testing.env_support import dumped
from testing.fake_api import FakeApi
from testing.inference_server import ThreadedMockServer

from .commands import Command, process, serve

GROUPS = 6
KEYS = ("messages", "rg_item", "dataset_obj", "finish_reason", "tokens", "masks", "logprobs")
HOOKS = ["collect_trajectories", "score", "postprocess_histories", "handle_send_to_api"]


class Counting(ReasoningGymEnv):
    """Counts its attempts: Atropos calls this method after each."""

    attempts = 0

    async def cleanup(self) -> None:
        self.attempts += 1


class RaisesOnce(Counting):
    """Raises in the second call of a hook."""

    hook = ""
    calls = 0

    def _call(self, hook: str) -> None:
        self.calls += hook == self.hook
        if hook == self.hook and self.calls == 2:
            self.calls += 1
            raise ValueError("an error of a subclass")

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

    async def handle_send_to_api(self, scored_data: Any, item: Any = None, *arguments: Any, **options: Any) -> None:
        await super().handle_send_to_api(scored_data, item, *arguments, **options)
        self._call("handle_send_to_api")


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


def endings(env: Any) -> Counter[str]:
    totals: dict[str, int] = env.run.telemetry.outcomes.totals()
    return Counter(totals)


def check_endings(env: Any) -> None:
    """Each attempt has ended once. Those that the end of the run has cancelled are not cleaned up."""
    ended = endings(env)
    assert ended.total() - ended["cancelled"] <= env.attempts <= ended.total()


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
@pytest.mark.parametrize("hook", HOOKS)
async def test_an_error_of_a_subclass_costs_one_group(hook: str, command: str, made_for: Command, api: FakeApi) -> None:
    env = made_for(command, RaisesOnce)
    env.hook = hook
    groups = await made_groups(env, command, api)
    assert len(groups) >= GROUPS
    ended = endings(env)
    check_endings(env)
    assert ended["fault"] == (hook != "handle_send_to_api"), "a group that was sent or written before is no fault"
    assert sum(env.run.failures.counts.values()) == 1
    assert "an error of a subclass" in env.run.failures.last_detail


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
