"""Reads the files of a report: results of `evaluate`, dumps of training, and groups of `process`.

Every line shows which of these it is. Groups become samples like the samples of an evaluation, so that the rest of the
report handles one kind of rollout. The report counts malformed lines and skips them. Dumps can be larger than the
memory, so the texts of a rollout stay in its file until the page needs them: `place` says where they are.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from ..errors import EnvironmentSetupError
from ..evaluation.results import EvalResults, summarise
from ..evaluation.runner import METRICS, SAMPLES
from ..storage.append_log import BrokenLineError, read_object
from ..storage.lines import DUMP_NAME, ROLLOUTS, DumpedGroup, files_of, group_in

PROCESS = "process"
"""The kind of a file of `process`. Dumps have the kinds of storage/lines.py."""

STEP_FOLDER = re.compile(r"step-(?P<step>\d+)")
"""Name of a folder in which `serve` leaves an evaluation during training."""

SAMPLED = ("temperature", "n", "max_new_tokens")
"""Parameters of an evaluation that say how its completions were sampled."""

GRADED = ("verification",)
"""Parameters of an evaluation that say how its completions were graded."""

RELEASES = ("reasoning_gym_environment_version", "reasoning_gym_version")
"""Parameters of an evaluation that say which releases graded its completions."""

NUMBERS = ("credit", "num_completion_tokens", "level", "reward")
"""The numbers of a sample beside its score. Each may be missing."""


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

    @cached_property
    def results(self) -> EvalResults:
        """Raises EnvironmentSetupError if no sample has a score."""
        return summarise(self.samples)

    @property
    def step(self) -> int | None:
        """The trainer's step in the name of its folder, as `serve` writes it, or None."""
        found = STEP_FOLDER.fullmatch(self.file.parent.name)
        return int(found["step"]) if found else None

    @property
    def manifest(self) -> str:
        """The hash of its questions, or "" if its samples have none."""
        return str(self.samples[0].get("manifest") or "")


@dataclass
class LoadedRun:
    """The dumps of one run, or one file of `process`. `kinds` are of storage/lines.py, or PROCESS."""

    name: str
    kinds: set[str] = field(default_factory=set)
    groups: list[DumpedGroup] = field(default_factory=list)
    """In the order of the trainer's steps, and of their items."""


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
    runs: dict[str, LoadedRun] = {}
    files = [file.resolve() for path in paths for file in files_of(path)]
    for file in dict.fromkeys(files):
        try:
            _load_file(file, sources, runs)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read {file}: {error}") from error
    sources.runs.extend(run for run in runs.values() if run.groups)
    for run in sources.runs:
        run.groups.sort(key=lambda group: (group.step or 0.0, group.index))
    sources.evaluations.sort(key=lambda evaluation: evaluation.step or 0)
    if not sources.evaluations and not sources.runs:
        raise EnvironmentSetupError("There is nothing to show: the files hold neither evaluation samples nor groups.")
    return sources


def _load_file(file: Path, sources: Sources, runs: dict[str, LoadedRun]) -> None:
    """Add the samples of a file to `sources`, and its groups to their run."""
    dump = DUMP_NAME.fullmatch(file.name)
    run_id = dump["run"] if dump else str(file)
    if run_id not in runs:
        taken = [run.name for run in runs.values()]
        runs[run_id] = LoadedRun(f"{file.parent.name} {run_id[:8]}" if dump else free_name(file.with_suffix(""), taken))
    run = runs[run_id]
    folder = file.parent if file.name == SAMPLES else file.with_suffix("")
    name = free_name(folder, [evaluation.name for evaluation in sources.evaluations])
    samples = []
    for place, record in _records(file, sources.malformed):
        try:
            if "question" in record:
                samples.append(_without_texts(_checked(record), place=place, source=name))
            else:
                run.groups.append(_group(record, len(run.groups), place, run.name))
                run.kinds.add(dump["kind"] if dump else ROLLOUTS if "rollouts" in record else PROCESS)
        except BrokenLineError:
            sources.malformed[str(file)] += 1
    if samples:
        sources.evaluations.append(Evaluation(name, *_described(file.with_name(METRICS)), samples, file))


def free_name(path: Path, taken: Sequence[str]) -> str:
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


def _group(record: Mapping[str, Any], number: int, place: Place, source: str) -> DumpedGroup:
    """The group in a line, without its texts. Raises BrokenLineError."""
    group = group_in(record, number)
    mean = fmean(group.rewards)
    rollouts = []
    for rollout_number, rollout in enumerate(group.rollouts):
        kept = _without_texts(
            rollout,
            place=replace(place, number=rollout_number),
            source=source,
            step=group.step,
            has_signal=float(group.has_signal),
            advantage=0.0 if rollout["mask_reason"] else rollout["reward"] - mean,
        )
        rollouts.append(kept)
    return replace(group, rollouts=tuple(rollouts))


def _without_texts(rollout: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The rollout with what the report needs instead of its texts."""
    kept = {name: value for name, value in rollout.items() if name not in ("messages", "question")}
    return {**kept, **more}


def _checked(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample itself. Raises BrokenLineError if the values that the report counts are missing or malformed."""
    try:
        score = sample["score"]
        # All statistics are of scores in this range. Other environments of Atropos have other scores.
        is_sound = isinstance(sample["task"], str) and (score is None or 0.0 <= score <= 1.0)
        for name in NUMBERS:
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
