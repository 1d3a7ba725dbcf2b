"""An item counts once, however often it is run."""

from __future__ import annotations

import json

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.sampling.item_stream import ItemLedger


def test_the_first_time_is_new_and_the_second_is_counted() -> None:
    items = ItemLedger()
    assert items.is_new_observation(2) and items.metrics() == {}
    assert [items.is_new_observation(index) for index in (3, 4, 3, 5, 3)] == [True, True, False, True, False]
    assert items.metrics() == {"train/items_observed_again": 2.0}


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


def test_a_malformed_state_is_an_error() -> None:
    for state in ({"indices": 3}, {"indices": ["1"]}, {"indices": [1], "repeated": None}):
        with pytest.raises(EnvironmentSetupError, match="observed items cannot be used"):
            ItemLedger().load_state_dict(state)
