"""Files -> sources: results of `evaluate`, dumps of training, groups of `process`; told apart line by line.

Groups become samples like those of an evaluation, so that everything after this reads one kind of rollout. A line that
is none of the three is counted and left out. At the end: the rollouts that the page lets a person browse, chosen
evenly, cut to size, as JSON that cannot act.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ..errors import EnvironmentSetupError
from ..evaluation.questions import question_digest
from ..records import Outcome, has_signal
from ..scoring.scorer import extract_answer, split_thinking
from ..storage.json_lines import DUMP_NAME, ROLLOUTS, BrokenLineError, as_dumped, is_number, read_object

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"
UNSCORED = frozenset(outcome.value for outcome in Outcome if not outcome.is_scored)
SUFFIXES = (".jsonl", ".jsonl.part")
"""What is read of a folder: finished files, and those that a run is writing or has left."""
PROCESS = "process"
"""The kind of a file of `process`, beside the two of dumps."""

ASKED = {"temperature": "temperature", "n": "completions a question", "max_new_tokens": "tokens at most"}
GRADED = {"verification": "verification", "grading": "rule", "scoring_timeout_s": "seconds for a verifier"}
"""Names in an evaluation's parameters, with those for a person: how its completions were sampled, and graded."""


@dataclass(frozen=True)
class Evaluation:
    """Results of `evaluate`. `parameters` is how it asked and graded, from metrics.json (empty without one)."""

    name: str
    model: str
    parameters: Mapping[str, Any]
    samples: list[dict[str, Any]]
    date: str = ""
    """When its file was last written, as `_date` shows it."""
    file: Path = Path()

    @property
    def manifest(self) -> str:
        """The hash of its questions; "" if its samples have none or several."""
        found = {str(sample.get("manifest") or "") for sample in self.samples}
        return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True)
class Group:
    """One dumped group; its rollouts have the keys of evaluation samples."""

    task: str
    category: str
    index: int
    level: int | None
    rewards: tuple[float, ...]
    rollouts: tuple[dict[str, Any], ...]
    staleness: int | None = None
    """Steps of the trainer from the start of its sampling until it was scored; None where that is not known."""

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards, [bool(rollout.get("mask_reason")) for rollout in self.rollouts])


@dataclass
class Run:
    """What the dumps of one run share, or one file of groups; `kinds` are ROLLOUTS, FAILED_rollouts and PROCESS."""

    label: str
    written: float
    """When its first file was last written, in seconds since the epoch."""
    kinds: set[str] = field(default_factory=set)
    groups: list[Group] = field(default_factory=list)
    """In the order of their items."""

    @property
    def name(self) -> str:
        return f"{self.label}, {_date(self.written)}"

    @property
    def is_process(self) -> bool:
        return self.kinds == {PROCESS}


@dataclass(frozen=True)
class Sources:
    """Everything that was read; `malformed` counts the lines of each file that are left out."""

    evaluations: list[Evaluation] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    malformed: Counter[str] = field(default_factory=Counter)

    @property
    def groups(self) -> list[Group]:
        return [group for run in self.runs for group in run.groups]


def load(paths: Sequence[Path]) -> Sources:
    """Read files, and folders with all below them, each file once.

    Raises EnvironmentSetupError for a path that is missing or holds nothing to show.
    """
    sources, runs = Sources(), dict[str, Run]()
    for file in {file.resolve(): file for path in paths for file in files_of(path)}.values():
        try:
            _load_file(file, sources, runs)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read {file}: {error}") from error
    for run in sorted(runs.values(), key=lambda run: run.name):
        run.groups.sort(key=lambda group: group.index)
        sources.runs.append(run)
    for name, count in sources.malformed.items():
        logger.warning("%d lines of %s are not what a result or dump holds; they are left out.", count, name)
    if not sources.evaluations and not sources.runs:
        raise EnvironmentSetupError("There is nothing to show: the files hold neither evaluation samples nor groups.")
    return sources


def files_of(path: Path) -> list[Path]:
    """The files that may hold something to show: the one named, or those below a folder, hidden folders left out.

    Raises EnvironmentSetupError for a path that is missing, and for a folder without any.
    """
    if path.is_file():
        return [path.with_name("samples.jsonl") if path.name == "metrics.json" else path]
    if not path.is_dir():
        raise EnvironmentSetupError(f"{path} does not exist: expected a folder of results, or a .jsonl file.")
    found = []
    for root, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in sorted(names) if name.endswith(SUFFIXES)]
    if not found:
        raise EnvironmentSetupError(
            f"{path} and the folders below it have no .jsonl files: set env.data_dir_to_save_evals or "
            "env.dump_rollouts."
        )
    return found


def _load_file(path: Path, sources: Sources, runs: dict[str, Run]) -> None:
    samples: list[dict[str, Any]] = []
    unfinished: dict[str, Any] = {}
    dumped = DUMP_NAME.fullmatch(path.name)
    key, kind = (dumped["run"], dumped["kind"]) if dumped else (str(path.resolve()), ROLLOUTS)
    label = f"{path.resolve().parent.name} {key[:8]}" if dumped else path.stem
    written = path.stat().st_mtime
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                record = read_object(line)
                if "question" in record:
                    samples.append(_checked(record))
                elif isinstance(record.get("evaluation"), dict):
                    # The first line of the answers that an interrupted evaluation has so far.
                    unfinished = record["evaluation"]
                else:
                    group = group_in(record, number)
                    run = runs.setdefault(key, Run(label, written))
                    run.groups.append(group)
                    run.kinds.add(kind if "rollouts" in record else PROCESS)
                    run.written = min(run.written, written)
            except BrokenLineError:
                sources.malformed[str(path)] += 1
    if samples:
        taken = {evaluation.name for evaluation in sources.evaluations}
        sources.evaluations.append(_evaluation(path.resolve(), samples, unfinished, _date(written), taken))


def _evaluation(
    path: Path, samples: list[dict[str, Any]], unfinished: Mapping[str, Any], date: str, taken: set[str]
) -> Evaluation:
    """An evaluation under a name that none before it has."""
    model, parameters = str(unfinished.get("model_name") or ""), unfinished
    if not unfinished:
        model, parameters = _described(path.with_name("metrics.json"))
    name = path.parent.name if unfinished or path.name == "samples.jsonl" else path.stem
    name += " (unfinished)" if unfinished else ""
    longer = (name, f"{path.parent.parent.name}/{name}", f"{name}, {date}", str(path))
    return Evaluation(next(one for one in longer if one not in taken), model, parameters, samples, date, path)


def _described(path: Path) -> tuple[str, dict[str, Any]]:
    """Model and parameters from a metrics.json; empty if there is none."""
    try:
        general = json.loads(path.read_text(encoding="utf-8"))["config_general"]
        return str(general.get("model_name") or ""), dict(general.get("generation_parameters") or {})
    except FileNotFoundError:
        return "", {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentSetupError(f"{path} is no metrics.json of `evaluate` ({error!r}).") from error


def _date(seconds: float) -> str:
    """A time since the epoch, for a person."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %Y %H:%M UTC").lstrip("0")


# --- lines


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample, if what is counted of it is there. Raises BrokenLineError."""
    numbers = (sample.get("score"), sample.get("native_score"), sample.get("num_completion_tokens"))
    if not isinstance(sample.get("task"), str) or not all(one is None or is_number(one) for one in numbers):
        raise BrokenLineError("no sample of `evaluate`")
    return sample


def group_in(record: dict[str, Any], number: int) -> Group:
    """A group of a dump, or of a file of `process`, where old lines know neither task nor outcome.

    Raises BrokenLineError.
    """
    record = as_dumped(record)
    index, began, done = (_whole(record.get(name)) for name in ("index", "sampled_at_step", "scored_at_step"))
    shared: dict[str, Any] = {
        "task": record["item_id"],
        "category": str(record.get("category", UNKNOWN)),
        "index": number if index is None else index,
        "level": _whole(record.get("level")),
    }
    about = {"seed": _whole(record.get("seed")), "gold_answer": record.get("expected_answer")}
    return Group(
        **shared,
        rewards=tuple(float(rollout["score"]) for rollout in record["rollouts"]),
        rollouts=tuple({**shared, **about, **_sample(rollout)} for rollout in record["rollouts"]),
        staleness=None if began is None or done is None or done < began else done - began,
    )


def _sample(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout with the keys of an evaluation's sample; a score that training could not give is None here too."""
    question, outcome = str(rollout["conversation"][-2]["content"]), str(rollout.get("outcome", UNKNOWN))
    numbers = {name: rollout.get(name) for name in ("verifier_score", "native_score", "num_completion_tokens")}
    worth, native, tokens = (value if is_number(value) else None for value in numbers.values())
    is_unscored = outcome in UNSCORED
    return {
        "messages": list(rollout["conversation"]),
        "question": question,
        "question_digest": question_digest(question),
        "score": None if is_unscored else rollout["score"] if worth is None else worth,
        "native_score": native,
        "reward": rollout["score"],
        "outcome": outcome,
        "unscored_reason": outcome if is_unscored else None,
        "num_completion_tokens": None if tokens is None else int(tokens),
        "model_parsed": rollout.get("answer"),
        **{name: rollout.get(name) for name in ("format_failure", "finish_reason", "mask_reason")},
    }


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and is_number(value) else None


# --- the rollouts to browse


TEXT_LIMIT = 12_000
"""Characters shown of one question, thinking, reply or answer."""
TOTAL_LIMIT = 20_000_000
"""Characters of all rollouts together."""

_THINK_EDGES = re.compile(r"\A\s*<think>|</think>\s*\Z", re.IGNORECASE)


def select(sources: Sources, limit: int) -> tuple[list[dict[str, Any]], int]:
    """At most `limit` rollouts, in turn one of every source, task and outcome, and how many there are in all."""
    queues: dict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]] = {}
    for source, rollout in _all(sources):
        kind = (source, str(rollout["task"]), str(rollout.get("outcome")))
        queues.setdefault(kind, []).append((source, rollout))
    kept: list[dict[str, Any]] = []
    size = 0
    for source, rollout in filter(None, chain.from_iterable(zip_longest(*queues.values()))):
        record = _record(source, rollout)
        size += sum(len(value) for value in record.values() if isinstance(value, str))
        if len(kept) >= limit or size > TOTAL_LIMIT:
            break
        kept.append(record)
    kept.sort(key=lambda record: (record["source"], record["task"], str(record["item"])))
    return kept, sum(map(len, queues.values()))


def as_inert_json(value: Any) -> str:
    """JSON in ASCII without `<`, `>` and `&`: nothing in it can end a script element or start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _all(sources: Sources) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for evaluation in sources.evaluations:
        yield from ((evaluation.name, sample) for sample in evaluation.samples)
    for run in sources.runs:
        yield from ((run.name, rollout) for group in run.groups for rollout in group.rollouts)


def _record(source: str, rollout: Mapping[str, Any]) -> dict[str, Any]:
    thinking, reply = split_thinking(_reply(rollout))
    return {
        "source": source,
        "task": str(rollout["task"]),
        "category": str(rollout.get("category") or ""),
        "item": rollout["index"] if isinstance(rollout.get("index"), int) else "",
        "level": rollout["level"] if isinstance(rollout.get("level"), int) else None,
        "question": _cut(rollout.get("question")),
        "thinking": _cut(_THINK_EDGES.sub("", thinking).strip()),
        "reply": _cut(reply).strip(),
        "answer": _cut(rollout.get("model_parsed")),
        "expected": _cut(rollout.get("gold_answer")),
        "score": None if rollout.get("score") is None else round(float(rollout["score"]), 4),
        "outcome": str(rollout.get("outcome") or ""),
        "detail": str(rollout.get("format_failure") or rollout.get("unscored_reason") or ""),
        "finish": str(rollout.get("finish_reason") or ""),
        "tokens": rollout.get("num_completion_tokens"),
    }


def _reply(rollout: Mapping[str, Any]) -> str:
    messages = rollout.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return str(last.get("content", "")) if isinstance(last, Mapping) and last.get("role") == "assistant" else ""


def answer_of(rollout: Mapping[str, Any]) -> str | None:
    """The answer that was read in a rollout; where a line does not say, as old ones do not, the one in its text."""
    answer = rollout.get("model_parsed")
    if answer is None and not rollout.get("format_failure"):
        return extract_answer(_reply(rollout)).answer
    return None if answer is None else str(answer)


def _cut(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]} … [{len(text) - TEXT_LIMIT} characters more]"
