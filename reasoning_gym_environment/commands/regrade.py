"""`reasoning-gym-env regrade PATH`: saved completions scored again, without inference.

    line ── task, seed, config ──> generation worker ──> item, if its question is still the saved one
      └──── texts ──> Scorer (sandbox, as in a run) ──> scores ──> the line with new values, the old ones under `before`

A line is a sample of `evaluate`, or a group of a dump or of `process`. A new line has the digest of the old one, by
which the same command resumes. Nothing in a line is trusted: its texts are a model's.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.table import Table
from tqdm import tqdm

from .. import __version__
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.journal import grading
from ..evaluation.runner import scored_fields as scored_sample
from ..parts import Parts
from ..records import CORRECT_THRESHOLD, Completion, FormatFailure, Outcome, Problem, plain
from ..report.load import UNSCORED, files_of
from ..scoring.rewards import credit_of, rewards_of
from ..scoring.scorer import extract_answer, score_patiently
from ..settings import TasksSettings, checked
from ..storage.append_log import AppendLog, BrokenLineError, numbered_lines, read_object
from ..storage.group_lines import PART_SUFFIX, is_conversation, is_number, with_current_keys
from ..storage.group_lines import scored_fields as scored_rollout
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_from_json, defaults_of
from ..tasks.difficulty_ladder import build_ladder
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, positive, print_table, printable

MARK = ".regraded"
ITEM_S = 20.0
"""Processor time to make one item."""
AT_ONCE = 32
SETTINGS = ("verification", "scoring_timeout_s", "partial_credit")
FOLLOWS_FROM = (*SETTINGS, "max_token_length", "task_modules", "allow_unguarded_tasks")
"""Options; a file that was regraded under other values of them is not resumed."""

BROKEN = "no sample and no group"
NO_TEXT = "no completion was saved"
NO_RECIPE = "it does not say of which task, seed and config it is"
REFUSED = "the task or its config is refused"
NOT_MADE = "its item cannot be made"
ANOTHER = "the question is another now"
NOT_GRADED = "its task cannot be graded"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for what cannot be regraded at all."""
    options = _parser().parse_args(arguments)
    try:
        with library.stdout_to_stderr():
            summary = asyncio.run(_run(options))
    except (EnvironmentSetupError, OSError) as error:
        print(f"reasoning-gym-env regrade: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary, indent=1)) if options.json else _show(summary)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env regrade",
        description="Score saved completions again, without inference: samples of `evaluate` (answers.jsonl too), "
        "dumps (.part too) and groups of `process`. Each item is made again and must ask the saved question; answers "
        "are graded in the sandbox, by the checks and the reasoning-gym that are here now. What changed is printed by "
        "task. The originals stay as they are, and so do masks in the new lines.",
        epilog="A new line has the form of the old one, whose values it keeps under `before`. The same command again "
        f"resumes. In a folder, files with {MARK} in their names are not read.",
    )
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="a file, or a folder, searched with all below it")
    add("--to", type=Path, help=f"where to write (default: beside PATH, NAME{MARK}.jsonl or FOLDER{MARK})")
    add("--verification", choices=("strict", "native"), default="strict", help="(default: strict)")
    add("--partial-credit", choices=("exact", "native"), default="exact", help="of groups (default: exact)")
    add("--scoring-timeout", dest="scoring_timeout_s", type=float, default=2.0, help="seconds an answer (default: 2)")
    add("--max-token-length", type=positive, help="the run's, for rewards of dumps: the length penalty follows from it")
    add("--task-modules", type=parse_names, default=[], metavar="MODULES", help="register your own datasets first")
    add("--allow-unguarded-tasks", type=parse_names, default=[], metavar="TASKS", help="as in a run")
    add("--json", action="store_true", help="the summary as JSON")
    return parser


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    files, target = _places(options.path, options.to)
    given = {name: vars(options)[name] for name in FOLLOWS_FROM if name != "max_token_length"}
    parts = Parts(checked(TasksSettings, generation_timeout_s=ITEM_S, **given), serves_tasks=False)
    tally = Tally()
    async with parts:
        settings = {name: vars(options)[name] for name in FOLLOWS_FROM}
        settings |= {"reasoning_gym": parts.library.describe(), "version": __version__}
        size = sum(file.stat().st_size for file in files)
        with tqdm(total=size, desc="regrade", unit="B", unit_scale=True, disable=None) as bar:
            for file, new in files.items():
                await _regrade_file(file, new, Regrader(options, parts), settings, tally, bar)
    if not tally.lines["now"] + tally.lines["before"]:
        if options.path.is_dir() and target.exists():
            for folder in sorted((target, *target.rglob("*/")), reverse=True):
                folder.rmdir()
        raise EnvironmentSetupError(f"Nothing in {options.path} can be regraded: {tally.why_not()}.")
    return {"to": str(target), "settings": settings, **tally.summary()}


def _places(path: Path, to: Path | None) -> tuple[dict[Path, Path], Path]:
    """The new file of each old one, and the file or folder that the user looks for."""
    found = files_of(path)
    if not path.is_dir():
        name = found[0].name.removesuffix(PART_SUFFIX).removesuffix(".jsonl")
        target = to or found[0].with_name(f"{name}{MARK}.jsonl")
        files = {found[0]: target}
    else:
        target = to or path.resolve().with_name(f"{path.resolve().name}{MARK}")
        names = {one: str(one.relative_to(path)) for one in found}
        # A part will have its final name, and is resumed under it.
        files = {one: target / name.removesuffix(PART_SUFFIX) for one, name in names.items() if MARK not in name}
    if target.resolve().is_relative_to(path.resolve()) or target.resolve() in (one.resolve() for one in files):
        raise EnvironmentSetupError(f"--to {target}: {path} stays as it is. Name a place that is not in it.")
    if target.exists() and target.is_dir() != path.is_dir():
        raise EnvironmentSetupError(f"--to {target}: expected a {'folder' if path.is_dir() else 'file'}, as PATH is.")
    return files, target


async def _regrade_file(
    path: Path, target: Path, regrader: Regrader, settings: dict[str, Any], tally: Tally, bar: Any
) -> None:
    """Lines are graded AT_ONCE and written in their order; those that the new file has are not graded again."""
    earlier: Counter[str] = Counter()

    def digest_of(record: dict[str, Any]) -> str:
        earlier[record["before"]["line"]] += 1
        return str(record["before"]["line"])

    remedy = "Name another --to."
    log = AppendLog(target, settings, identity_key="regraded", key=digest_of, keep=tally.add, remedy=remedy)
    tally.lines["before"] += log.count
    try:
        with path.open("rb") as file:
            every = numbered_lines(file)
            while some := list(islice(every, AT_ONCE)):
                digests = [hashlib.blake2b(line or b"", digest_size=8).hexdigest() for _, line, _ in some]
                work = []
                for (number, line, _), digest in zip(some, digests, strict=True):
                    if earlier[digest]:
                        # Equal lines are counted, so that each has its own.
                        earlier[digest] -= 1
                    elif line is None or line.strip():
                        work.append((number, digest, regrader.regrade(line)))
                results = await asyncio.gather(*(one for *_, one in work), return_exceptions=True)
                for (number, digest, _), result in zip(work, results, strict=True):
                    if isinstance(result, (NotRegraded, RecursionError)):
                        tally.leave(result, f"{path}, line {number}")
                        continue
                    if isinstance(result, BaseException):
                        raise result
                    result["before"]["line"] = digest
                    log.append({**result, "regraded": settings})
                    tally.lines["now"] += 1
                    tally.add(result)
                bar.update(sum(size for *_, size in some))
    finally:
        log.close()


# --- one line


class NotRegraded(Exception):
    """Why a line is not: in words that such lines share, its task if it says so, and what is particular to it."""

    def __init__(self, reason: str, task: object = None, detail: object = "") -> None:
        super().__init__(reason, task, str(detail))


class Regrader:
    """Makes new lines of old ones, as `options` of the command say, with workers that run."""

    def __init__(self, options: argparse.Namespace, parts: Parts) -> None:
        self._options = vars(options)
        self._parts = parts

    async def regrade(self, line: bytes | None) -> dict[str, Any]:
        """The new line. Raises NotRegraded, and RecursionError for what is nested too deeply."""
        try:
            record = with_current_keys(read_object(line))
        except BrokenLineError as error:
            raise NotRegraded(BROKEN, None, error) from error
        if isinstance(first := record.get("evaluation"), dict):
            # The first line of an unfinished evaluation.
            known = {**self._settings_as_in(first), "grading": grading(self._options["verification"])}
            return {**record, "before": _replace(first, known)}
        rows, question, texts = _content(record)
        problem = await self._problem(record)
        if problem.entry.get("question") != question:
            raise NotRegraded(ANOTHER, problem.task, f"{problem.task} with seed {problem.seed}")
        completions = [_completion(text, row) for text, row in zip(texts, rows, strict=True)]
        # One prompt for all: whether it opened the thinking shows in what was made of the texts.
        opened = any(_was_opened(row, text) for row, text in zip(rows, texts, strict=True))
        try:
            scores = await score_patiently(self._parts.scorer, problem, completions, thinking_opened=opened)
        except EnvironmentSetupError as error:
            raise NotRegraded(NOT_GRADED, problem.task, error) from error
        answer = plain(problem.entry.get("answer"))
        if "question" in record:
            crashed = Outcome.CRASHED.value if scores[0].outcome is Outcome.CRASHED else ""
            new = {"gold_answer": answer, **plain(scored_sample(None if crashed else scores[0], crashed))}
            before = _replace(record, new)
            return {**record, "before": before}
        credits = [credit_of(score, self._options["partial_credit"]) for score in scores]
        rewards = self._rewards(record, rows, scores, credits)
        paid: list[Any] = [row.get("score") for row in rows] if rewards is None else rewards
        for row, score, reward, credit in zip(rows, scores, paid, credits, strict=True):
            row["before"] = _replace(row, scored_rollout(score, reward, credit))
        new = {"expected_answer": answer, "reasoning_gym_version": self._parts.library.version}
        if "rollouts" not in record:
            new["scores"] = paid
        if isinstance(settings := record.get("settings"), dict):
            new["settings"] = {**settings, **self._settings_as_in(settings)}
        before = {**_replace(record, new), "reward_is_kept": rewards is None}
        return {**record, "before": before}

    def _settings_as_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._options[name] for name in SETTINGS if name in settings}

    async def _problem(self, record: Mapping[str, Any]) -> Problem:
        """The item of a line. Samples of old versions have no config: it is that of their level, or the default."""
        values: list[Any] = [record.get(name) for name in ("task", "seed", "config", "level")]
        task, seed, config, level = values
        is_old = "question" in record and "config" not in record and (level is None or isinstance(level, int))
        if not isinstance(task, str) or not isinstance(seed, int) or not (is_old or isinstance(config, dict)):
            raise NotRegraded(NO_RECIPE, task)
        try:
            if is_old:
                config = defaults_of(task) if level is None else dict(build_ladder(task).levels[level].config)
            config = config_from_json(task, config)
            return Problem(task, "", "", -1, seed, config, await self._parts.generator.generate(task, seed, config))
        except GenerationError as error:
            raise NotRegraded(NOT_MADE, task, error) from error
        except (EnvironmentSetupError, IndexError, AttributeError, AssertionError) as error:
            raise NotRegraded(REFUSED, task, error) from error

    def _rewards(
        self, record: Mapping[str, Any], rows: list[dict[str, Any]], scores: Any, credits: list[float]
    ) -> list[float] | None:
        """What the group is paid; None if that takes the length penalty, whose limit the line does not say."""
        lengths: list[Any] = [row.get("num_tokens") for row in rows]
        settings, limit = record.get("settings"), self._options["max_token_length"]
        if isinstance(settings, dict):
            limit = settings.get("max_token_length")
        if is_number(limit) and limit > 0 and all(map(is_number, lengths)):
            return rewards_of(scores, credits, lengths, limit)
        # Without lengths there is no penalty, as it was if the line was paid its credits.
        rewards = rewards_of(scores, credits, [0] * len(rows), 1)
        paid = [row["score"] if is_number(row.get("score")) else 0.0 for row in rows]
        was_scored = all(str(row.get("outcome")) not in UNSCORED for row in rows)
        had_none = was_scored and min(paid) >= CORRECT_THRESHOLD and paid == [row.get("credit") for row in rows]
        return rewards if had_none or min(rewards) < CORRECT_THRESHOLD else None


def _content(record: dict[str, Any]) -> tuple[list[dict[str, Any]], str, list[str]]:
    """The mappings that hold the score of one completion each, the question, the completions. Raises NotRegraded."""
    rows, conversations = _rows(record), record.get("messages")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise NotRegraded(NO_RECIPE if "scores" in record else BROKEN)
    if "rollouts" in record:
        conversations = [row.get("conversation") for row in rows]
    elif "question" in record:
        conversations = [conversations]
    if not isinstance(conversations, list) or len(conversations) != len(rows):
        raise NotRegraded(NO_TEXT, record.get("task"))
    for one in conversations:
        if not is_conversation(one) or one[-1].get("role") != "assistant" or not isinstance(one[-1]["content"], str):
            raise NotRegraded(NO_TEXT, record.get("task"))
    return rows, conversations[0][-2]["content"], [one[-1]["content"] for one in conversations]


def _rows(record: Mapping[str, Any]) -> Any:
    return [record] if "question" in record else record.get("rollouts", record.get("rollout_details"))


def _completion(text: str, row: Mapping[str, Any]) -> Completion:
    invalid = str(row.get("mask_reason")) if row.get("outcome") == Outcome.BAD_REPLY.value else None
    return Completion(text, [], [], None, str(row.get("finish_reason")), invalid)


def _was_opened(row: Mapping[str, Any], text: str) -> bool:
    """Whether the prompt had opened the thinking: a text that does not open it was taken for unfinished then."""
    failure = FormatFailure.UNFINISHED_THINKING
    return row.get("format_failure") == failure.value and extract_answer(text).failure is not failure


def _replace(record: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Put new values in place; the old ones."""
    old = {name: record[name] for name in new if name in record}
    record.update(new)
    return old


# --- what came of it


class Tally:
    """What changed, by task, and what could not be regraded, by reason."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter(now=0, before=0, rewards_kept=0)
        self._tasks: dict[str, Counter[str]] = {}
        self._left: dict[str, dict[str, Any]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a new line."""
        if "evaluation" in record:
            return
        self.lines["rewards_kept"] += record["before"].get("reward_is_kept", False)
        worth = "score" if "question" in record else "verifier_score"
        for row in _rows(record):
            before = row["before"]
            count = Counter(regraded=1, changed=int(any(row[name] != before[name] for name in before if name in row)))
            old = {"outcome": before.get("outcome"), worth: before.get(worth, before.get("score"))}
            for when, one in (("before", old), ("after", row)):
                if is_number(value := one[worth]) and str(one["outcome"]) not in UNSCORED:
                    count.update({f"scored_{when}": 1, f"mean_{when}": value, f"exact_{when}": int(value >= 1.0)})
            for name in (record["task"], ""):
                self._tasks.setdefault(name, Counter()).update(count)

    def leave(self, why: NotRegraded | RecursionError, place: str) -> None:
        """Count a line that stays as it is."""
        reason, task, detail = why.args if isinstance(why, NotRegraded) else (BROKEN, None, why)
        first = printable(f"{place}: {detail}".rstrip(": "), 400)
        left = self._left.setdefault(reason, {"lines": 0, "tasks": Counter(), "first": first})
        left["lines"] += 1
        left["tasks"][task if isinstance(task, str) and task.isidentifier() else "unknown"] += 1

    def why_not(self) -> str:
        return ", ".join(f"{why} ({of['lines']} lines)" for why, of in self._left.items()) or "there is no line in it"

    def summary(self) -> dict[str, Any]:
        tasks = {task: _figures(self._tasks[task]) for task in sorted(self._tasks)}
        total = tasks.pop("", _figures(Counter()))
        return {"lines": dict(self.lines), "tasks": tasks, "all": total, "not_regraded": self._left}


def _figures(count: Counter[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {name: count[name] for name in ("regraded", "changed")}
    for name in ("mean_before", "mean_after", "exact_before", "exact_after"):
        scored = count[f"scored_{name.partition('_')[2]}"]
        figures[name] = count[name] / scored if scored else None
    return figures


def _show(summary: Mapping[str, Any]) -> None:
    table = Table()
    for head in ("task", "regraded", "changed", "mean before", "after", "exact before", "after"):
        table.add_column(head, justify="left" if head == "task" else "right", no_wrap=True)
    for task, of in [*summary["tasks"].items(), ("all", summary["all"])]:
        cells = ("-" if n is None else f"{n:.4f}" if isinstance(n, float) else str(n) for n in of.values())
        table.add_row(task, *cells)
    print_table(Output(), table)
    for reason, left in summary["not_regraded"].items():
        tasks = ", ".join(f"{task} {count}" for task, count in left["tasks"].items())
        print(f"{left['lines']} lines are not regraded, {reason} ({tasks}). The first: {left['first']}")
    lines = summary["lines"]
    if lines["rewards_kept"]:
        print(f"{lines['rewards_kept']} groups keep their rewards: the length penalty needs --max-token-length.")
    print(", ".join(f"{name} {value}" for name, value in summary["settings"].items() if value))
    print(f"{lines['now']} lines now, {lines['before']} by earlier starts, in {summary['to']}")
