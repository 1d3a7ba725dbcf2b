"""From settings to components that are joined to each other."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, components
from reasoning_gym_environment.atropos.checkpoints import load_into, state_of
from reasoning_gym_environment.components import Components, assemble
from reasoning_gym_environment.config import ReasoningGymEnvConfig
from reasoning_gym_environment.errors import EnvironmentSetupError, NoTasksError, UnknownNameError
from reasoning_gym_environment.evaluation.questions import PRESETS, build_eval_set
from reasoning_gym_environment.records import Outcome, Problem, RolloutGroup, Score, Status
from reasoning_gym_environment.sampling.seeds import is_held_out
from reasoning_gym_environment.scoring.rewards import rollouts_of

from .byte_tokenizer import build_byte_tokenizer
from .in_process import InProcessGenerator, InProcessGrader

Assemble = Callable[..., Awaitable[Components]]
SERVER = SimpleNamespace(servers=[SimpleNamespace(eval_sem=SimpleNamespace(max_val=size)) for size in (2, 3)])
CURRICULUM = {"complexity_mode": "curriculum", "include_tasks": "chain_sum"}


@pytest.fixture
async def put_together(byte_tokenizer: Any) -> AsyncIterator[Assemble]:
    """`put_together(tokenizer, **settings)`: assembled components, with real workers."""
    made: list[Components] = []

    async def make(tokenizer: Any = None, **fields: Any) -> Components:
        values = {"include_tasks": ["chain_sum", "gcd"], "num_eval_samples_per_task": 2, "use_wandb": False}
        config = ReasoningGymEnvConfig(**{**values, "max_token_length": 2000, **fields})
        parts = await assemble(config, SERVER, tokenizer or byte_tokenizer, trainer_max_tokens=lambda: -1)
        made.append(parts)
        return parts

    yield make
    for parts in made:
        await parts.close()


@pytest.fixture
def put_quickly(in_process_grading: None, in_process_generation: None, put_together: Assemble) -> Assemble:
    """`put_together` with generation and grading in this process."""
    return put_together


def group_of(make_group: Any, problem: Problem, *values: float) -> RolloutGroup:
    group: RolloutGroup = make_group(list(values))
    return replace(group, problem=problem)


def unscored(group: RolloutGroup, outcome: Outcome) -> RolloutGroup:
    return replace(group, rollouts=[replace(rollout, score=Score(0.0, outcome)) for rollout in group.rollouts])


async def test_components_are_joined_to_each_other(put_quickly: Assemble) -> None:
    parts = await put_quickly(seed=9, instance_id="a", task_weights="gcd=3")
    assert list(parts.catalog.names) == ["chain_sum", "gcd"]
    assert parts.catalog["gcd"].weight == 3.0
    assert parts.library.version
    assert parts.evaluator._inference is parts.inference
    assert parts.evaluator._scorer._grader is parts.grader
    assert parts.scorer._grader is parts.grader
    assert parts.stream.maker._generator is parts.generator
    assert parts.stream.instance == "a"
    assert not parts.thinking_opened
    problem = await parts.stream.next()
    assert (problem.index, problem.split, problem.level) == (0, "train", None)
    assert (await put_quickly(seed=9, instance_id="a", task_weights="gcd=3")).stream.task_at(0) == problem.task


async def test_evaluation_set_has_items_of_every_task_and_is_made_when_asked_for(put_quickly: Assemble) -> None:
    parts = await put_quickly(eval_seed=5)
    assert parts.eval_set is None
    made = await parts.questions()
    assert [(p.task, p.split) for p in made] == [(task, "eval") for task in ("chain_sum", "gcd") for _ in (0, 1)]
    assert all(is_held_out(p.question) for p in made)
    assert await parts.questions() is made
    for manifest_is_equal, other in ((True, {"eval_seed": 5, "seed": 8}), (False, {"eval_seed": 6})):
        questions = await (await put_quickly(**other, instance_id="b")).questions()
        assert (questions.manifest == made.manifest) is manifest_is_equal
    assert (await (await put_quickly(num_eval_samples_per_task=0)).questions()).problems == []


async def test_training_leaves_out_what_is_held_out_and_if_told_what_published_results_asked(
    put_quickly: Assemble,
) -> None:
    plain = await put_quickly(include_tasks="gcd", complexity_mode=None)
    drawn = [(await plain.stream.next()).question for _ in range(60)]
    assert not any(map(is_held_out, drawn))
    assert plain.metrics()["train/redrawn_held_out"] > 0
    left_out = await put_quickly(include_tasks="gcd", hold_out="published", num_eval_samples_per_task=3)
    maker = left_out.stream.maker
    for preset in PRESETS:
        asked = await build_eval_set(maker, per_task=3, seed=123, complexity=preset)
        assert len(asked) == 3 and all(one.question in maker._held_out for one in asked)


async def test_what_cannot_be_evaluated_is_said_before_anything_is_started(put_quickly: Assemble) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean chain_sum"):
        await put_quickly(eval_tasks="chain_sun")
    with pytest.raises(EnvironmentSetupError, match=r"eval_complexity easy has a config for none of .*coin_flip"):
        await put_quickly(include_tasks="coin_flip", eval_complexity="easy")


async def test_evaluation_uses_as_many_slots_as_the_servers_have_and_twice_the_budget(put_quickly: Assemble) -> None:
    evaluator = (await put_quickly()).evaluator
    assert evaluator._slots._value == 5
    assert evaluator._budget(1000) == 3000


async def test_a_template_that_opens_the_thinking_is_seen_by_all_who_score(put_quickly: Assemble) -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.chat_template = f"{tokenizer.chat_template}<think>\n"
    parts = await put_quickly(tokenizer)
    assert parts.thinking_opened
    assert parts.evaluator._thinking_opened


@pytest.mark.parametrize("mode", ["random", "curriculum"])
async def test_levels_come_from_the_ladders_with_overrides_on_every_level(put_quickly: Assemble, mode: str) -> None:
    overrides = {"chain_sum": {"min_terms": 2, "max_terms": 2}}
    parts = await put_quickly(complexity_mode=mode, include_tasks="chain_sum", task_overrides=overrides)
    problems = [await parts.stream.next() for _ in range(20)]
    levels = {problem.level for problem in problems}
    assert levels == {0} or (mode == "random" and len(levels) > 1)
    assert all(problem.config["max_terms"] == 2 for problem in problems)
    assert all(problem.question.count(" + ") + problem.question.count(" - ") == 1 for problem in problems)


@pytest.mark.parametrize("mode", [None, "random", "curriculum"])
async def test_the_curriculum_learns_only_in_curriculum_mode(
    put_quickly: Assemble, make_group: Any, mode: str | None
) -> None:
    parts = await put_quickly(complexity_mode=mode, include_tasks="chain_sum", prefetch_items=0)
    problem = replace(await parts.stream.next(), level=0)
    for index in range(3):
        parts.sampler.observe_group(group_of(make_group, replace(problem, index=index), *[1.0] * 8))
    follows = mode == "curriculum"
    assert parts.sampler.curriculum.stats()["total_tasks_tracked"] == int(follows)
    assert ("curriculum/avg_complexity" in parts.metrics()) == follows
    if follows:
        assert parts.sampler.curriculum.level("chain_sum") == 1
        assert (await parts.stream.next()).level == 1


async def test_the_curriculum_sees_the_credit_of_scored_training_groups_only(
    put_quickly: Assemble, make_group: Any
) -> None:
    parts = await put_quickly(**CURRICULUM)
    problem = await parts.stream.next()
    group = group_of(make_group, problem, 1.0, 1.0)
    lost = unscored(group, Outcome.TIMEOUT)
    parts.sampler.observe_group(replace(group, problem=replace(problem, split="eval")))
    parts.sampler.observe_group(replace(group, problem=replace(problem, level=None, index=problem.index + 1)))
    parts.sampler.observe_group(lost)
    assert parts.sampler.curriculum.stats()["total_tasks_tracked"] == 0
    # One that is rewarded less for its length, and one that we could not score.
    rollouts = [replace(group.rollouts[0], reward=0.1), lost.rollouts[1]]
    parts.sampler.observe_group(replace(group, rollouts=rollouts))
    assert parts.sampler.curriculum.stats()["tasks"]["chain_sum"]["recent_accuracy"] == 1.0


async def test_the_curriculum_and_the_task_choice_are_driven_by_the_paid_credit(
    put_quickly: Assemble, make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await put_quickly(**CURRICULUM, partial_credit="binary")
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(parts.sampler.chooser, "observe", lambda *told: seen.append(told))
    problem = await parts.stream.next()
    made = make_group([0.4, 0.6, 0.6, 1.0])
    completions, scores = [one.completion for one in made.rollouts], [one.score for one in made.rollouts]
    rollouts = rollouts_of(completions, scores, parts.credit, problem.task, 2000, True)
    # Neither the score, 0.65 on average and exact in one of four, nor what is left of the credit in the reward.
    rollouts = [replace(one, reward=one.reward / 4) for one in rollouts]
    parts.sampler.observe_group(replace(made, problem=problem, rollouts=rollouts))
    assert parts.sampler.curriculum.stats()["avg_recent_accuracy"] == 0.75
    assert seen == [(problem.task, problem.level, 0.75, True)]


async def test_an_item_that_is_run_twice_is_observed_once(put_quickly: Assemble, make_group: Any) -> None:
    fields = {**CURRICULUM, "task_sampling": "learnability"}
    parts = await put_quickly(**fields)
    group = group_of(make_group, await parts.stream.next(), 1.0, 0.0)
    # What we could not score was not observed.
    parts.sampler.observe_group(unscored(group, Outcome.CRASHED))
    parts.sampler.observe_group(group)
    before = parts.sampler.chooser.state_dict(), parts.sampler.curriculum.stats()
    assert before[1]["tasks"]["chain_sum"]["groups"] == 1
    parts.sampler.observe_group(group)
    assert (parts.sampler.chooser.state_dict(), parts.sampler.curriculum.stats()) == before
    assert parts.metrics()["train/items_observed_again"] == 1.0
    resumed = await put_quickly(**fields)
    load_into(resumed.sampler.stateful, json.loads(json.dumps(state_of(parts.sampler.stateful))))
    resumed.sampler.observe_group(group)
    assert resumed.sampler.curriculum.stats() == before[1]


async def test_groups_of_a_dataset_that_is_not_ours_teach_nothing(put_quickly: Assemble, make_group: Any) -> None:
    parts = await put_quickly(task_sampling="learnability", include_tasks="chain_sum")
    parts.sampler.observe_group(make_group([1.0, 0.0], task="a_task_of_someone_else", index=-1))
    assert parts.sampler.chooser.state_dict() == {"windows": {}}


async def test_saved_state_continues_the_stream_and_the_curriculum(put_quickly: Assemble, make_group: Any) -> None:
    parts = await put_quickly(**CURRICULUM, instance_id="a")
    for _ in range(4):
        problem = await parts.stream.next()
        parts.sampler.observe_group(group_of(make_group, problem, *[1.0] * 8))
        parts.stream.ledger.done(problem)
    state = json.loads(json.dumps(state_of(parts.sampler.stateful)))
    expected = [await parts.stream.next() for _ in range(8)]
    assert [problem.level for problem in expected] == [0, 0, 0, 1, 1, 1, 1, 1], "three were planned before the move"
    resumed = await put_quickly(**CURRICULUM, instance_id="b")
    with pytest.raises(EnvironmentSetupError, match="sampler"):
        load_into(resumed.sampler.stateful, {})
    load_into(resumed.sampler.stateful, state)
    assert [await resumed.stream.next() for _ in range(8)] == expected
    assert resumed.sampler.curriculum.stats() == parts.sampler.curriculum.stats()


async def test_differently_named_instances_draw_different_items(put_quickly: Assemble) -> None:
    one, other = await put_quickly(), await put_quickly()
    one.name_instance("0")
    other.name_instance("1")
    seeds = {(await one.stream.next()).seed for _ in range(20)}
    assert not seeds & {(await other.stream.next()).seed for _ in range(20)}


async def test_tasks_with_an_unguarded_verifier_are_served_only_by_name(
    put_quickly: Assemble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(components.eval_guards, "unguarded_tasks", lambda: {"gcd": "it evaluates text"})
    refused = await put_quickly()
    assert list(refused.catalog.names) == ["chain_sum"]
    assert refused.catalog.excluded["gcd"] == "it evaluates text"
    assert {problem.task for problem in await refused.questions()} == {"chain_sum"}
    assert "gcd is not served: it evaluates text. Name it in allow_unguarded_tasks" in caplog.text
    allowed = await put_quickly(allow_unguarded_tasks="gcd", task_weights="chain_sum=0")
    assert list(allowed.catalog.names) == ["gcd"]
    assert "Serving 1 task in 1 category." in caplog.messages
    assert "Left out: chain_sum (its weight is 0)." in caplog.messages
    with pytest.raises(NoTasksError, match="it evaluates text"):
        await put_quickly(include_tasks="gcd")


async def test_unknown_tasks_fail_before_anything_is_started(put_quickly: Assemble) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean chain_sum"):
        await put_quickly(include_tasks="chain_sun")
    with pytest.raises(UnknownNameError, match="allow_unguarded_tasks"):
        await put_quickly(allow_unguarded_tasks="gdc")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_items_and_verdicts_come_from_as_many_workers_as_asked_for_until_the_close(
    put_together: Assemble,
) -> None:
    generation = {"num_generation_workers": 2, "generation_timeout_s": 70.5, "prefetch_items": 0}
    parts = await put_together(**generation, num_scoring_workers=2, scoring_timeout_s=90.5, include_tasks="gcd")
    problem = await parts.stream.next()
    answers = [problem.entry["answer"], "no idea"]
    verdicts = await parts.grader.grade("gcd", problem.config, problem.entry, answers)
    assert [verdict.value == 1.0 for verdict in verdicts] == [True, False]
    assert (parts.metrics()["generation/items"], parts.metrics()["grading/answers"]) == (1.0, 2.0)
    assert parts.generator.describe().startswith("2 workers, 70.5 s deadline per item")
    assert parts.grader.describe().startswith("2 scoring workers, sandbox auto: ")
    assert "90.5 s deadline per answer" in parts.grader.describe()
    workers = [worker.pid for part in (parts.generator, parts.grader) for worker in part._workers]
    assert [is_running(pid or 0) for pid in workers] == [True] * 4
    await parts.close()
    await parts.close()
    assert [is_running(pid or 0) for pid in workers] == [False] * 4
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(parts.stream.next(), 60)
    [late] = await parts.grader.grade("gcd", problem.config, problem.entry, answers[:1])
    assert late.status is Status.CRASHED


@pytest.mark.parametrize("what_fails", ["grader", "published questions"])
async def test_a_set_up_that_fails_leaves_no_worker(
    what_fails: str, put_quickly: Assemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def close(self: Any) -> None:
        closed.append(type(self).__name__)

    async def fail(*_: Any) -> Any:
        raise EnvironmentSetupError("not today")

    for kind in (InProcessGenerator, InProcessGrader):
        monkeypatch.setattr(kind, "close", close)
    if what_fails == "grader":
        monkeypatch.setattr(InProcessGrader, "start", fail)
    else:
        monkeypatch.setattr(components, "_leave_out_published", fail)
    with pytest.raises(EnvironmentSetupError, match="not today"):
        await put_quickly(hold_out="published")
    assert sorted(closed) == ["InProcessGenerator", "InProcessGrader"]


async def test_testing_mode_can_be_set_up(
    in_process_grading: None, in_process_generation: None, tokenizer_dir: Path
) -> None:
    config = ReasoningGymEnvConfig(
        tokenizer_name=str(tokenizer_dir), include_tasks="gcd", num_eval_samples_per_task=0, use_wandb=False
    )
    env = ReasoningGymEnv(config, [APIServerConfig(server_type="vllm", api_key="x")], testing=True)
    await env.setup()
    await env.close()
