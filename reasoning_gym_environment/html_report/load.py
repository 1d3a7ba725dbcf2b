"""Reads the files of a report: results of `evaluate`, dumps of training, and groups of `process`.

Every line shows which of these it is. Groups become samples like the samples of an evaluation, so that the rest of the
report handles one kind of rollout. The report counts malformed lines and skips them. Dumps can be larger than the
memory, so the texts of a rollout stay in its file until the page needs them: `place` says where they are.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..evaluation.runner import METRICS, SAMPLES
from ..storage.append_log import BrokenLineError, read_object
from ..storage.lines import DUMP_NAME, ROLLOUTS, DumpedGroup, files_of, group_in

logger = logging.getLogger(__name__)

PROCESS = "process"
"""The kind of a file of `process`. Dumps have the two kinds of storage/lines.py."""

STEP_FOLDER = re.compile(r"step-(?P<step>\d+)")
"""Name of a folder in which `serve` leaves an evaluation during training."""

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

AVERAGED = ("native_score", "num_completion_tokens", "level", "reward", "has_signal", "staleness")
"""The numbers of a sample beside its score."""

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
    file: Path

    @property
    def folder(self) -> Path:
        """The folder of all evaluations of a run."""
        return self.file.parent.parent

    @property
    def step(self) -> int | None:
        """The trainer's step in the name of its folder, as `serve` writes it, or None."""
        found = STEP_FOLDER.fullmatch(self.file.parent.name)
        return int(found["step"]) if found else None

    @property
    def manifest(self) -> str:
        """The hash of its questions, or "" if its samples have no hash or several hashes."""
        manifests = {str(sample.get("manifest") or "") for sample in self.samples}
        return manifests.pop() if len(manifests) == 1 else ""


@dataclass
class LoadedRun:
    """The dumps of one run, or one file of `process`. `kinds` are from ROLLOUTS, FAILED_rollouts and PROCESS."""

    run_id: str
    name: str
    kinds: set[str] = field(default_factory=set)
    groups: list[DumpedGroup] = field(default_factory=list)
    """In the order in which they were written, and of their items."""

    @property
    def is_process(self) -> bool:
        return self.kinds == {PROCESS}


@dataclass(frozen=True)
class Sources:
    """The content of all files. `malformed` counts the skipped lines by file."""

    evaluations: list[Evaluation] = field(default_factory=list)
    runs: list[LoadedRun] = field(default_factory=list)
    malformed: Counter[str] = field(default_factory=Counter)


def load(paths: Sequence[Path]) -> Sources:
    """Read files, and all files below folders, each once.

    Raises EnvironmentSetupError for a path that does not exist, and if the files have nothing to show.
    """
    sources = Sources()
    files: dict[Path, Path] = {}
    for path in paths:
        for file in files_of(path):
            files[file.resolve()] = file
    for file in files.values():
        try:
            _load_file(file, sources)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read {file}: {error}") from error
    sources.runs.sort(key=lambda run: run.name)
    for run in sources.runs:
        run.groups.sort(key=lambda group: (group.written_at or 0.0, group.index))
    folders = [evaluation.folder for evaluation in sources.evaluations]
    sources.evaluations.sort(key=lambda evaluation: (folders.index(evaluation.folder), evaluation.step or 0))
    for name, count in sources.malformed.items():
        logger.warning("Skipping %d lines of %s that are neither results nor groups.", count, name)
    if not sources.evaluations and not sources.runs:
        raise EnvironmentSetupError("There is nothing to show: the files hold neither evaluation samples nor groups.")
    return sources


def all_inputs(paths: Sequence[Path]) -> list[Path]:
    """The files that `load` may read. Raises EnvironmentSetupError for a path that does not exist."""
    files: list[Path] = []
    for path in paths:
        files += files_of(path)
    return files + [file.with_name(METRICS) for file in files]


def _load_file(path: Path, sources: Sources) -> None:
    """Add the samples of a file to `sources`, and its groups to their run."""
    resolved = path.resolve()
    dump = DUMP_NAME.fullmatch(path.name)
    groups: list[DumpedGroup] = []
    kinds = set()
    samples = []
    for place, record in _records(path, sources.malformed):
        try:
            if "question" in record:
                samples.append(_without_texts(_checked(record), place))
            elif "evaluation" not in record:
                groups.append(_group(record, len(groups), place))
                kind = dump["kind"] if dump else ROLLOUTS
                kinds.add(kind if "rollouts" in record else PROCESS)
        except BrokenLineError:
            sources.malformed[str(path)] += 1
    if groups:
        run_id = dump["run"] if dump else str(resolved)
        run = next((run for run in sources.runs if run.run_id == run_id), None)
        if run is None:
            name = free_name(resolved.with_suffix(""), {run.name for run in sources.runs})
            run = LoadedRun(run_id, f"{resolved.parent.name} {run_id[:8]}" if dump else name)
            sources.runs.append(run)
        run.groups += groups
        run.kinds |= kinds
    if samples:
        model, parameters = _described(path.with_name(METRICS))
        source = resolved.parent if path.name == SAMPLES else resolved.with_suffix("")
        name = free_name(source, {evaluation.name for evaluation in sources.evaluations})
        sources.evaluations.append(Evaluation(name, model, parameters, samples, resolved))


def free_name(path: Path, taken: set[str]) -> str:
    """A name for the file or folder at `path` that is not taken."""
    names = [path.name, f"{path.parent.name}/{path.name}"]
    return next((name for name in names if name not in taken), str(path))


def _records(path: Path, malformed: Counter[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The JSON objects in the lines of a file, with their places."""
    end = 0
    with path.open("rb") as file:
        for line in tqdm(file, f"read {path.name}", unit="line", leave=False, delay=1, disable=None):
            start = end
            end += len(line)
            if not line.strip():
                continue
            try:
                yield Place(path, start), read_object(line)
            except BrokenLineError:
                malformed[str(path)] += 1


def _group(record: Mapping[str, Any], number: int, place: Place) -> DumpedGroup:
    """The group in a line, without its texts. Raises BrokenLineError."""
    group = group_in(record, number)
    shared = {"step": group.step, "staleness": group.staleness, "has_signal": float(group.has_signal)}
    rollouts = []
    for rollout_number, rollout in enumerate(group.rollouts):
        own = _without_texts(rollout, replace(place, number=rollout_number))
        rollouts.append({**own, **shared})
    return replace(group, rollouts=tuple(rollouts))


def _without_texts(rollout: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """The rollout with its place instead of its texts."""
    kept = {name: value for name, value in rollout.items() if name not in ("messages", "question")}
    return {**kept, "place": place}


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself. Raises BrokenLineError if the values that the report counts are missing or malformed."""
    try:
        score = sample["score"]
        # All statistics are of scores in this range. Other environments of Atropos have other scores.
        is_sound = isinstance(sample["task"], str) and (score is None or 0.0 <= score <= 1.0)
        for name in AVERAGED:
            value = sample.get(name)
            is_sound = is_sound and (value is None or math.isfinite(value))
        talk_of(sample)
    except (LookupError, TypeError, ValueError, OverflowError):
        is_sound = False
    if not is_sound:
        raise BrokenLineError("no sample of `evaluate`")
    return sample


def talk_of(rollout: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, str]], str]:
    """The prompt, and the text of the model, which is "" for a sample without a reply."""
    *prompt, last = rollout["messages"]
    if last["role"] == "assistant":
        return prompt, str(last["content"])
    return [*prompt, last], ""


def _described(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Model and parameters from a metrics.json. Both are empty if the file does not exist."""
    if not path.is_file():
        return "", {}
    try:
        general = json.loads(path.read_text(encoding="utf-8"))["config_general"]
        return str(general["model_name"]), dict(general["generation_parameters"])
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentSetupError(f"Expected the metrics.json of an evaluation in {path}: {error!r}.") from error
