"""`reasoning-gym-env regrade PATH`: saved completions scored again, without inference.

    line ── task, config, seed ──> generation worker ──> item, if its question is still the saved one
      └──── texts ──> Scorer (sandbox, as in a run) ──> scores ──> the line with new values, the old ones under `before`

A line is a sample of `evaluate`, or a group of a dump or of `process`. A new line has the digest of the old one, by
which the same command again knows what is done. Nothing in a line is trusted: its texts are a model's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.table import Table
from tqdm import tqdm

from .. import __version__
from ..errors import EnvironmentSetupError, GenerationError
from ..evaluation.runner import scored_fields as scored_sample
from ..records import CORRECT_THRESHOLD, Completion, FormatFailure, Outcome, Problem, plain
from ..report.load import UNSCORED, files_of
from ..scoring.rewards import CreditRule, rewards_of
from ..scoring.scorer import Scorer, extract_answer, score_patiently
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import config_from_json, defaults_of
from ..tasks.difficulty_ladder import build_ladder
from ..tasks.measured_data import load_floors
from ..tasks.selectors import parse_names
from ..training_log.dump_files import (
    PART_SUFFIX,
    BrokenLineError,
    is_conversation,
    is_number,
    numbered_lines,
    read_object,
)
from ..training_log.dumps import scored_fields as scored_rollout
from ..utils.terminal import Output, claim, positive, print_table, share
from ..workers.generator import ProcessGenerator
from ..workers.grader import SandboxGrader

MARK = ".regraded"
ITEM_S = 20.0
"""Processor time to make one item."""
ITEMS_KEPT = 64
SETTINGS = ("verification", "answer_normalization", "scoring_timeout_s", "partial_credit", "binary_threshold")
FOLLOWS_FROM = (*SETTINGS, "max_token_length", "thinking_opened", "task_modules", "allow_unguarded_tasks")
"""Options under other values of which a regrading is another one."""

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
        f"goes on where it stopped. In a folder, what has {MARK} in its name is passed over.",
    )
    workers = min(8, max(1, (os.cpu_count() or 1) // 2))
    add = parser.add_argument
    add("path", metavar="PATH", type=Path, help="a file, or a folder, searched with all below it")
    add("--to", type=Path, help=f"where to write (default: beside PATH, NAME{MARK}.jsonl or FOLDER{MARK})")
    add("--verification", choices=("strict", "native"), default="strict", help="(default: strict)")
    add("--answer-normalization", choices=("none", "lossless"), default="none", help="(default: none)")
    credits = ("native", "floor", "binary", "baseline")
    add("--partial-credit", choices=credits, default="baseline", help="of groups (default: baseline)")
    add("--binary-threshold", type=share, default=0.5, help="score that --partial-credit binary pays (default: 0.5)")
    add("--scoring-timeout", dest="scoring_timeout_s", type=float, default=2.0, help="seconds an answer (default: 2)")
    add("--max-token-length", type=positive, help="the run's, for rewards of dumps: the length penalty follows from it")
    opened = "the prompt opened <think>; for older dumps only: others show it"
    add("--thinking-opened", action="store_true", help=opened)
    add("--task-modules", type=parse_names, default=[], metavar="MODULES", help="register your own datasets first")
    add("--allow-unguarded-tasks", type=parse_names, default=[], metavar="TASKS", help="as in a run")
    add("--workers", type=positive, default=workers, help=f"scoring processes (default here: {workers})")
    add("--json", action="store_true", help="the summary as JSON")
    return parser


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    found = library.load()
    library.import_modules(options.task_modules)
    files, target = _places(options.path, options.to)
    settings = {"of": str(options.path.resolve()), **{name: vars(options)[name] for name in FOLLOWS_FROM}}
    settings |= {"reasoning_gym": found.describe(), "version": __version__}
    tally = Tally()
    imports: dict[str, Any] = {"library_path": str(found.location), "task_modules": options.task_modules}
    generator = ProcessGenerator(num_workers=(options.workers + 1) // 2, timeout_s=ITEM_S, **imports)
    grader = SandboxGrader(
        num_workers=options.workers,
        timeout_s=options.scoring_timeout_s,
        allow_unguarded=options.allow_unguarded_tasks,
        strict=options.verification == "strict",
        lossless=options.answer_normalization == "lossless",
        **imports,
    )
    with _claimed(target, settings, is_folder=options.path.is_dir()):
        try:
            await generator.start()
            await grader.start()
            regrader = Regrader(options, generator, grader, found.version)
            size = sum(file.stat().st_size for file in files)
            with tqdm(total=size, desc="regrade", unit="B", unit_scale=True, disable=None) as bar:
                for file, new in files.items():
                    await _regrade_file(file, new, regrader, tally, bar, at_once=2 * options.workers)
        finally:
            await asyncio.gather(generator.close(), grader.close())
    if not tally.lines["now"] + tally.lines["before"]:
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
        parts = {one: str(one.relative_to(path)) for one in found}
        # A part will have its final name, and goes on then.
        files = {one: target / part.removesuffix(PART_SUFFIX) for one, part in parts.items() if MARK not in part}
    if target.resolve().is_relative_to(path.resolve()) or target.resolve() in (one.resolve() for one in files):
        raise EnvironmentSetupError(f"--to {target}: {path} stays as it is. Name a place that is not in it.")
    if target.exists() and target.is_dir() != path.is_dir():
        raise EnvironmentSetupError(f"--to {target}: expected a {'folder' if path.is_dir() else 'file'}, as PATH is.")
    return files, target


@contextlib.contextmanager
def _claimed(target: Path, settings: dict[str, Any], *, is_folder: bool) -> Any:
    """Hold the file of settings beside the new lines. Raises EnvironmentSetupError if those are another regrading's."""
    sidecar = target / "regrade.json" if is_folder else target.with_name(f"{target.name}.settings.json")
    if not sidecar.exists() and target.exists() and (not is_folder or any(target.iterdir())):
        raise EnvironmentSetupError(f"{target} is there, and was not made by this command: name another --to.")
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    with sidecar.open("a+", encoding="utf-8") as file:
        claim(file.fileno(), target)
        file.seek(0)
        try:
            old = json.loads(file.read() or "{}")
            changes = [f"{name} {old.get(name)} (now {now})" for name, now in settings.items() if old.get(name) != now]
        except (ValueError, AttributeError) as error:
            raise EnvironmentSetupError(f"{sidecar} is not as it was written: name another --to.") from error
        if old and changes:
            what = f"{target} was regraded otherwise: {', '.join(changes)}."
            raise EnvironmentSetupError(f"{what} Name another --to, or give the options of before to go on.")
        if not old:
            file.truncate(0)
            file.write(json.dumps(settings, indent=1) + "\n")
            file.flush()
        try:
            yield
        finally:
            is_alone = [*target.iterdir()] == [sidecar] if is_folder else not target.exists()
            if is_alone:
                sidecar.unlink()
                if is_folder:
                    target.rmdir()


async def _regrade_file(path: Path, target: Path, regrader: Regrader, tally: Tally, bar: Any, *, at_once: int) -> None:
    """Lines are graded `at_once` and written in their order; of those that are there none is graded again."""
    done = _written(target, tally)
    under_way: deque[tuple[int, asyncio.Future[dict[str, Any]]]] = deque()
    with contextlib.ExitStack() as stack:
        new: IO[bytes] | None = None

        async def write_first() -> None:
            nonlocal new
            number, work = under_way.popleft()
            try:
                record = await work
                data = json.dumps(record).encode("ascii") + b"\n"
            except (NotRegraded, RecursionError) as why:
                tally.leave(why, f"{path}, line {number}")
                return
            if new is None:
                target.parent.mkdir(parents=True, exist_ok=True)
                new = stack.enter_context(target.open("ab"))
            new.write(data)
            new.flush()
            tally.lines["now"] += 1
            tally.add(record)

        with path.open("rb") as file:
            for number, line, size in numbered_lines(file):
                digest = hashlib.blake2b(line or b"", digest_size=8).hexdigest()
                if done[digest]:
                    done[digest] -= 1
                    tally.lines["before"] += 1
                elif line is None or line.strip():
                    under_way.append((number, asyncio.ensure_future(regrader.regrade(line, digest))))
                    if len(under_way) >= at_once:
                        await write_first()
                bar.update(size)
        while under_way:
            await write_first()


def _written(path: Path, tally: Tally) -> Counter[str]:
    """Digests of the lines that an earlier start has regraded; what it was killed at is cut off."""
    done: Counter[str] = Counter()
    if not path.exists():
        return done
    size = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                try:
                    tally.add(record := read_object(line))
                    done[record["before"]["line"]] += 1
                except (BrokenLineError, KeyError, TypeError, AttributeError) as error:
                    raise EnvironmentSetupError(f"{path} is not as it was written: name another --to.") from error
                size += len(line)
    os.truncate(path, size)
    return done


# --- one line


class NotRegraded(Exception):
    """Why a line is not: in words that such lines share, its task if it says so, and what is particular to it."""

    def __init__(self, reason: str, task: object = None, detail: object = "") -> None:
        super().__init__(reason, task, str(detail))


class Regrader:
    """Makes new lines of old ones, as `options` of the command say, with workers that run."""

    def __init__(
        self, options: argparse.Namespace, generator: ProcessGenerator, grader: SandboxGrader, version: str
    ) -> None:
        self._options = vars(options)
        self._generator = generator
        self._of_samples = Scorer(grader)
        self._of_groups = Scorer(grader, with_baselines=options.partial_credit == "baseline")
        self._credit = CreditRule(options.partial_credit, load_floors(), options.binary_threshold)
        self._version = version
        self._items: OrderedDict[str, asyncio.Future[dict[str, Any]]] = OrderedDict()

    async def regrade(self, line: bytes | None, digest: str) -> dict[str, Any]:
        """The new line. Raises NotRegraded, and RecursionError for what is nested too deeply."""
        try:
            record = read_object(line)
        except BrokenLineError as error:
            raise NotRegraded(BROKEN, None, error) from error
        if isinstance(first := record.get("evaluation"), dict):
            # The first line of an unfinished evaluation.
            return {**record, "before": {"line": digest, **_replace(first, self._settings_as_in(first))}}
        parts, question, texts = _content(record)
        task, seed, config = _recipe(record)
        entry = await self._item(task, seed, config)
        if entry.get("question") != question:
            raise NotRegraded(ANOTHER, task, f"{task} with seed {seed}")
        completions = [_completion(text, part) for text, part in zip(texts, parts, strict=True)]
        # One prompt for all.
        opened = any(self._was_opened(part, text) for part, text in zip(parts, texts, strict=True))
        scorer = self._of_samples if (is_sample := "question" in record) else self._of_groups
        problem = Problem(task, "", "", -1, seed, config, entry)
        try:
            scores = await score_patiently(scorer, problem, completions, thinking_opened=opened)
        except EnvironmentSetupError as error:
            raise NotRegraded(NOT_GRADED, task, error) from error
        if is_sample:
            crashed = Outcome.CRASHED.value if scores[0].outcome is Outcome.CRASHED else ""
            new = {"gold_answer": entry.get("answer"), **scored_sample(None if crashed else scores[0], crashed)}
            before = {"line": digest, **_replace(record, plain(new))}
            return {**record, "before": before}
        credits = [self._credit.credit(task, score.value, score.baseline) for score in scores]
        rewards = self._rewards(record, parts, scores, credits)
        paid: list[Any] = [part.get("score") for part in parts] if rewards is None else rewards
        for part, score, reward, credit in zip(parts, scores, paid, credits, strict=True):
            part["before"] = _replace(part, scored_rollout(score, reward, credit))
        new = {"expected_answer": plain(entry.get("answer")), "reasoning_gym_version": self._version}
        if "rollouts" not in record:
            new["scores"] = paid
        if isinstance(settings := record.get("settings"), dict):
            new["settings"] = {**settings, **self._settings_as_in(settings)}
        before = {"line": digest, **_replace(record, new), "reward_is_kept": rewards is None}
        return {**record, "before": before}

    def _settings_as_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._options[name] for name in SETTINGS if name in settings}

    async def _item(self, task: str, seed: int, config: dict[str, Any]) -> dict[str, Any]:
        """An item, made once for the lines that follow each other: those of several completions."""
        key = json.dumps([task, seed, plain(config)], sort_keys=True)
        if key not in self._items:
            self._items[key] = asyncio.ensure_future(self._generator.generate(task, seed, config))
            if len(self._items) > ITEMS_KEPT:
                self._items.popitem(last=False)
        try:
            return await asyncio.shield(self._items[key])
        except GenerationError as error:
            raise NotRegraded(NOT_MADE, task, error) from error

    def _rewards(
        self, record: Mapping[str, Any], parts: list[dict[str, Any]], scores: Any, credits: list[float]
    ) -> list[float] | None:
        """What the group is paid; None if that takes the length penalty, whose limit the line does not tell."""
        lengths: list[Any] = [part.get("num_tokens") for part in parts]
        settings, limit = record.get("settings"), self._options["max_token_length"]
        if isinstance(settings, dict):
            limit = settings.get("max_token_length")
        if is_number(limit) and limit > 0 and all(map(is_number, lengths)):
            return rewards_of(scores, credits, lengths, limit)
        # No length: no penalty.
        rewards = rewards_of(scores, credits, [0] * len(parts), 1)
        paid = [part["score"] if is_number(part.get("score")) else 0.0 for part in parts]
        was_scored = all(str(part.get("outcome")) not in UNSCORED for part in parts)
        had_none = was_scored and min(paid) >= CORRECT_THRESHOLD and paid == [part.get("credit") for part in parts]
        return rewards if had_none or min(rewards) < CORRECT_THRESHOLD else None

    def _was_opened(self, part: Mapping[str, Any], text: str) -> bool:
        """Whether the prompt had opened the thinking: a text that does not open it was taken for unfinished then."""
        if "format_failure" not in part:
            return bool(self._options["thinking_opened"])
        failure = FormatFailure.UNFINISHED_THINKING
        return part["format_failure"] == failure.value and extract_answer(text).failure is not failure


def _content(record: dict[str, Any]) -> tuple[list[dict[str, Any]], str, list[str]]:
    """The mappings that hold the score of one completion each, the question, the completions. Raises NotRegraded."""
    parts, conversations = _parts(record), record.get("messages")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise NotRegraded(NO_RECIPE if "scores" in record else BROKEN)
    if "rollouts" in record:
        conversations = [part.get("conversation") for part in parts]
    elif "question" in record:
        conversations = [conversations]
    if not isinstance(conversations, list) or len(conversations) != len(parts):
        raise NotRegraded(NO_TEXT, record.get("task"))
    for one in conversations:
        if not is_conversation(one) or one[-1].get("role") != "assistant" or not isinstance(one[-1]["content"], str):
            raise NotRegraded(NO_TEXT, record.get("task"))
    return parts, conversations[0][-2]["content"], [one[-1]["content"] for one in conversations]


def _parts(record: Mapping[str, Any]) -> Any:
    return [record] if "question" in record else record.get("rollouts", record.get("rollout_details"))


def _recipe(record: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
    """Task, seed and config of the item. Older samples have no config: it is that of their level, or the default."""
    values: list[Any] = [record.get(name) for name in ("task", "seed", "config", "level")]
    task, seed, config, level = values
    is_old = "question" in record and "config" not in record and (level is None or isinstance(level, int))
    if not isinstance(task, str) or not isinstance(seed, int) or not (is_old or isinstance(config, dict)):
        raise NotRegraded(NO_RECIPE, task)
    try:
        if is_old:
            return task, seed, defaults_of(task) if level is None else dict(build_ladder(task).levels[level].config)
        return task, seed, config_from_json(task, config)
    except (EnvironmentSetupError, IndexError, AttributeError, AssertionError) as error:
        raise NotRegraded(REFUSED, task, error) from error


def _completion(text: str, part: Mapping[str, Any]) -> Completion:
    flaw = str(part.get("mask_reason")) if part.get("outcome") == Outcome.BAD_REPLY.value else None
    return Completion(text, [], [], None, str(part.get("finish_reason")), flaw)


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
        worth = "score" if "question" in record else "raw_score"
        for part in _parts(record):
            before = part["before"]
            # A baseline is known with --partial-credit baseline alone: that is no change.
            changed = any(part[name] != value for name, value in before.items() if name in part and name != "baseline")
            count = Counter(regraded=1, changed=int(changed))
            old = {"outcome": before.get("outcome"), worth: before.get(worth, before.get("score"))}
            for when, one in (("before", old), ("after", part)):
                if is_number(value := one[worth]) and str(one["outcome"]) not in UNSCORED:
                    count.update({f"scored_{when}": 1, f"mean_{when}": value, f"exact_{when}": int(value >= 1.0)})
            for name in (record["task"], ""):
                self._tasks.setdefault(name, Counter()).update(count)

    def leave(self, why: NotRegraded | RecursionError, place: str) -> None:
        """Count a line that stays as it is."""
        reason, task, detail = why.args if isinstance(why, NotRegraded) else (BROKEN, None, why)
        # It may hold what a terminal obeys.
        first = "".join(one if one.isprintable() else " " for one in f"{place}: {detail}"[:400]).rstrip(": ")
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
