"""What a subclass overrides is used, in each command, because the commands call the environment's public methods."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import ReasoningGymEnv
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.errors import EnvironmentSetupError
from testing.env_support import dumped
from testing.fake_api import FakeApi
from testing.inference_server import ThreadedMockServer
from testing.support import AddingStudent

from . import subclasses as theirs
from .commands import Command, process, serve


class BracketingStudent(AddingStudent):
    """Puts its answers into another form."""

    def __call__(self, prompt: str) -> str:
        return super().__call__(prompt).replace("<answer>", "[[").replace("</answer>", "]]")


# --- score

ORIGINAL_KEYS = {"messages", "rg_item", "dataset_obj", "finish_reason", "tokens", "masks", "logprobs"}


async def test_score_gets_the_dicts_of_the_original(made: Command, tmp_path: Path) -> None:
    env = made(theirs.ShapedRewards, data_path_to_save_groups=str(tmp_path / "groups.jsonl"), total_steps=2)
    await process(env)
    assert len(env.scored) == 2
    for rollouts in env.scored:
        assert len(rollouts) == 4
        for rollout in rollouts:
            assert rollout.keys() >= ORIGINAL_KEYS
            assert [message["role"] for message in rollout["messages"]] == ["system", "user", "assistant"]
            assert len(rollout["tokens"]) == len(rollout["masks"]) == len(rollout["logprobs"])
            entry = rollout["rg_item"]
            assert rollout["dataset_obj"].score_answer(answer=entry["answer"], entry=entry) == 1.0


def scores_of(kind: type[ReasoningGymEnv], group: Any) -> None:
    """Check that the scores of a group are those that the subclass gives."""
    scores = sorted(set(group["scores"]))
    if kind is theirs.OwnScore:
        assert scores == [0.01, 0.02, 0.03, 0.04]
    else:
        bonus = theirs.BONUS if kind is theirs.ShapedRewards else 0.0
        assert scores == [bonus, 1.0 + bonus]


KINDS = [theirs.ShapedRewards, theirs.OwnScore, theirs.BoxedAnswers]


@pytest.mark.parametrize("kind", KINDS)
async def test_serve_sends_and_dumps_what_score_returns(
    kind: Any, made: Command, server: ThreadedMockServer, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    if kind is theirs.BoxedAnswers:
        server._respond = BracketingStudent()
    env = made(kind, dump_rollouts=True, rollout_save_score_threshold=0.0)
    await serve(env, api, lambda: len(api.groups) >= 3)
    assert len(api.groups) >= 3
    in_dumps = [
        [rollout["score"] for rollout in line["rollouts"]] for line in dumped(env.datadumps_dir, "*_rollouts_*")
    ]
    for group in api.groups:
        scores_of(kind, group)
        assert group["scores"] in in_dumps
    outcomes = env.run.telemetry.outcomes.metrics()
    assert outcomes.keys() <= {"groups/sent", "groups/cancelled", "groups/equal_scores"}
    assert not env.run.failures.counts
    assert "ended after env.total_steps, 3 steps, before the trainer, which makes 9." in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_process_writes_what_score_returns(
    kind: Any, made: Command, server: ThreadedMockServer, tmp_path: Path
) -> None:
    if kind is theirs.BoxedAnswers:
        server._respond = BracketingStudent()
    lines = await process(made(kind, data_path_to_save_groups=str(tmp_path / "groups.jsonl")))
    assert len(lines) == 3
    for line in lines:
        scores_of(kind, line)
        assert [detail["score"] for detail in line["rollout_details"]] == line["scores"]


async def test_sequences_that_a_subclass_changes_are_sent_and_missing_from_the_dumps_by_name(
    made: Command, api: FakeApi
) -> None:
    env = made(theirs.ShortensSequences, dump_rollouts=True, dump_failed_rollouts=True)
    await serve(env, api, lambda: len(api.groups) >= 3)
    assert all(group["scores"] == [0.01, 0.02, 0.03, 0.04] for group in api.groups)
    assert env.run.failures.counts.keys() == {"sequences_changed_by_a_subclass"}
    assert env.run.failures.last_detail == "4 of 4 in a group of chain_sum"
    assert dumped(env.datadumps_dir, "*") == []


async def test_a_subclass_decides_which_groups_are_sent_and_written(
    made: Command, api: FakeApi, tmp_path: Path
) -> None:
    served = made(theirs.SendsEverySecond)
    await serve(served, api, lambda: len(api.groups) >= 3)
    written = made(theirs.SendsEverySecond, data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
    lines = await process(written)
    assert (len(lines), written.seen) == (3, 6)
    for group in (*api.groups, *lines):
        assert sorted(set(group["scores"])) == [0.0, 2.0]
    assert written.run.telemetry.outcomes.metrics() == {"groups/written": 3.0, "groups/dropped": 3.0}
    for env in (served, written):
        assert env.run.failures.last_detail == "handle_send_to_api of a subclass did not pass the group on"
    assert served.run.telemetry.outcomes.metrics()["groups/dropped"] >= 3


async def test_the_curriculum_and_the_metrics_follow_scores_that_a_subclass_makes_alone(
    made: Command, tmp_path: Path
) -> None:
    settings = {"data_path_to_save_groups": str(tmp_path / "groups.jsonl"), "complexity_mode": "curriculum"}
    env = made(theirs.OwnScore, **settings)
    buffer: list[float] = []
    env.wandb_log = lambda metrics=None: noted(env, buffer)
    lines = await process(env)
    assert buffer == [0.0] * 4 * len(lines)
    assert env.get_curriculum_stats()["task_details"]["chain_sum"]["groups_processed"] == len(lines)


async def noted(env: Any, buffer: list[float]) -> None:
    buffer += env.percent_correct_buffer


async def test_a_score_method_that_returns_nothing_or_nonsense_costs_its_groups_by_name(
    made: Command, caplog: pytest.LogCaptureFixture
) -> None:
    env = made(theirs.ScoresNothing)
    await env.setup()
    loop = ServeLoop(env)
    await loop._make_group(await env.get_next_item())
    assert "Group dropped: collect_trajectories() or score() of a subclass returned no group" in caplog.text
    nonsense: list[Any] = [
        1.0,
        {"tokens": [[1]], "masks": [[1]]},
        {"tokens": [[1]], "masks": [[1]], "scores": [1.0, 0.0]},
        {"tokens": [[1]], "masks": [[1]], "scores": [float("nan")]},
        {"tokens": [[1]], "masks": [[1]], "scores": ["1"]},
    ]
    for number, returned in enumerate(nonsense, 2):
        env.score = lambda rollouts, returned=returned: given(returned)
        await loop._make_group(await env.get_next_item())
        assert env.run.failures.counts["group_dropped"] == number
        assert env.run.failures.last_detail.startswith("score() of a subclass: ")
    assert env.run.telemetry.outcomes.metrics() == {"groups/dropped": float(len(nonsense) + 1)}
    assert not env.run.stream.pending.handed_out


async def given(value: Any) -> Any:
    return value


# --- items


async def test_the_prompt_of_a_subclass_is_the_prompt_of_the_model(
    made: Command, server: ThreadedMockServer, tmp_path: Path
) -> None:
    prompts: list[str] = []
    student = AddingStudent()

    def respond(prompt: str) -> str:
        prompts.append(prompt)
        return student(prompt)

    server._respond = respond
    lines = await process(
        made(theirs.OwnPrompt, data_path_to_save_groups=str(tmp_path / "g.jsonl"), total_steps=2, include_messages=True)
    )
    asked = [prompt for prompt in prompts if "1 + 1 =" not in prompt]
    assert len(asked) == 8 and all("Be brief." in prompt for prompt in asked)
    for line in lines:
        assert line["messages"][0][0] == {"role": "system", "content": "Be brief."}


async def test_the_question_and_the_right_answer_of_a_subclass_are_those_that_count(
    made: Command, server: ThreadedMockServer, tmp_path: Path
) -> None:
    answers = itertools.cycle(["7", "5"])
    server._respond = lambda prompt: f"<answer>{next(answers) if 'a week' in prompt else 1}</answer>"
    path = str(tmp_path / "groups.jsonl")
    lines = await process(made(theirs.OwnEntry, data_path_to_save_groups=path, total_steps=2, group_size=2))
    assert [sorted(line["scores"]) for line in lines] == [[0.0, 1.0]] * 2
    assert all(line["expected_answer"] == "7" for line in lines), lines[0].keys()


async def test_process_ends_after_the_last_item_of_a_subclass(
    made: Command, server: ThreadedMockServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server._respond = lambda prompt: "<answer>1</answer>"
    path = str(tmp_path / "groups.jsonl")
    caplog.set_level(logging.INFO)
    env = made(theirs.OwnItems, data_path_to_save_groups=path, total_steps=10, include_tasks="chain_sum,gcd")
    lines = await process(env)
    assert len(lines) == env.iter == 3
    assert {line["task"] for line in lines} <= {"chain_sum", "gcd"}
    assert "get_next_item returned no item" in caplog.text
    assert caplog.text.count("Item 3 is of") == 1
    assert env.logger.name.endswith("OwnItems")


async def test_serve_calls_get_next_item_again(
    made: Command, server: ThreadedMockServer, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reasoning_gym_environment.atropos.serve_loop.RETRY_S", 0.01)
    env = made(theirs.OwnItems)
    await serve(env, api, lambda: env.run.failures.counts["get_next_item_returned_no_item"] >= 3)
    assert env.iter == 3
    assert env.run.failures.counts["get_next_item_returned_no_item"] >= 3


# --- evaluations


@pytest.mark.parametrize("command", ["evaluate", "serve"])
async def test_an_evaluation_of_a_subclass_is_used(command: str, made: Command, api: FakeApi) -> None:
    env = made(theirs.OwnEvaluation, steps_per_eval=1)
    logged = await metrics_of(env, command, api)
    assert logged["eval/mine"] == 0.5
    assert "eval/percent_correct" not in logged


@pytest.mark.parametrize("command", ["evaluate", "serve"])
async def test_the_score_that_a_subclass_gives_a_question_is_used(
    command: str, made: Command, api: FakeApi, server: ThreadedMockServer, tmp_path: Path
) -> None:
    server._respond = AddingStudent(wrong_every=0)
    env = made(theirs.OwnQuestionScore, steps_per_eval=1, data_dir_to_save_evals=str(tmp_path / "evals"))
    logged = await metrics_of(env, command, api)
    assert (logged["eval/percent_correct"], logged["eval/exact"]) == (0.5, 0.0)
    path = min((tmp_path / "evals").rglob("samples.jsonl"))
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    # The completion is there, although the method returned only a number.
    assert [sample["score"] for sample in samples] == [0.5, 0.5]
    assert all(sample["messages"][-1]["role"] == "assistant" for sample in samples)


async def test_a_question_may_be_scored_without_the_model(made: Command, api: FakeApi, tmp_path: Path) -> None:
    env = made(theirs.OwnQuestionScore)
    env.asks_the_model = False
    assert (await metrics_of(env, "evaluate", api))["eval/percent_correct"] == 0.5


async def test_a_question_whose_method_fails_is_unscored_by_name(
    made: Command, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = made(ReasoningGymEnv)
    await env.setup()
    first, _ = env.test_items_with_scorers
    ours = env.rollout_and_score_eval

    async def fail(test_item: Any) -> Any:
        if test_item == first:
            raise ValueError("no such thing")
        return await ours(test_item)

    env.rollout_and_score_eval = fail
    assert (await env.evaluate())["eval/unscored"] == 1.0
    env.rollout_and_score_eval = lambda test_item: given(float("nan"))
    assert await env.evaluate() == {}


@pytest.mark.parametrize("command", ["evaluate", "serve"])
@pytest.mark.parametrize(("kind", "completions"), [(theirs.FewerQuestions, 1.0), (theirs.OwnQuestions, 3.0)])
async def test_the_questions_that_a_subclass_chooses_are_asked(
    kind: Any, completions: float, command: str, made: Command, api: FakeApi, server: ThreadedMockServer
) -> None:
    if kind is theirs.OwnQuestions:
        server._respond = lambda prompt: "<answer>1</answer>"
    logged = await metrics_of(made(kind, steps_per_eval=1), command, api)
    assert logged["eval/completions"] == completions
    assert logged["eval/arithmetic/completions"] == completions


async def metrics_of(env: Any, command: str, api: FakeApi) -> dict[str, Any]:
    """The metrics that an evaluation by this command logs."""
    logged: dict[str, Any] = {}

    async def log(metrics: dict[str, Any] | None = None) -> None:
        logged.update(metrics or {}, **dict(env.eval_metrics))
        env.eval_metrics.clear()

    env.wandb_log = log
    if command == "evaluate":
        await env._run_evaluate()
    else:
        await serve(env, api, lambda: any(name.startswith("eval/") for name, _ in env.eval_metrics))
        logged.update(dict(env.eval_metrics))
    return logged


# --- state and checkpoints


@pytest.mark.parametrize("kind", [theirs.RemembersMore, theirs.SavesInItsOwnTime])
async def test_what_a_subclass_saves_in_a_checkpoint_comes_back_as_an_attribute(
    kind: Any, made: Command, api: FakeApi, tmp_path: Path
) -> None:
    first = made(kind, instance_id="a")
    first.best = 0.75
    first.iter += 5
    drawn = first.rng.random()
    saved = tmp_path / "checkpoints" / "env_checkpoints" / "run-seed42-a" / "step-1.json"
    await serve(first, api, saved.exists)
    shift = first.iter - first.run.stream.index
    assert shift == 5
    resumed = made(kind, instance_id="a")
    assert resumed.rng.random() == drawn
    await serve(resumed, api, lambda: resumed.run.checkpoints.is_resumed)
    assert resumed.best == 0.75
    assert resumed.iter - resumed.run.stream.index == 5
    assert resumed.rng.random() == first.rng.random()


async def test_a_subclass_that_loads_no_checkpoint_cannot_start(made: Command, api: FakeApi) -> None:
    env = made(ReasoningGymEnv)
    env.load_checkpoint = lambda: None
    with pytest.raises(EnvironmentSetupError, match=r"call super\(\)\.load_checkpoint\(\) there"):
        await env.env_manager()


async def test_a_checkpoint_that_a_subclass_cannot_save_costs_no_training(made: Command, api: FakeApi) -> None:
    env = made(ReasoningGymEnv)
    ours = env.save_checkpoint
    env.save_checkpoint = lambda step: ours(step, {"mine": object()})
    await serve(env, api, lambda: env.run.failures.counts["checkpoint_not_saved"])
    assert "is not JSON serializable" in env.run.failures.last_detail


async def test_attributes_of_the_original_can_be_read_and_set(made: Command, tmp_path: Path) -> None:
    env = made(ReasoningGymEnv, complexity_mode="random", include_tasks="chain_sum,gcd,jugs", dump_rollouts=True)
    env.run_uuid = "mine"
    env.iter = 7
    env.datadumps_dir = str(tmp_path / "mine")
    await env.setup()
    assert env.datadumps_dir == tmp_path / "mine"
    await env.collect_trajectories(await env.get_next_item())
    assert len(dumped(tmp_path / "mine", "*_rollouts_mine_0000.jsonl")) == 1
    env.datadumps_dir = tmp_path / "other"
    assert env.run.telemetry.dumps.folder == tmp_path / "other"
    env.iter = 7
    assert (env.iter, env.run_uuid, env.run.run_id) == (7, "mine", "mine")
    await env.get_next_item()
    assert env.iter == 8
    env.iter = 3
    assert env.iter == 3
    env.run_uuid = "other"
    assert env.run.telemetry.dumps.run_id == "other"
    env.percent_correct_buffer = [1.0]
    assert env.run.telemetry.percent_correct == [1.0]
    env.percent_correct_buffer = []
    assert env.run.telemetry.percent_correct == []
    for name in ("task_complexity_levels", "_extract_final_answer"):
        with pytest.raises(AttributeError, match=f"{name} is a name of the original environment. Here, "):
            getattr(env, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        env.nonsense  # noqa: B018


async def test_curriculum_stats_have_the_keys_of_the_original(made: Command) -> None:
    env = made(ReasoningGymEnv, complexity_mode="curriculum", curriculum_target_accuracy=0.8)
    await env.setup()
    stats = env.get_curriculum_stats()
    assert (stats["curriculum_mode"], stats["target_accuracy"], stats["task_details"]) == (True, 0.8, {})
    assert env.run.drain_metrics()["curriculum/target_accuracy"] == 0.8
    item = await env.get_next_item()
    await env.collect_trajectories(item)
    [(task, details)] = env.get_curriculum_stats()["task_details"].items()
    assert task == "chain_sum"
    expected = {"complexity": 0.0, "groups_processed": 1, "recent_accuracy": 0.5}
    expected |= {"history_length": 1, "adjustable": False}
    assert {name: details[name] for name in expected} == expected


async def test_a_served_task_is_one_that_training_uses(made: Command) -> None:
    env = made(ReasoningGymEnv, complexity_mode="random", include_tasks="chain_sum,category:logic")
    await env.setup()
    assert {"circuit_logic", "propositional_logic", "syllogism"}.isdisjoint(env.task_names)
    assert "chain_sum" in env.task_names


# --- what is not used


def test_a_method_that_nothing_calls_is_named_with_what_takes_its_place(
    made: Command, caplog: pytest.LogCaptureFixture
) -> None:
    made(theirs.OverridesWhatIsNotHere)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith("OverridesWhatIsNotHere._extract_final_answer() is not used")
    assert "override score()" in warnings[0] and "include_tasks" in warnings[1]
    caplog.clear()
    made(theirs.ShapedRewards)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


async def test_a_setting_that_a_subclass_changes_too_late_is_named(
    made: Command, caplog: pytest.LogCaptureFixture
) -> None:
    env = made(ReasoningGymEnv)
    env.config.group_size += 2
    env.config.max_token_length -= 1
    env.config.mask_too_long_completions = False
    await env.setup()
    late = [record.getMessage() for record in caplog.records if "was changed after the constructor" in record.message]
    assert len(late) == 2
    assert late[0].startswith("env.group_size was changed after the constructor of ReasoningGymEnv had read it")
    assert "the run still uses 4" in late[0]


def test_checks_of_a_config_class_are_called(made: Command) -> None:
    config, servers = theirs.WithOwnConfig.config_init()
    config.tokenizer_name = "none"
    config.most_words = 0
    with pytest.raises(ValueError, match="most_words must be positive, got 0"):
        theirs.WithOwnConfig(config, servers)
