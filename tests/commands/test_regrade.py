"""Regrading gives the scores of the run under its settings, others under others, and leaves what was saved alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import __version__
from reasoning_gym_environment.atropos.process import settings_of
from reasoning_gym_environment.commands import regrade as command
from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.evaluation.runner import IDENTITY_SETTINGS, AnswerLog, grading
from reasoning_gym_environment.items import group_of
from reasoning_gym_environment.run import Mode
from reasoning_gym_environment.storage.lines import described, open_groups, unscored_fields
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from testing.env_support import SILENT, Student
from testing.mock_dialects import ThreadedMockServer

TASKS = "chain_sum,spell_backward,word_sorting,game_of_life_halting,letter_jumble"
REPLIES = (
    "<think>I know.</think><answer>{answer}</answer>",
    "<think>Hm.</think><answer>{answer} or so</answer>",
    "<think>No.</think><answer>0</answer>",
    "<answer>{answer}</answer>",
    SILENT,
)
HOSTILE = ("__import__('pathlib').Path('owned').touch()", "9**9**9**9", "(" * 3000, "\x00\ud800", "x" * 1_100_000)


@pytest.fixture
def run(byte_tokenizer: Any, tmp_path: Path) -> Callable[..., Any]:
    """`await run(make, groups)`: the folder of a run with dumps, groups of `process`, answers of an evaluation."""

    async def go(make: Any, groups: int, **settings: Any) -> Path:
        folder, student = tmp_path / "run", Student()
        student.follow(*REPLIES)
        with ThreadedMockServer(student, byte_tokenizer) as server:
            everything = {"dump_rollouts": True, "dump_failed_rollouts": True, "rollout_save_score_threshold": 0.0}
            everything |= {"ensure_scores_are_not_same": False, "include_messages": True, "partial_credit": "exact"}
            chosen = {"include_tasks": TASKS, "eval_tasks": "all", "complexity_mode": "random"}
            dumps = str(folder / "dumps")
            env = make(server.base_url, data_dumps_dir=dumps, **everything, **chosen, **settings)
            env.mode = Mode.PROCESS
            await env.setup()
            lines = open_groups(folder / "groups.jsonl", settings_of(env.config, "mock"), is_resumed=True)
            for _ in range(groups):
                item = await env.get_next_item()
                student.learn(item[1])
                group, _ = await env.collect_trajectories(item)
                lines.append({**group, **described(group_of(item), env.run.runtime.library.version, lines.identity)})
            lines.close()
            questions = await env.run.questions()
            student.learn(*(entry for entry, _ in env.test_items_with_scorers))
            identity = {**dict.fromkeys(IDENTITY_SETTINGS, "same"), "verification": env.config.verification}
            identity["grading"] = grading(env.config.verification)
            identity["partial_credit"] = env.config.partial_credit
            with AnswerLog(str(folder / "eval"), identity) as answers:
                samples = await env.run.evaluator.samples(questions, answers)
                answers.finish()
            write(folder / "eval" / "samples.jsonl", *samples)
            await env.run.telemetry.dumps.close()
        return folder

    return go


def regraded(*arguments: str | Path) -> command.Tally:
    tally, _ = asyncio.run(command._run(command._parser().parse_args([*map(str, arguments)])))
    return tally


def refused(*arguments: str | Path) -> str:
    with pytest.raises(EnvironmentSetupError) as found:
        command.main([*map(str, arguments)])
    return str(found.value)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def regraded_of(path: Path) -> Path:
    return path.parent.with_name(f"{path.parent.name}.regraded") / path.name


def without_before(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_before(one) for name, one in value.items() if name not in ("before", "regraded")}
    return [without_before(one) for one in value] if isinstance(value, list) else value


def sample(text: str, task: str = "chain_sum", **fields: Any) -> dict[str, Any]:
    """As of `evaluate`, of an item of the default config."""
    entry = library.create_dataset(task, seed=3, size=1)[0]
    return {
        "messages": [{"role": "user", "content": entry["question"]}, {"role": "assistant", "content": text}],
        "question": entry["question"],
        "expected_answer": entry["answer"],
        **{"score": 0.0, "outcome": "wrong", "format_failure": None},
        **{"task": task, "config": {}, "seed": 3, "level": None, **fields},
    }


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_what_is_not_there_or_ours_is_refused(tmp_path: Path, in_process_workers: None) -> None:
    path = write(tmp_path / "a.jsonl", sample(SILENT))
    assert "does not exist" in refused(tmp_path / "none")
    assert "expected a folder outside" in refused(tmp_path, "--to", tmp_path / "inside")
    assert "does not say how it was made" in refused(
        path, "--to", write(tmp_path.with_name("b") / "a.jsonl", {}).parent
    )
    assert "cannot be imported" in refused(path, "--task-modules", "no_such_module")
    empty = write(tmp_path / "empty" / "c.jsonl")
    assert "It has no lines." in refused(empty)
    assert not (tmp_path / "empty.regraded").exists()
    empty.write_bytes(b"\x1b\xff\n")
    assert "can be regraded. The first reason is" in (said := refused(empty)) and "\x1b" not in said


def check_against_the_run(folder: Path, *options: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.jsonl")}
    assert len(before) == 3
    found = regraded(folder, *options)
    assert found.skipped == []
    every = found.summary()["all"]
    assert (
        every["changed"] == 0 < every["exact after"].low < every["exact after"].value <= every["mean after"].value < 1
    )
    for path, data in before.items():
        assert path.read_bytes() == data
        new = lines(folder.with_name("run.regraded") / path.relative_to(folder))
        assert [without_before(one) for one in new] == lines(path)


async def test_scores_are_those_of_the_run_bit_for_bit_under_its_settings(run: Any, make_env: Any) -> None:
    folder = await run(make_env, 12, verification="native")
    await asyncio.to_thread(check_against_the_run, folder, "--verification", "native")


@pytest.fixture
def gol() -> dict[str, Any]:
    """A sample that reasoning-gym pays in full, and a strict check refuses."""
    return sample("<answer>anything</answer>", "game_of_life_halting", score=1.0, native_score=1.0, outcome="correct")


def test_other_settings_change_what_they_are_for_and_are_refused_where_there_are_others(
    tmp_path: Path, in_process_workers: None, gol: dict[str, Any]
) -> None:
    path = write(tmp_path / "samples.jsonl", gol)
    strict = regraded(path)
    regraded_lines, changed, *estimates = strict.summary()["game_of_life_halting"].values()
    assert (regraded_lines, changed, [estimate.value for estimate in estimates]) == (1, 1, [1.0, 0.0, 1.0, 0.0])
    [line] = lines(regraded_of(tmp_path / "samples.jsonl"))
    assert (line["score"], line["native_score"], line["correct"], line["outcome"]) == (0.0, 1.0, False, "wrong")
    assert (line["before"]["score"], line["before"]["outcome"]) == (1.0, "correct")
    assert "verification strict (now native)" in refused(path, "--verification", "native")
    native = regraded(path, "--verification", "native", "--to", tmp_path.with_name("native"))
    assert [native.summary()["all"][name].value for name in ("mean after", "exact after")] == [1.0, 1.0]


def test_the_same_command_again_grades_only_what_is_missing(
    tmp_path: Path, in_process_workers: None, gol: dict[str, Any]
) -> None:
    every = [{**gol, "attempt": number} for number in range(7)]
    path, target = write(tmp_path / "samples.jsonl", *every), regraded_of(tmp_path / "samples.jsonl")
    whole = regraded(path)
    data = target.read_bytes()
    # Killed while it wrote the third line.
    target.write_bytes(data[: len(data) * 3 // 7 - 9])
    again = regraded(path)
    assert (again.summary(), target.read_bytes()) == (whole.summary(), data)


def test_what_cannot_be_regraded_is_said_and_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], in_process_workers: None, gol: dict[str, Any]
) -> None:
    no_field = "does not hold completions"
    cases: list[tuple[str, Any]] = [
        ("now has another question", {**gol, "seed": 4}),
        (no_field, {"scores": [1.0], "messages": [gol["messages"]]}),
        ("no_such_task", {**gol, "task": "no_such_task"}),
        ("no_such_field", {**gol, "config": {"no_such_field": 1}}),
        ("no JSON object", [1]),
        ("Unknown task", {**gol, "task": "\ud800\x1b[2J"}),
    ]
    unanswered = {**gol, **unscored_fields("prompt_too_long"), "messages": gol["messages"][:1]}
    path = write(tmp_path / "samples.jsonl", *(one for _, one in cases), gol, unanswered)
    with path.open("a") as file:
        file.write("not JSON\n" + json.dumps({**gol, "config": {"x": 1}})[:-3])
    found = regraded(path)
    assert len(found.skipped) == len(cases) + 2
    for (said, _), why in zip(cases, found.skipped, strict=False):
        assert said in why, why
    assert found.summary()["all"]["regraded"] == 2
    assert command.main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "8 lines are not regraded. The first:" in shown and "\x1b[2J" not in shown
    assert "0.0% [0.0%, " in shown, "with its interval"


@pytest.mark.slow
def test_hostile_answers_and_configs_that_were_saved_do_nothing_but_score_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ITEM_S", 1.0)
    made = [sample(f"<answer>{one}</answer>", task) for task in ("countdown", "puzzle24") for one in HOSTILE]
    bomb = sample("<answer>1</answer>", config={"min_terms": 10**9, "max_terms": 10**9})
    found = regraded(write(tmp_path / "samples.jsonl", *made, bomb))
    assert found.summary()["all"]["regraded"] == len(made)
    assert found.summary()["all"]["mean after"].value < 0.05
    assert len(found.skipped) == 1
    assert not (tmp_path / "owned").exists()


def test_whether_the_prompt_opened_the_thinking_is_seen_in_what_was_made_of_the_texts(
    tmp_path: Path, in_process_workers: None, gol: dict[str, Any]
) -> None:
    regraded(write(tmp_path / "a.jsonl", *({**gol, "format_failure": one} for one in ("unfinished_thinking", None))))
    found = [(one["format_failure"], one["model_parsed"]) for one in lines(regraded_of(tmp_path / "a.jsonl"))]
    assert found == [("unfinished_thinking", None), (None, "anything")]


def test_a_group_is_paid_what_its_answers_are_worth_now(tmp_path: Path, in_process_workers: None) -> None:
    base = sample("")
    rollouts = [
        {
            "conversation": [base["messages"][0], {"role": "assistant", "content": f"<answer>{answer}</answer>"}],
            **{"score": 0.6, "credit": 0.9, "outcome": "partial", "num_tokens": 50, "mask_reason": None},
        }
        for answer in (base["expected_answer"], "no")
    ]
    group = {"item_id": "chain_sum", "rollouts": rollouts, "task": "chain_sum", "seed": 3, "config": {}}
    regraded(write(tmp_path / "dump.jsonl.part", group))
    [line] = lines(regraded_of(tmp_path / "dump.jsonl.part"))
    assert [one["score"] for one in line["rollouts"]] == [1.0, 0.0]
    assert [one["before"]["score"] for one in line["rollouts"]] == [0.6, 0.6]


def test_regraded_samples_have_metrics_of_their_new_scores(
    tmp_path: Path, in_process_workers: None, gol: dict[str, Any]
) -> None:
    old = tmp_path / "results"
    path = write(old / "samples.jsonl", {**gol, "category": "logic", "question_digest": "d", "manifest": "m"})
    parameters = {"verification": "native", "grading": "by reasoning-gym", "reasoning_gym_version": "0", "n": 1}
    general = {"model_name": "some-model", "generation_parameters": parameters}
    metrics = {"eval/mean_score": 1.0}
    document = {"config_general": general, "results": {"atropos|reasoning_gym_eval|0": metrics, "all": metrics}}
    (old / "metrics.json").write_text(json.dumps(document))
    regraded(path)
    new = json.loads((tmp_path / "results.regraded" / "metrics.json").read_text())
    assert new["results"].keys() == document["results"].keys()
    assert [result["eval/mean_score"] for result in new["results"].values()] == [0.0, 0.0]
    assert new["config_general"]["model_name"] == "some-model"
    assert new["config_general"]["generation_parameters"] == {
        "verification": "strict",
        "partial_credit": "exact",
        "grading": grading("strict"),
        "reasoning_gym_environment_version": __version__,
        "reasoning_gym_version": library.load().version,
        "n": 1,
    }
    assert json.loads((old / "metrics.json").read_text()) == document


def test_samples_without_any_score_have_no_metrics(
    tmp_path: Path, in_process_workers: None, gol: dict[str, Any]
) -> None:
    unanswered = {**gol, **unscored_fields("prompt_too_long"), "messages": gol["messages"][:1]}
    path = write(tmp_path / "results" / "samples.jsonl", unanswered)
    (path.parent / "metrics.json").write_text(json.dumps({"config_general": {}}))
    regraded(path)
    assert not (tmp_path / "results.regraded" / "metrics.json").exists()
