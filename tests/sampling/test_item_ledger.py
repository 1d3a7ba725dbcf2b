"""An item counts once, however often it is run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.item_ledger import ItemLedger


def test_the_first_time_is_new_and_the_second_is_counted() -> None:
    items = ItemLedger()
    assert [items.is_new_observation(index) for index in (3, 4, 3, 5, 3)] == [True, True, False, True, False]
    assert items.metrics() == {"train/items_observed_again": 2.0}


def test_without_repetition_there_is_no_metric() -> None:
    items = ItemLedger()
    items.is_new_observation(1)
    assert items.metrics() == {}


def test_the_oldest_is_forgotten_first() -> None:
    items = ItemLedger(remembered=2)
    for index in (1, 2, 3):
        items.is_new_observation(index)
    assert not items.is_new_observation(3) and not items.is_new_observation(2)
    assert items.is_new_observation(1)


def test_a_restored_memory_knows_what_it_knew() -> None:
    items, resumed = ItemLedger(), ItemLedger()
    items.is_new_observation(1)
    resumed.load_state_dict(json.loads(json.dumps(items.state_dict())))
    assert not resumed.is_new_observation(1) and resumed.is_new_observation(2)
    resumed.load_state_dict({})
    assert resumed.is_new_observation(1)


@pytest.mark.parametrize("state", [{"indices": 3}, {"indices": ["1"]}, {"indices": [1], "repeated": None}])
def test_a_malformed_state_is_an_error(state: dict[str, object]) -> None:
    with pytest.raises(EnvironmentSetupError, match="observed items cannot be used"):
        ItemLedger().load_state_dict(state)


def test_an_accepted_item_is_known_until_it_is_requeued_or_dropped(make_problem: Any) -> None:
    ledger, problem = ItemLedger(remembered=2), make_problem(index=1)
    for forget in (ledger.requeue, ledger.drop):
        ledger.accept(problem)
        ledger.done(problem)
        assert ledger.is_accepted(problem) and not ledger.is_accepted(make_problem(index=1, seed=12))
        forget(problem)
        assert not ledger.is_accepted(problem)
    ledger.accept(make_problem(index=-1))
    assert not ledger.is_accepted(make_problem(index=-1)), "a caller's own dataset may repeat its items"
    for index in (1, 2, 3):
        ledger.accept(make_problem(index=index))
    assert [ledger.is_accepted(make_problem(index=index)) for index in (1, 2, 3)] == [False, True, True]
