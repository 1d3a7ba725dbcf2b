"""The published results and their configs, as shipped."""

from __future__ import annotations

import pytest

from reasoning_gym_environment.evaluation.questions import (
    PRESETS,
    changed_verifiers,
    preset_configs,
    published_scores,
)
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of


def test_nine_models_were_run_at_easy_and_eight_of_them_at_hard() -> None:
    easy, hard = published_scores("easy"), published_scores("hard")
    assert len(easy) == 9
    assert set(easy) - set(hard) == {"anthropic/claude-sonnet-4"}
    assert {len(scores) for scores in easy.values()} <= {100, 101}


def test_scores_are_those_of_the_source() -> None:
    gemma = published_scores("easy")["google/gemma-3-27b-it"]["chain_sum"]
    assert gemma.mean_score == 0.6832
    assert gemma.accuracy == pytest.approx((1 + 2 + 33 * 3) / 150)
    assert published_scores("hard")["google/gemma-3-27b-it"]["chain_sum"].accuracy == 0.0


@pytest.mark.parametrize("preset", PRESETS)
def test_every_published_task_has_its_config(preset: str) -> None:
    configs = preset_configs(preset)  # type: ignore[arg-type]
    assert set(configs) >= {task for scores in published_scores(preset).values() for task in scores}  # type: ignore[arg-type]
    assert changed_verifiers() <= set(configs)


def test_the_presets_are_those_of_the_source() -> None:
    assert preset_configs("easy")["chain_sum"] == {}
    assert preset_configs("hard")["chain_sum"] == {"min_terms": 5, "max_terms": 8, "min_digits": 4, "max_digits": 6}


def test_the_installed_library_accepts_every_hard_config() -> None:
    configs = preset_configs("hard")
    # A preset's fields are arguments of the config class; building all hundred datasets takes too long here.
    for task, fields in configs.items():
        assert set(fields) <= set(config_of(task, fields)), task
    assert set(configs) <= set(library.registry())
