"""Answers of known worth: what is right, what is right for another item, and what is an answer to nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..utils.seeding import derive_random


class Kind(str, Enum):
    """What an answer is, by the way it was made. Right answers come first."""

    ORACLE = "oracle"
    TAGGED = "oracle in tags"
    PERIOD = "oracle and a period"
    BOXED = "oracle in \\boxed{}"
    OTHER = "another item's oracle"
    CONSTANT = "a constant"
    ENUMERATION = "an enumeration"
    GARBAGE = "garbage"
    NEAR_MISS = "a near miss"


WORTHLESS = (Kind.CONSTANT, Kind.ENUMERATION, Kind.GARBAGE)
"""Answers that owe nothing to the item. Where one happens to be the oracle answer it is not tried."""

CONSTANTS = ("0", "1", "-1", "2", "10", "100", "yes", "no", "True", "False", "None", "A", "a", "[]", "{}", "nan", "inf")
ENUMERATIONS = (
    " ".join(str(number) for number in range(21)),
    ", ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "abcdefghijklmnopqrstuvwxyz",
    "yes no True False",
)
GARBAGE = (
    "I do not know.",
    "x",
    "?",
    "-",
    "The answer is left to the reader as an exercise.",
    "((((",
    "lorem ipsum\ndolor",
)


@dataclass(frozen=True)
class Probe:
    """One answer to try on the item number `item`; `label` is the same for the same trick on every item."""

    item: int
    kind: Kind
    answer: str
    label: str = ""


def build_probes(task: str, entries: Sequence[Mapping[str, Any]], oracles: Sequence[str | None]) -> list[Probe]:
    """Every probe for these items of a task; `oracles` are their right answers, None where none is known."""
    rng = derive_random(0, "audit", task)
    everything = ", ".join(dict.fromkeys(oracle for oracle in oracles if oracle))
    probes: list[Probe] = []
    for item, (entry, oracle) in enumerate(zip(entries, oracles, strict=True)):
        probes += [Probe(item, kind, text) for kind, text in _right(oracle)]
        others = dict.fromkeys(other for other in oracles if other and not same(other, oracle))
        probes += [Probe(item, Kind.OTHER, other) for other in others]
        worthless = [
            *((Kind.CONSTANT, text, text) for text in CONSTANTS),
            *((Kind.ENUMERATION, text, text) for text in ENUMERATIONS),
            (Kind.ENUMERATION, everything, "<every oracle answer>"),
            *((Kind.GARBAGE, text, text) for text in GARBAGE),
            (Kind.GARBAGE, str(entry["question"]), "<the question itself>"),
        ]
        probes += [Probe(item, *worth) for worth in worthless if worth[1] and not same(worth[1], oracle)]
        if oracle:
            probes += [Probe(item, Kind.NEAR_MISS, text) for text in near_misses(oracle, rng)]
    return probes


def _right(oracle: str | None) -> list[tuple[Kind, str]]:
    if not oracle:
        return []
    return [
        (Kind.ORACLE, oracle),
        (Kind.TAGGED, f"<answer>{oracle}</answer>"),
        (Kind.PERIOD, f"{oracle}."),
        (Kind.BOXED, f"\\boxed{{{oracle}}}"),
    ]


def same(text: str, oracle: str | None) -> bool:
    """Whether both say the same: equal but for case and blanks, or equal as numbers."""
    if oracle is None:
        return False
    if "".join(text.lower().split()) == "".join(oracle.lower().split()):
        return True
    try:
        return float(text) == float(oracle)
    except ValueError:
        return False


def near_misses(oracle: str, rng: random.Random) -> list[str]:
    """The oracle answer with one character changed, doubled, or its second half missing."""
    at = rng.randrange(len(oracle))
    other = rng.choice([character for character in "0123456789abcx" if character != oracle[at]])
    changed = f"{oracle[:at]}{other}{oracle[at + 1 :]}"
    candidates = (changed, f"{oracle} {oracle}", oracle[: len(oracle) // 2].strip())
    return [text for text in candidates if text and not same(text, oracle)]
