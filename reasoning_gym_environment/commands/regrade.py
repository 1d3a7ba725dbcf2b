"""`reasoning-gym-env regrade PATH`: saved completions scored again, without inference.

    line ── task, seed, config ──> generation worker ──> item, if its question is still the saved one
      └──── texts ──> Scorer (sandbox, as in a run) ──> scores ──> the line with new values, the old ones under `before`

A line is a sample of `evaluate`, or a group of a dump or of `process`. A new line has the digest of the old one, by
which the same command resumes. Nothing in a line is trusted: its texts are a model's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from tqdm import tqdm

from .. import __version__
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.runner import scored_fields as scored_sample
from ..parts import Parts
from ..records import Completion, FormatFailure, Outcome, Problem, plain
from ..report.load import UNSCORED, files_of
from ..scoring.scorer import credit_of, extract_answer, neutral_if_unscored, score_patiently
from ..settings import TasksSettings, checked
from ..storage.json_lines import AppendLog, is_number, read_object, with_current_keys
from ..storage.json_lines import scored_fields as scored_rollout
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_from_json
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, print_table, printable

MARK = ".regraded"
ITEM_S = 20.0
"""Processor time to make one item."""
AT_ONCE = 32
"""Lines that are graded at the same time."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises EnvironmentSetupError or OSError for what cannot be regraded at all."""
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
        "`process`. Each item is made again and must ask the saved question; answers are graded in the sandbox, by "
        "the checks and the reasoning-gym that are here now. The originals stay as they are.",
        epilog="A new line has the form of the old one and its values under `before`. The same command resumes.",
    )
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="a file, or a folder, searched with all below it")
    add("--to", type=Path, metavar="FOLDER", help=f"where to write (default: PATH's folder, with {MARK} at its name)")
    add("--verification", choices=("strict", "native"), default="strict", help="(default: strict)")
    add("--partial-credit", choices=("exact", "native"), default="exact", help="of groups (default: exact)")
    add("--scoring-timeout", dest="scoring_timeout_s", type=float, default=2.0, help="seconds an answer (default: 2)")
    add("--task-modules", type=parse_names, default=[], metavar="MODULES", help="register your own datasets first")
    add("--allow-unguarded-tasks", type=parse_names, default=[], metavar="TASKS", help="as in a run")
    return parser


async def _run(options: argparse.Namespace) -> tuple[Tally, Path]:
    files, target = _places(options.path, options.to)
    settings = {name: value for name, value in vars(options).items() if name not in ("path", "to")}
    tally = Tally()
    async with Parts(checked(TasksSettings, generation_timeout_s=ITEM_S, **settings), serves_tasks=False) as parts:
        made_with = {**settings, "reasoning_gym": parts.library.describe(), "version": __version__}
        size = sum(file.stat().st_size for file in files)
        with tqdm(total=size, desc="regrade", unit="B", unit_scale=True, disable=None) as bar:
            for file, new in files.items():
                await _regrade_file(file, new, parts, made_with, tally, bar)
    if not tally.values:
        why = f"the first line: {tally.left[0]}" if tally.left else "there is no line in it."
        raise EnvironmentSetupError(f"Nothing in {options.path} can be regraded; {why}")
    return tally, target


def _places(path: Path, to: Path | None) -> tuple[dict[Path, Path], Path]:
    """The new file of each old one, and the folder of the new ones."""
    root = (path if path.is_dir() else path.parent).resolve()
    target = to or root.with_name(f"{root.name}{MARK}")
    if target.resolve().is_relative_to(root):
        raise EnvironmentSetupError(f"--to {target}: {root} stays as it is. Name a folder that is not in it.")
    return {one: target / one.resolve().relative_to(root) for one in files_of(path)}, target


async def _regrade_file(
    path: Path, target: Path, parts: Parts, made_with: Mapping[str, Any], tally: Tally, bar: Any
) -> None:
    """Write the new line of each line that `target` does not have yet, in the order of the lines."""
    remedy = "Name another --to."
    log = AppendLog(target, made_with, identity_key="regraded", key=_digest_in, keep=tally.add, remedy=remedy)

    async def new_line(number: int, line: bytes) -> dict[str, Any] | None:
        digest = hashlib.blake2b(line, digest_size=8).hexdigest()
        if digest in log.done or line == b"\n":
            return None
        try:
            record = with_current_keys(read_object(line))
            if "evaluation" in record:
                # The first line of an unfinished evaluation says how it was graded then.
                return None
            before = await _replace_scores(record, parts)
        except (GenerationError, EnvironmentSetupError) as error:
            why = str(error)
        # Anybody may have written the line: what it lacks shows where it is used.
        except (LookupError, TypeError, ValueError, AttributeError, AssertionError, RecursionError) as error:
            why = f"it does not hold completions with their task, seed and config ({error!r})"
        else:
            return {**record, "before": {**before, "line": digest}, "regraded": made_with}
        tally.left.append(printable(f"{path}, line {number}: {why}", 400))
        return None

    with contextlib.closing(log), path.open("rb") as file:
        every = enumerate(file, 1)
        while some := list(islice(every, AT_ONCE)):
            for record in await asyncio.gather(*(new_line(*one) for one in some)):
                if record is not None:
                    log.append(record)
                    tally.add(record)
            bar.update(sum(len(line) for _, line in some))


def _digest_in(record: Mapping[str, Any]) -> str:
    return str(record["before"]["line"])


# --- one line


async def _replace_scores(record: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """Put new scores, and what follows from them, in place; returns the old values."""
    rows = _rows(record)
    conversations: Any = record.get("messages")
    if "question" in record:
        if conversations[-1]["role"] != "assistant":
            # It was never answered: there is nothing to score.
            return {}
        conversations = [conversations]
    elif "rollouts" in record:
        conversations = [row["conversation"] for row in rows]
    problem = await _problem(record, conversations[0][-2]["content"], parts)
    pairs = list(zip(rows, [str(messages[-1]["content"]) for messages in conversations], strict=True))
    # One prompt for all: whether it opened the thinking shows in what was made of the texts.
    opened = any(_was_opened(row, text) for row, text in pairs)
    completions = [_completion(row, text) for row, text in pairs]
    scores = await score_patiently(parts.scorer, problem, completions, thinking_opened=opened)
    answer = plain(problem.entry.get("answer"))
    if "question" in record:
        crashed = Outcome.CRASHED.value if scores[0].outcome is Outcome.CRASHED else ""
        return _replace(record, {"gold_answer": answer, **scored_sample(None if crashed else scores[0], crashed)})
    credits = [credit_of(score, parts.settings.partial_credit) for score in scores]
    rewards = neutral_if_unscored(scores, credits)
    for row, score, reward, credit in zip(rows, scores, rewards, credits, strict=True):
        row["before"] = _replace(row, scored_rollout(score, reward, credit))
    new = {"expected_answer": answer, "reasoning_gym_version": parts.library.version}
    return _replace(record, {**new, "scores": rewards} if "scores" in record else new)


async def _problem(record: Mapping[str, Any], question: str, parts: Parts) -> Problem:
    task, seed = record["task"], int(record["seed"])
    config = config_from_json(task, dict(record["config"]))
    entry = await parts.generator.generate(task, seed, config)
    if entry["question"] != question:
        raise GenerationError(f"{task} with seed {seed} asks another question now")
    return Problem(task, "", "", -1, seed, config, entry)


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The mappings that hold the score of one completion each."""
    return [record] if "question" in record else record.get("rollouts") or record["rollout_details"]


def _completion(row: Mapping[str, Any], text: str) -> Completion:
    invalid_reason = str(row.get("mask_reason")) if row.get("outcome") == Outcome.BAD_REPLY.value else None
    return Completion(text, [], [], None, str(row.get("finish_reason")), invalid_reason)


def _was_opened(row: Mapping[str, Any], text: str) -> bool:
    """Whether the prompt had opened the thinking: a text that does not open it was taken for unfinished then."""
    failure = FormatFailure.UNFINISHED_THINKING
    return row.get("format_failure") == failure.value and extract_answer(text).failure is not failure


def _replace(record: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Put new values in place; the old ones."""
    old = {name: record[name] for name in new if name in record}
    record.update(plain(new))
    return old


# --- what came of it


@dataclass
class Tally:
    """Of the new lines the values before and after, by task; and why lines are left as they are."""

    values: dict[str, list[tuple[float | None, float | None]]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def add(self, record: dict[str, Any]) -> None:
        """Count a new line."""
        name = "score" if "question" in record else "verifier_score"
        pairs = [(_value(row["before"], name), _value(row, name)) for row in _rows(record)]
        self.values.setdefault(record["task"], []).extend(pairs)

    def summary(self) -> dict[str, dict[str, Any]]:
        """The figures by task, and those of all."""
        every = [pair for pairs in self.values.values() for pair in pairs]
        return {task: _figures(pairs) for task, pairs in [*sorted(self.values.items()), ("all", every)]}


def _value(row: Mapping[str, Any], name: str) -> float | None:
    """What the answer is worth; None where it was not scored. Older lines have the reward alone."""
    value = row.get(name, row.get("score"))
    return value if is_number(value) and str(row.get("outcome")) not in UNSCORED else None


def _figures(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"regraded": len(pairs), "changed": sum(old != new for old, new in pairs)}
    for side, when in enumerate(("before", "after")):
        scored = [value for pair in pairs if (value := pair[side]) is not None]
        figures[f"mean {when}"] = fmean(scored) if scored else None
        figures[f"exact {when}"] = fmean(value >= 1.0 for value in scored) if scored else None
    return figures


def _show(tally: Tally) -> None:
    summary = tally.summary()
    table = Table("task")
    for head in summary["all"]:
        table.add_column(head, justify="right", no_wrap=True)
    for task, figures in summary.items():
        cells = ("-" if n is None else f"{n:.4f}" if isinstance(n, float) else str(n) for n in figures.values())
        table.add_row(task, *cells)
    print_table(Output(), table)
    if tally.left:
        print(f"{len(tally.left)} lines are not regraded. The first:", *tally.left[:5], sep="\n  ")
