"""The settings of reasoning-gym's published results are configs of `evaluate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from reasoning_gym_environment import HeldOut, ReasoningGymEnvConfig, Tasks
from reasoning_gym_environment.settings.components import TasksSettings
from testing.support import parsed_command_line

CONFIGS = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "configs"
WITHOUT_RESULTS = {"coin_flip", "kakurasu", "path_star", "survo"}


def config_of(setting: str, monkeypatch: pytest.MonkeyPatch) -> ReasoningGymEnvConfig:
    path = CONFIGS / f"published_{setting}.yaml"
    config, _ = parsed_command_line(["evaluate", "--config", str(path)], monkeypatch)
    assert isinstance(config, ReasoningGymEnvConfig)
    return config


@pytest.mark.parametrize(("setting", "tasks"), [("easy", 101), ("hard", 99)])
def test_evaluate_asks_the_published_tasks_and_grades_as_reasoning_gym(
    setting: str, tasks: int, monkeypatch: pytest.MonkeyPatch, in_process_workers: None
) -> None:
    config = config_of(setting, monkeypatch)
    assert (config.verification, config.partial_credit, config.eval_temperature) == ("native", "native", 0.6)
    assert (config.eval_tasks, config.num_eval_samples_per_task, config.complexity_mode) == (["all"], 50, None)
    # This builds each task that has parameters, so a wrong parameter would be an error.
    with Tasks(**{name: getattr(config, name) for name in TasksSettings.model_fields}) as served:
        assert len(served.names) == tasks and not WITHOUT_RESULTS & set(served.names)
        [question] = HeldOut(served, eval_tasks="chain_sum", num_eval_samples_per_task=1).problems
    fields = ("min_terms", "max_terms", "min_digits", "max_digits")
    parameters = {"easy": (2, 6, 1, 4), "hard": (5, 8, 4, 6)}[setting]
    assert tuple(question.config[name] for name in fields) == parameters
