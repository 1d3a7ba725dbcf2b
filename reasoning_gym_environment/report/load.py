"""Reads the files of a report: results of `evaluate`, dumps of training, and groups of `process`.

Every line shows which of these it is. Groups become samples like the samples of an evaluation, so that the rest of the
report handles one kind of rollout. The report counts malformed lines and skips them. Dumps can be larger than the
memory, so the texts of a rollout stay in its file until the page needs them: `place` says where they are. The last
section of this module selects the rollouts for the page, shortens them, and encodes them as JSON that cannot run as
script.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..evaluation.runner import ANSWERS, METRICS, SAMPLES
from ..records import Outcome, has_signal
from ..sampling.seeds import question_digest
from ..scoring.extraction import extract_answer, split_thinking
from ..storage.json_lines import (
    DUMP_NAME,
    ROLLOUTS,
    BrokenLineError,
    as_dumped,
    is_number,
    read_object,
)

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"

UNSCORED = frozenset(outcome.value for outcome in Outcome if not outcome.is_scored)
"""Outcomes of rollouts without a score."""

SUFFIXES = (".jsonl", ".jsonl.part")
"""The files of a folder that are read. A `.part` is a file that a run is writing or has left unfinished."""

PROCESS = "process"
"""The kind of a file of `process`. Dumps have the two kinds of json_lines.py."""

SAMPLED = {
    "temperature": "temperature",
    "n": "completions a question",
    "max_new_tokens": "tokens at most",
}
"""Parameters of an evaluation that say how its completions were sampled, with labels for readers."""

GRADED = {
    "verification": "verification",
    "grading": "rule",
}
"""Parameters of an evaluation that say how its completions were graded, with labels for readers."""

RELEASES = {
    "reasoning_gym_environment_version": "reasoning_gym_environment",
    "reasoning_gym_version": "reasoning-gym",
}
"""Parameters of an evaluation that say which releases graded its completions, with labels for readers."""


@dataclass(frozen=True)
class Place:
    """Where the texts of a rollout are: its number in the line that starts at this byte of the file."""

    file: Path
    start: int
    number: int = 0


@dataclass(frozen=True)
class Evaluation:
    """Results of `evaluate`. `parameters` come from metrics.json and say how it sampled and graded."""

    name: str
    model: str
    parameters: Mapping[str, Any]
    samples: list[dict[str, Any]]
    date: str = ""
    """Time of the last change of its file, as text."""
    file: Path = Path()

    @property
    def manifest(self) -> str:
        """The hash of its questions, or "" if its samples have no hash or several hashes."""
        manifests = {str(sample.get("manifest") or "") for sample in self.samples}
        return manifests.pop() if len(manifests) == 1 else ""


@dataclass(frozen=True)
class DumpedGroup:
    """One dumped group. Its rollouts have the keys of evaluation samples.

    In a report they have a `place` instead of their texts, `messages` and `question`.
    """

    task: str
    category: str
    index: int
    level: int | None
    rewards: tuple[float, ...]
    rollouts: tuple[dict[str, Any], ...]
    staleness: int | None = None
    """Steps of the trainer from the start of sampling to the score, or None if unknown."""

    @property
    def has_signal(self) -> bool:
        masked = [bool(rollout.get("mask_reason")) for rollout in self.rollouts]
        return has_signal(self.rewards, masked)


@dataclass
class Run:
    """The dumps of one run, or one file of `process`. `kinds` are from ROLLOUTS, FAILED_rollouts and PROCESS."""

    label: str
    written: float
    """Time of the last change of its oldest file, in seconds since the epoch."""
    kinds: set[str] = field(default_factory=set)
    groups: list[DumpedGroup] = field(default_factory=list)
    """In the order of the items."""

    @property
    def name(self) -> str:
        return f"{self.label}, {_date(self.written)}"

    @property
    def is_process(self) -> bool:
        return self.kinds == {PROCESS}


@dataclass(frozen=True)
class Sources:
    """The content of all files. `malformed` counts the skipped lines by file."""

    evaluations: list[Evaluation] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    malformed: Counter[str] = field(default_factory=Counter)

    @property
    def groups(self) -> list[DumpedGroup]:
        return list(chain.from_iterable(run.groups for run in self.runs))


def load(paths: Sequence[Path]) -> Sources:
    """Read files, and all files below folders, each once.

    Raises EnvironmentSetupError for a path that does not exist, and if the files have nothing to show.
    """
    sources = Sources()
    runs: dict[str, Run] = {}
    files: dict[Path, Path] = {}
    for path in paths:
        for file in files_of(path):
            files[file.resolve()] = file
    for file in files.values():
        try:
            _load_file(file, sources, runs)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read {file}: {error}") from error
    for run in sorted(runs.values(), key=lambda run: run.name):
        run.groups.sort(key=lambda group: group.index)
        sources.runs.append(run)
    for name, count in sources.malformed.items():
        logger.warning("Skipping %d lines of %s that are neither results nor groups.", count, name)
    if not sources.evaluations and not sources.runs:
        raise EnvironmentSetupError("There is nothing to show: the files hold neither evaluation samples nor groups.")
    return sources


def files_of(path: Path) -> list[Path]:
    """The file itself, or the files below a folder that may have something to show. Hidden folders are skipped.

    The answers of an evaluation are skipped if its results are beside them: they are completions of the same questions.

    Raises EnvironmentSetupError for a path that does not exist, and for a folder without such files. Raises OSError for
    a folder that cannot be read.
    """
    if path.is_file():
        return [path.with_name(SAMPLES) if path.name == METRICS else path]
    if not path.is_dir():
        raise EnvironmentSetupError(f"{path} does not exist: expected a folder of results, or a .jsonl file.")
    files = []
    for root, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if {SAMPLES, METRICS} <= set(names):
            names = [name for name in names if name != ANSWERS]
        for name in sorted(names):
            if name.endswith(SUFFIXES):
                files.append(Path(root, name))
    if not files:
        raise EnvironmentSetupError(
            f"{path} and the folders below it have no .jsonl files: set env.data_dir_to_save_evals or "
            "env.dump_rollouts."
        )
    return files


def _raise(error: OSError) -> NoReturn:
    raise error


def _load_file(path: Path, sources: Sources, runs: dict[str, Run]) -> None:
    """Add the content of a file to `sources`, and its groups to their run in `runs`."""
    resolved = path.resolve()
    changed = path.stat().st_mtime
    dump = DUMP_NAME.fullmatch(path.name)
    if dump:
        run_id = dump["run"]
        kind = dump["kind"]
        label = f"{resolved.parent.name} {run_id[:8]}"
    else:
        run_id = str(resolved)
        kind = ROLLOUTS
        labels = [path.stem, f"{resolved.parent.name}/{path.stem}", run_id]
        label = _first_free(labels, [run.label for run in runs.values()])
    content = read_file(path, kind)
    if content.malformed:
        sources.malformed[str(path)] = content.malformed
    if content.groups:
        run = runs.setdefault(run_id, Run(label, changed))
        run.groups += content.groups
        run.kinds |= content.kinds
        run.written = min(run.written, changed)
    if content.samples:
        sources.evaluations.append(_evaluation(resolved, content, _date(changed), sources.evaluations))


@dataclass
class FileContent:
    """The lines of one file. `unfinished` is the header of an interrupted evaluation, or empty."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    groups: list[DumpedGroup] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    unfinished: Mapping[str, Any] = field(default_factory=dict)
    malformed: int = 0


def read_file(path: Path, kind: str) -> FileContent:
    """Read all lines of a file. Its groups have this `kind`, unless `process` wrote them."""
    content = FileContent()
    end = 0
    with path.open("rb") as file:
        lines = tqdm(file, f"read {path.name}", unit="line", leave=False, delay=1, disable=None)
        for number, line in enumerate(lines):
            start = end
            end += len(line)
            if not line.strip():
                continue
            try:
                record = read_object(line)
                if "question" in record:
                    content.samples.append(_without_texts(_checked(record), Place(path, start)))
                elif isinstance(record.get("evaluation"), dict):
                    content.unfinished = record["evaluation"]
                else:
                    group = group_in(record, number)
                    rollouts = [
                        _without_texts(rollout, Place(path, start, place))
                        for place, rollout in enumerate(group.rollouts)
                    ]
                    content.groups.append(replace(group, rollouts=tuple(rollouts)))
                    content.kinds.add(kind if "rollouts" in record else PROCESS)
            except BrokenLineError:
                content.malformed += 1
    return content


def _without_texts(rollout: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The rollout with its place instead of its texts, and with its answer, which old files do not have."""
    answer = rollout.get("model_parsed")
    if answer is None and not rollout.get("format_failure"):
        answer = extract_answer(_reply(rollout)).answer
    kept = {name: value for name, value in rollout.items() if name not in ("messages", "question")}
    return {**kept, "model_parsed": None if answer is None else str(answer), "place": place}


def _evaluation(path: Path, content: FileContent, date: str, others: Sequence[Evaluation]) -> Evaluation:
    """The evaluation in this file. Its name differs from the names of all others."""
    if content.unfinished:
        model = str(content.unfinished.get("model_name") or "")
        parameters = content.unfinished
        name = f"{path.parent.name} (unfinished)"
    else:
        model, parameters = _described(path.with_name(METRICS))
        name = path.parent.name if path.name == SAMPLES else path.stem
    longer_names = [
        name,
        f"{path.parent.parent.name}/{name}",
        f"{name}, {date}",
        str(path),
    ]
    free_name = _first_free(longer_names, [evaluation.name for evaluation in others])
    return Evaluation(free_name, model, parameters, content.samples, date, path)


def _first_free(names: Sequence[str], taken: Collection[str]) -> str:
    return next(name for name in names if name not in taken)


def _described(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Model and parameters from a metrics.json. Both are empty if the file does not exist."""
    try:
        general = json.loads(path.read_text(encoding="utf-8"))["config_general"]
        model = str(general.get("model_name") or "")
        return model, dict(general.get("generation_parameters") or {})
    except FileNotFoundError:
        return "", {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentSetupError(f"Expected the metrics.json of an evaluation in {path}: {error!r}.") from error


def _date(seconds: float) -> str:
    """A time since the epoch as text."""
    date = datetime.fromtimestamp(seconds, UTC)
    return date.strftime("%d %b %Y %H:%M UTC").lstrip("0")


# --- lines


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself. Raises BrokenLineError if the values that the report counts are missing or malformed."""
    # A row of a dataset has a question too, but no score. An unscored sample has the score None.
    if not isinstance(sample.get("task"), str) or "score" not in sample:
        raise BrokenLineError("no sample of `evaluate`")
    for name in ("score", "native_score", "num_completion_tokens"):
        value = sample.get(name)
        if value is not None and not is_number(value):
            raise BrokenLineError("no sample of `evaluate`")
    # All statistics are of scores in this range. Other environments of Atropos have other scores.
    if not 0.0 <= (sample["score"] or 0.0) <= 1.0:
        raise BrokenLineError("no sample of `evaluate`")
    return sample


def group_in(record: dict[str, Any], number: int) -> DumpedGroup:
    """The group in a line of a dump or of a file of `process`. A line that Atropos wrote has neither task nor outcome.

    Raises BrokenLineError.
    """
    record = as_dumped(record)
    index = _whole(record.get("index"))
    shared: dict[str, Any] = {
        "task": record["item_id"],
        "category": str(record.get("category", UNKNOWN)),
        "index": number if index is None else index,
        "level": _whole(record.get("level")),
    }
    item = {
        **shared,
        "seed": _whole(record.get("seed")),
        "gold_answer": record.get("expected_answer"),
    }
    return DumpedGroup(
        **shared,
        rewards=tuple(float(rollout["score"]) for rollout in record["rollouts"]),
        rollouts=tuple({**item, **_sample(rollout)} for rollout in record["rollouts"]),
        staleness=_staleness(record),
    )


def _staleness(record: Mapping[str, Any]) -> int | None:
    sampled = _whole(record.get("sampled_at_step"))
    scored = _whole(record.get("scored_at_step"))
    if sampled is None or scored is None or scored < sampled:
        return None
    return scored - sampled


def _sample(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout with the keys of an evaluation's sample. A rollout that training could not score has no score here."""
    question = str(rollout["conversation"][-2]["content"])
    outcome = str(rollout.get("outcome", UNKNOWN))
    tokens = _number(rollout.get("num_completion_tokens"))
    score = _number(rollout.get("verifier_score"))
    if score is None:
        score = rollout["score"]
    is_unscored = outcome in UNSCORED
    return {
        "messages": list(rollout["conversation"]),
        "question": question,
        "question_digest": question_digest(question),
        "score": None if is_unscored else score,
        "native_score": _number(rollout.get("native_score")),
        "reward": rollout["score"],
        "outcome": outcome,
        "unscored_reason": outcome if is_unscored else None,
        "num_completion_tokens": None if tokens is None else int(tokens),
        "model_parsed": rollout.get("answer"),
        "format_failure": rollout.get("format_failure"),
        "finish_reason": rollout.get("finish_reason"),
        "mask_reason": rollout.get("mask_reason"),
    }


def _number(value: Any) -> float | None:
    return value if is_number(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and is_number(value) else None


# --- the rollouts on the page


TEXT_LIMIT = 12_000
"""Maximum number of characters of one question, thinking, reply or answer on the page."""

TOTAL_LIMIT = 20_000_000
"""Maximum number of characters of all rollouts together."""

_THINK_EDGES = re.compile(r"\A\s*<think>|</think>\s*\Z", re.IGNORECASE)


def select(sources: Sources, limit: int) -> tuple[list[dict[str, Any]], int]:
    """At most `limit` rollouts, taken in turn from each source, task and outcome, and the number of all rollouts."""
    queues: dict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]] = {}
    for source, rollout in _all(sources):
        kind = (source, str(rollout["task"]), str(rollout.get("outcome")))
        queues.setdefault(kind, []).append((source, rollout))
    kept: list[dict[str, Any]] = []
    size = 0
    in_turn = chain.from_iterable(zip_longest(*queues.values()))
    for source, rollout in filter(None, in_turn):
        record = _record(source, rollout)
        texts = [value for value in record.values() if isinstance(value, str)]
        size += sum(map(len, texts))
        if len(kept) >= limit or size > TOTAL_LIMIT:
            break
        kept.append(record)
    kept.sort(key=lambda record: (record["source"], record["task"], str(record["item"])))
    return kept, sum(map(len, queues.values()))


def as_inert_json(value: Any) -> str:
    """JSON in ASCII without `<`, `>` and `&`, so that it can neither end a script element nor start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _all(sources: Sources) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All rollouts, each with the name of its source."""
    for evaluation in sources.evaluations:
        for sample in evaluation.samples:
            yield evaluation.name, sample
    for run in sources.runs:
        for group in run.groups:
            for rollout in group.rollouts:
                yield run.name, rollout


def _record(source: str, rollout: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a rollout that the script of the page shows. Raises OSError if its file has gone."""
    texts = _read_texts(rollout["place"])
    thinking, reply = split_thinking(_reply(texts))
    index = rollout.get("index")
    level = rollout.get("level")
    score = rollout.get("score")
    return {
        "source": source,
        "task": str(rollout["task"]),
        "category": str(rollout.get("category") or ""),
        "item": index if isinstance(index, int) else "",
        "level": level if isinstance(level, int) else None,
        "question": _cut(texts.get("question")),
        "thinking": _cut(_THINK_EDGES.sub("", thinking).strip()),
        "reply": _cut(reply).strip(),
        "answer": _cut(rollout.get("model_parsed")),
        "expected": _cut(rollout.get("gold_answer")),
        "score": None if score is None else round(float(score), 4),
        "outcome": str(rollout.get("outcome") or ""),
        "detail": str(rollout.get("format_failure") or rollout.get("unscored_reason") or ""),
        "finish": str(rollout.get("finish_reason") or ""),
        "tokens": rollout.get("num_completion_tokens"),
    }


def _read_texts(place: Place) -> Mapping[str, Any]:
    """The rollout as its file has it."""
    with place.file.open("rb") as file:
        file.seek(place.start)
        record = read_object(file.readline())
    return record if "question" in record else group_in(record, 0).rollouts[place.number]


def _reply(rollout: Mapping[str, Any]) -> str:
    """The text of the model, or "" for a sample without a reply."""
    messages = rollout.get("messages")
    if not isinstance(messages, list) or not messages:
        return ""
    last = messages[-1]
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        return ""
    return str(last.get("content", ""))


def _cut(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    more = len(text) - TEXT_LIMIT
    if more <= 0:
        return text
    return f"{text[:TEXT_LIMIT]} … [{more} characters more]"
