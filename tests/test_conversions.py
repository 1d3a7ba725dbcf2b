"""Between our records and Atropos' dictionaries."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from reasoning_gym.dataset import ReseedingDataset

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.group import problem_of, to_scored_data
from reasoning_gym_environment.tasks import reasoning_gym_source as library


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, ReseedingDataset])
def test_any_reasoning_gym_dataset_gives_the_recipe_of_its_item(wrap: Any) -> None:
    dataset = library.create_dataset("chain_sum", seed=5, size=10, max_terms=3)
    entry = dataset[0]
    problem = problem_of(entry, wrap(dataset))
    assert (problem.task, problem.category, problem.seed, problem.entry) == ("chain_sum", "arithmetic", 5, entry)
    assert not {"seed", "size"} & problem.config.keys()
    assert (problem.level, problem.complexity) == (None, None)
    assert library.create_dataset("chain_sum", seed=5, size=1, **problem.config)[0] == entry


def test_what_is_no_dataset_is_refused() -> None:
    for nonsense in (None, "chain_sum", SimpleNamespace(config=SimpleNamespace(seed=1))):
        with pytest.raises(EnvironmentSetupError, match="dataset_obj: expected a dataset that is registered with"):
            problem_of({}, nonsense)


def test_logprobs_are_sent_if_all_have_them_and_messages_if_asked_for(make_group: Any, make_completion: Any) -> None:
    group = make_group([1.0, 0.0])
    assert {"inference_logprobs", "messages"} <= to_scored_data(group, include_messages=True).keys()
    silent = replace(group.rollouts[1], completion=make_completion(logprobs=None))
    data = to_scored_data(replace(group, rollouts=[group.rollouts[0], silent]), include_messages=False)
    assert not {"inference_logprobs", "messages"} & data.keys()
