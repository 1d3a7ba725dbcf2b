"""The command `regrade PATH`: score saved completions again, without inference.

    line ── task, seed, config ──> generation worker ──> item, if its question is still the saved question
      └──── texts ──> Scorer (sandbox, as in a run) ──> scores ──> line with new values, and the old ones in `before`

A line is a sample of `evaluate`, or a group of a dump or of `process`. The new line has the digest of the old line, so
that the same command can resume. Lines that cannot be regraded are skipped and counted. Beside the samples of an
evaluation the command writes a new metrics.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table
from tqdm import tqdm

from .. import __version__
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.results import summarise
from ..evaluation.runner import METRICS, SAMPLES, grading
from ..evaluation.statistics import Estimate, Question, share
from ..records import AnswerFormat, Completion, FormatFailure, Outcome, Problem, to_json
from ..runtime import Runtime
from ..scoring.extraction import extract_answer
from ..scoring.rewards import base_reward, neutral_if_unscored
from ..scoring.scorer import score_with_retry
from ..settings.components import TasksSettings, checked
from ..storage.append_log import AppendLog, read_object
from ..storage.files import write_atomically
from ..storage.lines import UNSCORED, files_of, reward_fields, rollouts_in, sample_fields, unscored_fields
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_from_json
from ..utils.terminal import Output, path_name, print_table, printable
from .options import add_settings, task_settings

GRADING_OPTIONS = ("verification", "partial_credit", "task_modules", "allow_unguarded_tasks")
FOLDER_SUFFIX = ".regraded"
ITEM_S = 20.0
"""Seconds of processor time to make an item. Lines whose items take longer are not regraded."""
AT_ONCE = 32
"""Lines that are graded at the same time."""
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, AssertionError)
"""Errors that a malformed line can cause: a field is missing or has another type. The file may come from anywhere."""
Scores = list[tuple[float | None, float | None]]
"""The scores of completions before and after. A score is None if the completion is unscored."""


def main(arguments: Sequence[str]) -> int:
    """Regrade the files that the arguments name; returns the exit code 0.

    Raises EnvironmentSetupError or OSError if the files cannot be read, the new files cannot be written, or no line can
    be regraded.
    """
    options = _parser().parse_args(arguments)
    with library.stdout_to_stderr():
        tally, target = asyncio.run(_run(options))
    _show(tally)
    print(f"The new lines are in {target}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env regrade",
        description="Score saved completions again, without inference: samples of `evaluate`, dumps, and groups of "
        "`process`. The command makes each item again, checks that it still has the saved question, and grades the "
        "answers in the sandbox with the installed versions of this package and of reasoning-gym. It does not change "
        "the original files.",
        epilog="A new line has the format of the old line, and holds the old values in `before`. If the command was "
        "stopped, the same command resumes.",
    )
    add = parser.add_argument
    add(
        "path",
        metavar="PATH",
        type=path_name,
        help="a file, or a folder with files at any depth",
    )
    add(
        "--to",
        type=path_name,
        metavar="FOLDER",
        help=f"folder for the new files (default: PATH's folder with {FOLDER_SUFFIX} at the end of its name)",
    )
    add_settings(parser, GRADING_OPTIONS, partial_credit="exact")
    return parser


async def _run(options: argparse.Namespace) -> tuple[Tally, Path]:
    files, target = _files_and_target(options.path, options.to)
    settings = checked(TasksSettings, **{"partial_credit": "exact", **task_settings(options)})
    tally = Tally()
    async with Runtime(
        settings,
        serves_tasks=False,
        item_timeout_s=ITEM_S,
    ) as runtime:
        made_with = {
            **settings.model_dump(include=set(GRADING_OPTIONS)),
            "reasoning_gym": runtime.library.describe(),
            "version": __version__,
        }
        regrader = _Regrader(runtime, made_with, tally)
        size = sum(file.stat().st_size for file in files)
        with tqdm(total=size, desc="regrade", unit="B", unit_scale=True, disable=None) as bar:
            for file, new_file in files.items():
                await regrader.regrade_file(file, new_file, bar)
    if not tally.values:
        reason = f"The first reason is {tally.skipped[0]}" if tally.skipped else "It has no lines."
        raise EnvironmentSetupError(
            f"Expected samples of `evaluate`, dumps, or groups of `process` in {options.path}, and found no line that "
            f"can be regraded. {reason}"
        )
    return tally, target


def _files_and_target(path: Path, to: Path | None) -> tuple[dict[Path, Path], Path]:
    """The new file of each old file, and the folder of the new files."""
    folder = path if path.is_dir() else path.parent
    root = folder.resolve()
    target = to or root.with_name(f"{root.name}{FOLDER_SUFFIX}")
    if target.resolve().is_relative_to(root):
        raise EnvironmentSetupError(f"--to: expected a folder outside {root}, got {target}. Name another folder.")
    files: dict[Path, Path] = {}
    for file in files_of(path):
        # The file may be a link to a file elsewhere.
        files[file] = target / file.relative_to(folder)
    return files, target


@dataclass(frozen=True)
class _Regrader:
    """Regrades files, and counts the results in `tally`.

    `made_with` holds the settings and versions. Every new line has it under `regraded`.
    """

    runtime: Runtime
    made_with: Mapping[str, Any]
    tally: Tally

    async def regrade_file(self, path: Path, target: Path, bar: Any) -> None:
        """Regrade the lines of `path` that `target` does not have yet, and write them to `target` in order.

        There is no new file, and no new folder, if no line can be regraded.
        """
        new_folders = [folder for folder in target.parents if not folder.exists()]
        log = AppendLog(
            target,
            self.made_with,
            identity_key="regraded",
            key=_digest_in,
            keep=self.tally.add,
            remedy="Name another --to.",
        )
        with contextlib.closing(log), path.open("rb") as file:
            numbered = enumerate(file, 1)
            while batch := list(islice(numbered, AT_ONCE)):
                work = [self._new_line(f"{path}, line {number}", line, log.done) for number, line in batch]
                for record in await asyncio.gather(*work):
                    if record is not None:
                        log.append(record)
                        self.tally.add(record)
                bar.update(sum(len(line) for _, line in batch))
        _remove_if_empty(new_folders)
        if path.name == SAMPLES:
            self._write_metrics(path.with_name(METRICS), target)

    def _write_metrics(self, old: Path, new_samples: Path) -> None:
        """Write the metrics.json of regraded samples, with the general part of the old one.

        There is nothing to write without an old one, or if no sample has a score.
        """
        if not old.is_file() or not new_samples.is_file():
            return
        with new_samples.open("rb") as file:
            samples = [read_object(line) for line in file]
        if all(sample["score"] is None for sample in samples):
            return
        try:
            document = json.loads(old.read_text(encoding="utf-8"))
            document["config_general"]["generation_parameters"].update(self._grading())
            names = list(document["results"])
        except MALFORMED as error:
            raise EnvironmentSetupError(f"Expected the metrics.json of an evaluation in {old}: {error!r}.") from error
        document["results"] = dict.fromkeys(names, summarise(samples).metrics(with_tasks=True))
        write_atomically(new_samples.with_name(METRICS), json.dumps(document, indent=2).encode())

    def _grading(self) -> dict[str, str]:
        """The parameters of an evaluation that say how its completions were graded."""
        verification = self.made_with["verification"]
        return {
            "verification": verification,
            "partial_credit": self.made_with["partial_credit"],
            "grading": grading(verification),
            "reasoning_gym_environment_version": __version__,
            "reasoning_gym_version": self.runtime.library.version,
        }

    async def _new_line(self, place: str, line: bytes, done: Container[Any]) -> dict[str, Any] | None:
        """The regraded line. None if the line is regraded already, or cannot be regraded (see `tally.skipped`)."""
        digest = hashlib.blake2b(line, digest_size=8).hexdigest()
        if digest in done:
            return None
        try:
            record = read_object(line)
            before = await _replace_scores(record, self.runtime)
        except (GenerationError, EnvironmentSetupError) as error:
            reason = str(error)
        except MALFORMED as error:
            reason = f"it does not hold completions with their task, seed and config ({error!r})"
        else:
            before["line"] = digest
            return {**record, "before": before, "regraded": self.made_with}
        self.tally.skipped.append(printable(f"{place}: {reason}", 400))
        return None


def _remove_if_empty(folders: Iterable[Path]) -> None:
    """Remove empty folders, the innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _digest_in(record: Mapping[str, Any]) -> str:
    return str(record["before"]["line"])


# --- one line


async def _replace_scores(record: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    """Put the new scores into the record, and the values that depend on them. Returns the old values."""
    is_sample = "question" in record
    pairs = [(record, record["messages"])] if is_sample else rollouts_in(record)
    rows = [row for row, _ in pairs]
    if is_sample and record["messages"][-1]["role"] != "assistant":
        # The server gave no completion.
        return _replace(record, unscored_fields(record["unscored_reason"]))
    problem = await _problem(record, pairs[0][1][-2]["content"], runtime)
    completions = [_completion(row, messages[-1]["content"]) for row, messages in pairs]
    # The completions share their prompt. So if it opened the thinking for one completion, it did for all of them.
    thinking_opened = any(map(partial(_was_opened, problem.answer_format), rows, completions))
    scores = await score_with_retry(runtime.scorer, problem, completions, thinking_opened=thinking_opened)
    credits = [base_reward(score, runtime.settings.partial_credit) for score in scores]
    answer = problem.entry.get("answer")
    if is_sample:
        [score] = scores
        [credit] = credits
        has_crashed = score.outcome is Outcome.CRASHED
        fields = unscored_fields(score.outcome.value) if has_crashed else sample_fields(score, credit)
        return _replace(record, {"expected_answer": answer, **fields})
    rewards = neutral_if_unscored(scores, credits)
    for row, score, reward, credit in zip(rows, scores, rewards, credits, strict=True):
        row["before"] = _replace(row, reward_fields(score, reward, credit))
    new = {"expected_answer": answer, "reasoning_gym_version": runtime.library.version}
    if "scores" in record:
        new["scores"] = rewards
    return _replace(record, new)


async def _problem(record: Mapping[str, Any], question: str, runtime: Runtime) -> Problem:
    task = record["task"]
    seed = int(record["seed"])
    answer_format = AnswerFormat(record.get("answer_format", AnswerFormat.TAGS))
    config = config_from_json(task, dict(record["config"]))
    is_strict = runtime.settings.verification == "strict"
    # The completions may come from a run with other settings of verification, which changes some questions.
    for mends in (is_strict, not is_strict):
        entry = await runtime.generator.generate(task, seed, config, mends=mends)
        if entry["question"] == question:
            return Problem(task, "", "", -1, seed, config, entry, answer_format=answer_format)
    raise GenerationError(f"the item of {task} with seed {seed} now has another question")


def _completion(row: Mapping[str, Any], text: str) -> Completion:
    is_invalid = row.get("outcome") == Outcome.BAD_REPLY.value
    invalid_reason = str(row.get("mask_reason")) if is_invalid else None
    return Completion(text, [], [], None, str(row.get("finish_reason")), invalid_reason)


def _was_opened(answer_format: AnswerFormat, row: Mapping[str, Any], completion: Completion) -> bool:
    """Whether the prompt opened the thinking.

    It did if the text counted as unfinished thinking, although the text itself leaves no thinking open.
    """
    failure = FormatFailure.UNFINISHED_THINKING
    found = extract_answer(completion.text, answer_format=answer_format)
    return row.get("format_failure") == failure.value and found.failure is not failure


def _replace(record: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Put new values into the record. Returns the old values of the same names."""
    old = {name: record[name] for name in new if name in record}
    record.update(to_json(new))
    return old


# --- the result


@dataclass
class Tally:
    """Counts of the new lines, and the lines that cannot be regraded."""

    values: dict[str, dict[str, Scores]] = field(default_factory=dict)
    """The scores by task and question."""
    skipped: list[str] = field(default_factory=list)
    """For each line that cannot be regraded, its place and the reason."""

    def add(self, record: dict[str, Any]) -> None:
        """Count a new line."""
        question = f"{record.get('seed')} {record.get('config')}"
        pairs = self.values.setdefault(record["task"], {}).setdefault(question, [])
        if "question" in record:
            pairs.append((_score(record["before"], "score"), _score(record, "score")))
            return
        for row in record.get("rollouts") or record["rollout_details"]:
            pairs.append((_score(row["before"], "verifier_score"), _score(row, "verifier_score")))

    def summary(self) -> dict[str, dict[str, Any]]:
        """The figures of each task, and of all tasks under the name "all"."""
        summary = {task: _figures({task: questions}) for task, questions in sorted(self.values.items())}
        summary["all"] = _figures(self.values)
        return summary


def _score(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    # The file may come from anywhere.
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        return None
    return None if str(row.get("outcome")) in UNSCORED else value


def _figures(tasks: Mapping[str, Mapping[str, Scores]]) -> dict[str, Any]:
    before: list[Question] = []
    after: list[Question] = []
    regraded = changed = 0
    for task, questions in tasks.items():
        for pairs in questions.values():
            regraded += len(pairs)
            changed += sum(old != new for old, new in pairs)
            before.append(Question(task, tuple(old for old, _ in pairs if old is not None)))
            after.append(Question(task, tuple(new for _, new in pairs if new is not None)))
    return {
        "regraded": regraded,
        "changed": changed,
        "exact before": share(map(_exact, before)),
        "exact after": share(map(_exact, after)),
        "mean before": share(before),
        "mean after": share(after),
    }


def _exact(question: Question) -> Question:
    return Question(question.stratum, tuple(float(score >= 1.0) for score in question.values))


def _show(tally: Tally) -> None:
    summary = tally.summary()
    table = Table("task")
    for head in summary["all"]:
        table.add_column(head, justify="right", no_wrap=True)
    for task, figures in summary.items():
        cells = [_shown(figure) for figure in figures.values()]
        table.add_row(task, *cells)
    console = Output()
    print_table(console, table)
    console.print("exact: full credit; mean: the mean score. Intervals: 95%, clustered by question.")
    if tally.skipped:
        print(
            f"{len(tally.skipped)} lines are not regraded. The first:",
            *tally.skipped[:5],
            sep="\n  ",
        )


def _shown(figure: int | Estimate | None) -> str:
    if isinstance(figure, Estimate):
        return f"{figure.value:.1%} [{figure.low:.1%}, {figure.high:.1%}]"
    return "-" if figure is None else str(figure)
