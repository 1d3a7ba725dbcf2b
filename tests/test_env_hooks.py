"""What Atropos needs around the flow of a problem: start, logs, checkpoints, the end."""

from __future__ import annotations

import logging
import re
from typing import Any
from unittest.mock import Mock

import atroposlib.envs.base as atropos_base
import pytest

from reasoning_gym_environment import env as env_module
from reasoning_gym_environment.atropos.serve_loop import ServeLoop
from reasoning_gym_environment.records import GroupOutcome
from testing.env_support import RIGHT, SILENT, MakeEnv, ReadyEnv, rollout


async def test_the_rollout_table_shows_some_rollouts_of_the_last_groups(ready_env: ReadyEnv) -> None:
    env = await ready_env(num_rollouts_per_group_for_logging=2, num_rollouts_to_keep=3)
    items = [await env.get_next_item() for _ in range(5)]
    for item in items:
        await env.add_rollouts_for_wandb({"tokens": [list(b"one"), list(b"two"), [3]], "scores": [1.0, 0.0, 0.0]}, item)
    env.config.use_wandb = True
    table = (await env.create_rollout_table({}))["train/rollouts"]
    assert table.columns == ["full_text", "score", "expected_answer", "task_name"]
    assert table.data == [
        [text, score, entry["answer"], dataset.name]
        for _, entry, dataset in items[-3:]
        for text, score in (("one", 1.0), ("two", 0.0))
    ]


async def test_what_was_counted_is_logged_once(ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env = await ready_env(complexity_mode="curriculum")
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(atropos_base.wandb, "log", lambda metrics, step: logged.append(metrics))
    monkeypatch.setattr(env.config, "use_wandb", True)
    item = await env.get_next_item()
    await env.score([rollout(item, RIGHT), rollout(item, SILENT)])
    env.eval_metrics.append(("eval/percent_correct", 0.25))
    await env.wandb_log({"mine": 1})
    await env.wandb_log()
    first, second = logged
    expected = {"mine": 1, "train/percent_correct": 0.5, "train/outcome_format_failure": 0.5}
    expected |= {"eval/percent_correct": 0.25, "curriculum/target_accuracy": 0.7}
    assert {name: first[name] for name in expected} == expected
    assert not {"mine", "train/percent_correct", "eval/percent_correct"} & second.keys()
    assert env.percent_correct_buffer == []


async def test_the_end_of_serve_logs_what_was_counted_since_the_last_log_step(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(num_eval_samples_per_task=0)
    logged: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(atropos_base.wandb, "log", lambda metrics, step: logged.append((step, metrics)))

    async def serve(served: Any) -> None:
        await served.setup()
        await served.setup_wandb()
        monkeypatch.setattr(served.config, "use_wandb", True)
        served.state.step = 9
        await served.wandb_log()
        # An evaluation ends after the last log step, and a group is delivered by the API client at its end.
        served.eval_metrics.append(("eval/percent_correct", 0.25))
        close = served.run.api.close

        async def deliver_and_close() -> None:
            served.run.telemetry.outcomes.add(GroupOutcome.SENT)
            await close()

        monkeypatch.setattr(served.run.api, "close", deliver_and_close)

    monkeypatch.setattr(env_module, "serve", serve)
    await env.env_manager()
    [(first, _), (last, metrics)] = logged
    assert last > first, "wandb would replace the metrics of the same step"
    assert (metrics["eval/percent_correct"], metrics["groups/sent"]) == (0.25, 1.0)


async def test_training_goes_on_without_wandb(
    ready_env: ReadyEnv, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = await ready_env(num_eval_samples_per_task=0)
    monkeypatch.setattr(atropos_base.wandb, "log", Mock(side_effect=ConnectionResetError(104, "reset by peer")))
    monkeypatch.setattr(env.config, "use_wandb", True)
    for step in (1, 2, 3):
        env.items_sent_this_step = 100
        await ServeLoop(env)._take_step(step)
    assert env.state.step == 3
    assert env.run.failures.counts == {"metrics_not_logged_to_wandb": 3}
    assert caplog.text.count("reset by peer") == 1


async def test_repeated_events_are_summed_up_at_the_end(ready_env: ReadyEnv, caplog: pytest.LogCaptureFixture) -> None:
    env = await ready_env()
    for _ in range(2):
        env.inference.events.note("requests_failed", "requests failed", "no route")
    await env.close()
    assert "Requests failed: 2 times so far; last: no route" in caplog.text


async def test_before_set_up_there_is_nothing_and_closing_twice_does_no_harm(make_env: MakeEnv) -> None:
    env = make_env()
    assert (env.iter, env.task_names, env.percent_correct_buffer) == (0, [], [])
    await env.close()
    await env.close()


async def test_log_levels_follow_the_settings(make_env: MakeEnv) -> None:
    def levels(**settings: bool) -> list[int]:
        make_env(**settings)
        return [logging.getLogger(name).level for name in ("atroposlib.envs.base", "reasoning_gym_environment")]

    assert levels(suppress_base_env_logs=False, debug_logging=True) == [logging.INFO, logging.DEBUG]
    assert levels() == [logging.WARNING, logging.INFO]


def forget_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make logging as in a program that has not configured it: pytest adds handlers at the start of each test."""
    for name in (None, "reasoning_gym_environment"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "level", logging.WARNING if name is None else logging.NOTSET)
    # Loggers remember which levels they are enabled for.
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]


def log_as(name: str, level: int, message: str) -> None:
    logging.getLogger(name).log(level, message)


def test_without_a_handler_of_the_program_the_lines_of_any_number_of_environments_appear_once_on_stderr(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_handlers(monkeypatch)
    make_env()
    assert "INFO    Loading the tokenizer" in capsys.readouterr().err
    make_env()
    log_as("reasoning_gym_environment.env.Subclass", logging.INFO, "a line of a subclass")
    log_as("reasoning_gym_environment.scoring", logging.DEBUG, "a detail")
    log_as("elsewhere", logging.INFO, "a line of the program")
    *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    a line of a subclass", last)
    assert len(logging.getLogger("reasoning_gym_environment").handlers) == 1
    make_env(debug_logging=True)
    log_as("reasoning_gym_environment.scoring", logging.DEBUG, "a detail")
    assert capsys.readouterr().err.count("DEBUG   a detail") == 1


def test_a_handler_of_the_program_is_the_only_one_that_writes(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_handlers(monkeypatch)
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    make_env()
    capsys.readouterr()
    log_as("reasoning_gym_environment.env.Subclass", logging.INFO, "a line")
    assert (written[-1], capsys.readouterr().err) == ("a line", "")
