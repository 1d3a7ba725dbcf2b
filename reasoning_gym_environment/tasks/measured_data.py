"""What was measured once, and is shipped because it is too slow to find out at every start: the folder `data`.

    ladders.json           every task's name, category and levels                        benchmarks/facts
    task_facts.json        items of each task and level: distinct questions, length, time    benchmarks/facts
    held_out_draws.json    which items of the usual evaluation are held out                  benchmarks/facts
    audit_verdicts.json    what the audit found of each task's verifier                      the command audit
    garbage_floors.json    what each verifier pays to answers that show no work              benchmarks/facts
    farming.json           which wrong answers are still paid, and what one constant solves  audit --search
    published_*.json       results of published models, and their configs                    benchmarks/facts

Ladders are of one release of reasoning-gym as it was published: where a file of it differs they are found anew.

Facts and verdicts are of one release of reasoning-gym. A task that is not in them, such as a user's own, was not
measured: it has no facts, and is not kept out of training for its verifier.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"

LOW_ENTROPY = 300
"""A config with fewer different questions than this comes back to the same ones within an ordinary run."""
MIN_REPEATS = 2
"""One question seen twice may be chance."""

QUARANTINED = frozenset({"pays garbage", "refuses its oracle"})
"""Verdicts with which a task teaches the wrong thing."""


def packaged(name: str) -> Any:
    """The JSON document of that name."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))


# --- tasks and their levels


@dataclass(frozen=True)
class Rungs:
    """The configs of one task that can be used, easiest first, and where they come from.

    `source` is the `preferred` one unless that gives fewer than two. `left_out` has (number, reason) of those that
    cannot be used.
    """

    configs: Sequence[dict[str, Any]]
    source: str
    preferred: str
    left_out: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class KnownTask:
    """What ships of one task. `fields` are those of its config."""

    category: str
    fields: Sequence[str]
    _ladders: Mapping[str, Any] = field(repr=False)

    def rungs(self, ranges: str) -> Rungs | None:
        """The configs with these ranges, "level" or "cumulative", no value of them shared; None for a task without."""
        if ranges not in self._ladders:
            return None
        found = self._ladders[ranges]
        configs = [dict(zip(self.fields, map(decoded, config), strict=True)) for config in found["configs"]]
        left_out = [(number, reason) for number, reason in found["left_out"]]
        return Rungs(configs, found["source"], found["preferred"], left_out)


@functools.cache
def load_known_tasks(version: str, digest: str) -> Mapping[str, KnownTask]:
    """Task -> what ships of it; empty if that was made with another release than `version`, or with other files."""
    document = packaged("ladders.json")
    if (document["reasoning_gym_version"], document["digest"]) != (version, digest):
        return {}
    return {task: KnownTask(one["category"], one["fields"], one["ladders"]) for task, one in document["tasks"].items()}


def decoded(value: Any) -> Any:
    """A config's value from JSON, where {"of": class, "is": value} stands for what JSON has not."""
    if isinstance(value, list):
        return [decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"of", "is"}:
        return {name: decoded(one) for name, one in value.items()}
    content = decoded(value["is"])
    module, _, name = value["of"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    if isinstance(content, dict):
        return kind(**content)
    return kind.fromisoformat(content) if kind in (datetime.date, datetime.time) else kind(content)


# --- items


@dataclass(frozen=True)
class ItemFacts:
    """Of `draws` items of one config: `distinct` questions, median characters, median milliseconds to make one.

    `failed` items could not be made, or not in time.
    """

    draws: int
    distinct: int
    chars: int
    ms: float
    failed: int = 0

    @property
    def questions(self) -> float:
        """About how many different questions there are; infinite if none came twice.

        Of N equally likely ones, n draws show N (1 - (1 - 1/N)^n) on average (the occupancy problem), solved for N.
        Where some are likelier than others this is too low, which is the safe side.
        """
        if self.distinct >= self.draws:
            return math.inf
        low, high = float(max(self.distinct, 1)), 1e9
        for _ in range(60):
            middle = math.sqrt(low * high)
            expected = -middle * math.expm1(self.draws * math.log1p(-1.0 / middle)) if middle > 1.0 else 1.0
            low, high = (middle, high) if expected < self.distinct else (low, middle)
        return high

    @property
    def is_low_entropy(self) -> bool:
        return self.draws - self.distinct >= MIN_REPEATS and self.questions < LOW_ENTROPY


@dataclass(frozen=True)
class TaskFacts:
    """`default` at reasoning-gym's default config, `levels` along the ladder, easiest first."""

    default: ItemFacts
    levels: tuple[ItemFacts, ...] = field(default=())

    @property
    def low_entropy_levels(self) -> list[int]:
        return [index for index, facts in enumerate(self.levels) if facts.is_low_entropy]


def load_facts() -> tuple[str, dict[str, TaskFacts]]:
    """The version of reasoning-gym the facts are of, and the facts by task."""
    document = packaged("task_facts.json")
    return str(document["reasoning_gym_version"]), {task: _facts(entry) for task, entry in document["tasks"].items()}


def _facts(entry: Mapping[str, Any]) -> TaskFacts:
    return TaskFacts(ItemFacts(**entry["default"]), tuple(ItemFacts(**level) for level in entry["levels"]))


def low_entropy_note(tasks: Iterable[str], *, with_levels: bool) -> str:
    """One line on the served tasks that come back to the same few questions; "" if there are none.

    `with_levels`: whether items are drawn along the ladders; else the default configs count.
    """
    _, facts = load_facts()
    poor = [task for task in sorted(tasks) if task in facts and _is_poor(facts[task], with_levels)]
    if not poor:
        return ""
    weights = ",".join(f"{task}=0.2" for task in poor)
    return f"{', '.join(poor)} come back to the same few questions; to draw them less often: task_weights: '{weights}'"


def _is_poor(facts: TaskFacts, with_levels: bool) -> bool:
    if with_levels and facts.levels:
        return len(facts.low_entropy_levels) * 2 > len(facts.levels)
    return facts.default.is_low_entropy


def load_held_out_draws(version: str, seed: int) -> Mapping[str, Sequence[int]]:
    """Task -> the first evaluation items of this seed at its default config whose questions are held out, by index.

    Empty for another release or seed. One item in ten is held out: to know which saves making the nine others.
    """
    document = packaged("held_out_draws.json")
    is_of_these = (document["reasoning_gym_version"], document["eval_seed"]) == (version, seed)
    draws: dict[str, list[int]] = document["draws"] if is_of_these else {}
    return draws


# --- verifiers


@dataclass(frozen=True)
class Audited:
    """Verdicts on one task: `strict` with the checks of `verification: strict`, `native` without."""

    strict: str
    native: str


def load_verdicts(version: str) -> dict[str, Audited]:
    """Task -> verdicts; empty if the audit was of another release than `version`."""
    document = packaged("audit_verdicts.json")
    if document["reasoning_gym_version"] != version:
        return {}
    return {task: Audited(*verdicts) for task, verdicts in document["verdicts"].items()}


def quarantine(tasks: Iterable[str], *, version: str, strict: bool, asked_for: Collection[str]) -> dict[str, str]:
    """Tasks to leave out, with the reason; those asked for by their own name stay.

    By the audit's verdict on the verifier, and where a search found wrong answers that are paid in spite of the strict
    checks and of `partial_credit: baseline`.
    """
    verdicts, farmable = load_verdicts(version), load_farming(version).farmable
    reasons: dict[str, str] = {}
    for task in tasks:
        audited = verdicts.get(task)
        verdict = "" if audited is None else audited.strict if strict else audited.native
        if verdict in QUARANTINED:
            reasons[task] = f"the audit's verdict on its verifier is “{verdict}”"
        elif task in farmable:
            reasons[task] = f"wrong answers that need no work are paid: {farmable[task]}"
    return {
        task: f"quarantine: {reason}; include it by name to serve it"
        for task, reason in reasons.items()
        if task not in asked_for
    }


@dataclass(frozen=True)
class Constant:
    """An answer that is right on the `share` of a config's items, more than half of them."""

    config: Mapping[str, Any]
    answer: str
    share: float

    def __str__(self) -> str:
        return f"one answer solves it: {self.answer!r:.40} is right on {self.share:.0%} of its items"


@dataclass(frozen=True)
class Farming:
    """What a search for answers that need no work found, by task: the strategies, and answers that solve a config."""

    farmable: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Sequence[Constant]] = field(default_factory=dict)

    def constant(self, task: str, config: Mapping[str, Any]) -> Constant | None:
        """The one answer that solves most of what this config gives."""
        known = self.constants.get(task)
        plain = json.loads(json.dumps(dict(config), default=str)) if known else {}
        return next((one for one in known or () if one.config == plain), None)


@functools.cache
def load_farming(version: str) -> Farming:
    """Empty if the search was of another release than `version`."""
    document = packaged("farming.json")
    if document["reasoning_gym_version"] != version:
        return Farming()
    return Farming(
        farmable={task: str(found["strategy"]) for task, found in document["farmable"].items()},
        constants={
            task: [Constant(one["config"], one["answer"], one["share"]) for one in levels]
            for task, levels in document["constants"].items()
        },
    )


def load_floors() -> dict[str, float]:
    """Task -> the highest score under 0.1 that garbage got; a task that is missing pays nothing."""
    return {task: float(floor) for task, floor in packaged("garbage_floors.json")["floors"].items()}
