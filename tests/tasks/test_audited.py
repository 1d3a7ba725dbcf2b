"""Tasks whose verifier was measured to teach the wrong thing are kept out, unless they are asked for."""

from __future__ import annotations

import pytest

from reasoning_gym_environment.audit.measure import Trust
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.measured_data import QUARANTINED, load_verdicts, quarantine

VERSION = library.load().version
TASKS = sorted(set(library.registry()) - {"composite"})


def test_every_task_of_the_installed_release_has_verdicts_that_the_audit_gives() -> None:
    verdicts = load_verdicts(VERSION)
    assert sorted(verdicts) == TASKS
    known = {verdict.value for verdict in Trust}
    assert {word for audited in verdicts.values() for word in (audited.strict, audited.native)} <= known
    assert known > QUARANTINED


def test_with_strict_checks_nothing_is_kept_out() -> None:
    assert quarantine(TASKS, version=VERSION, strict=True, asked_for=()) == {}


def test_natively_what_pays_garbage_is_kept_out_unless_it_is_asked_for_by_name() -> None:
    reasons = quarantine(TASKS, version=VERSION, strict=False, asked_for=())
    assert {"game_of_life_halting", "coin_flip", "complex_arithmetic"} <= set(reasons)
    assert "pays garbage" in reasons["coin_flip"]
    assert "coin_flip" not in quarantine(TASKS, version=VERSION, strict=False, asked_for=["coin_flip"])


@pytest.mark.parametrize("strict", [True, False])
def test_another_release_was_not_audited(strict: bool) -> None:
    assert quarantine(TASKS, version="0.0.1", strict=strict, asked_for=()) == {}
