"""The command `export`: a folder of rows that fine-tuning libraries read.

    dumps of serve, groups of process ──> groups ──> good completions, or pairs of a good and a bad one ──> FOLDER
    --cold-start N: training items ──> their reference answers in the form that the prompt asks for ─────> FOLDER

        FOLDER/data/train.jsonl     a row a line, with task, level, seed and score beside the text
        FOLDER/README.md            the card: what the rows are and how they were made

The folder is one that Hugging Face's `datasets.load_dataset(FOLDER)` reads. Formats, as TRL and Axolotl have them:

    messages            {"messages": [system, user, assistant]}
    prompt_completion   {"prompt": [system, user], "completion": [assistant]}
    dpo                 {"prompt": [system, user], "chosen": [assistant], "rejected": [assistant]}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from tqdm import tqdm

from .. import __version__
from ..api import ItemStream, Tasks
from ..errors import EnvironmentSetupError
from ..report.load import Group, files_of, group_in
from ..sampling.seeds import is_held_out
from ..storage.append_log import BrokenLineError, numbered_lines, read_object
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import Output, check_folder, positive, print_table, share
from .tasks import right_answer

FORMATS = ("messages", "prompt_completion", "dpo")
ROWS, CARD = Path("data", "train.jsonl"), Path("README.md")
KEPT = ("task", "category", "level", "index", "seed")
THOUGHT = "<think>\nI work out what is asked. The answer is {answer}.\n</think>\n<answer>{answer}</answer>"
"""What an example for a cold start answers: it teaches the form, not how to think."""
TRIED = 200
"""Items in a row without a reference answer, after which there is none to be had."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for files that cannot be exported as asked."""
    options = _parser().parse_args(arguments)
    try:
        if options.cold_start:
            with library.stdout_to_stderr():
                _write_examples(options)
        else:
            _export(options)
    except (EnvironmentSetupError, OSError) as error:
        print(f"reasoning-gym-env export: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env export",
        description="Write the good completions of dumps and groups, or pairs of a good and a bad one, as a folder "
        "that Hugging Face's datasets, TRL and Axolotl read. None of their questions is held out for evaluation.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="dumps and groups of process: files, or folders")
    parser.add_argument("--to", required=True, metavar="FOLDER", type=Path, help="a new folder")
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="dpo: the best and the worst completion of each group"
    )
    parser.add_argument(
        "--min-score",
        type=share,
        default=1.0,
        metavar="S",
        help="verifier's score from which a completion is good, 0 to 1 (default: 1, full credit)",
    )
    parser.add_argument(
        "--per-question", type=positive, default=1, metavar="N", help="good completions of a question (default: 1)"
    )
    cold = parser.add_argument_group("without completions, for a model that does not use <think> and <answer> yet")
    what = "write N training items with their reference answers, none of which is held out for evaluation"
    cold.add_argument("--cold-start", type=positive, metavar="N", help=what)
    cold.add_argument("--tasks", default="", help="names, globs or category:NAME, comma-separated (default: all)")
    cold.add_argument("--complexity", type=share, default=0.0, help="0 (easiest level, the default) to 1 (hardest)")
    cold.add_argument("--seed", type=int, default=42, help="another seed than the training's gives other items")
    return parser


def _write_examples(options: argparse.Namespace) -> None:
    """Supervised examples from the items that training draws, so that no question of an evaluation is among them."""
    if options.paths or options.format == "dpo":
        raise EnvironmentSetupError("--cold-start takes no PATH, and has nothing to reject for --format dpo.")
    rows, card = _new_folder(options)
    count, without = Counter[str](), 0
    with (
        Tasks(options.tasks, complexity_mode=options.complexity) as tasks,
        rows.open("w", encoding="utf-8") as target,
        tqdm(total=options.cold_start, desc="export", unit="item", disable=None) as bar,
    ):
        stream = ItemStream(tasks, seed=options.seed, task_sampling="weighted")
        while count.total() < options.cold_start:
            problem = stream.next()
            # Nothing is to be learned from it; it is done.
            stream.observe(problem, [])
            if (answer := right_answer(problem.task, problem.entry)) is None:
                if (without := without + 1) > TRIED:
                    raise EnvironmentSetupError(f"{', '.join(tasks.names)}: their items have no reference answers.")
                continue
            reply = {"role": "assistant", "content": THOUGHT.format(answer=answer)}
            named = {name: getattr(problem, name) for name in KEPT}
            row = _shaped(options.format, [dict(message) for message in problem.messages], reply)
            target.write(json.dumps({**row, **named}) + "\n")
            count[problem.task], without = count[problem.task] + 1, 0
            bar.update()
    about = "* **Completions** are the items' reference answers in the form that the prompt asks for, for a cold start."
    card.write_text(_card(options, about, count, count), encoding="utf-8")
    print(f"{count.total()} examples of {len(count)} tasks in {options.to}")


def _new_folder(options: argparse.Namespace, *, is_replaced: bool = False) -> tuple[Path, Path]:
    """The files of rows and of the card. Raises EnvironmentSetupError if they cannot be written."""
    rows, card = options.to / ROWS, options.to / CARD
    if not is_replaced and (rows.exists() or card.exists()):
        raise EnvironmentSetupError(f"{options.to} holds an export already: name a new folder with --to.")
    check_folder("--to", rows.parent)
    return rows, card


def _shaped(form: str, prompt: list[Any], reply: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [*prompt, reply]} if form == "messages" else {"prompt": prompt, "completion": [reply]}


def write_export(groups: Path, form: str) -> Path:
    """What `process` was told to write beside its groups: their export, in place of an earlier one; its folder."""
    folder = groups.with_name(f"{groups.stem}.{form}")
    _export(_parser().parse_args([str(groups), "--to", str(folder), "--format", form]), is_replaced=True)
    return folder


def _export(options: argparse.Namespace, *, is_replaced: bool = False) -> None:
    if not options.paths:
        raise EnvironmentSetupError("name at least one PATH, or --cold-start N.")
    files = list({file.resolve(): file for path in options.paths for file in files_of(Path(path))}.values())
    rows, card = _new_folder(options, is_replaced=is_replaced)
    groups_of: Counter[str] = Counter()
    rows_of: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    taken: dict[str, set[int]] = {}
    models: set[str] = set()
    with rows.open("w", encoding="utf-8") as target:
        for group, settings in _groups(files, left_out):
            groups_of[group.task] += 1
            models.add(str(settings.get("model_name", "not recorded")))
            texts = taken.setdefault(group.rollouts[0]["question_digest"], set())
            if is_held_out(group.rollouts[0]["question"]):
                left_out["a question that is held out for evaluation"] += 1
                continue
            if len(texts) >= options.per_question:
                left_out["a question that has its rows already"] += 1
                continue
            found = list(_rows(group, options, texts))
            if not found and any(_text(one) in texts for one in _good(group, options)):
                left_out["a group whose good completions are there already"] += 1
            elif not found:
                left_out["a group without a good completion" + (" and a worse one" * (options.format == "dpo"))] += 1
            for row in found:
                # ASCII, as a completion may hold half of a character.
                target.write(json.dumps(row) + "\n")
                rows_of[group.task] += 1
    if not rows_of:
        rows.unlink()
        raise EnvironmentSetupError(f"There is nothing to export: {_told(left_out) or 'the files hold no groups'}.")
    pairs = ", beside the worst of its group" if options.format == "dpo" else ""
    about = f"""* **Model**: {", ".join(sorted(models))}.
* **Good** is a completion with a verifier's score of at least {options.min_score:g}, that was not cut off; at most
  {options.per_question} of a question{pairs}.
* **Left out**: {_told(left_out) or "nothing"}."""
    card.write_text(_card(options, about, rows_of, groups_of), encoding="utf-8")
    table = Table("task", "groups", "rows", title=f"{sum(rows_of.values())} rows in {options.to}")
    for task in sorted(groups_of):
        table.add_row(task, str(groups_of[task]), str(rows_of[task]))
    print_table(Output(), table)
    if left_out:
        print(f"Left out: {_told(left_out)}.")


def _told(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in sorted(left_out.items()))


def _groups(files: Sequence[Path], left_out: Counter[str]) -> Iterator[tuple[Group, Mapping[str, Any]]]:
    """The groups of all files, one at a time, each with the settings that its line names."""
    size = sum(file.stat().st_size for file in files)
    with tqdm(total=size, desc="export", unit="B", unit_scale=True, disable=None) as bar:
        for path in files:
            with path.open("rb") as file:
                for number, line, length in numbered_lines(file):
                    bar.update(length)
                    if line is not None and not line.strip():
                        continue
                    try:
                        record = read_object(line)
                        if "question" in record or "evaluation" in record:
                            left_out["an answer of an evaluation"] += 1
                            continue
                        group = group_in(record, number)
                    except BrokenLineError:
                        left_out["a line that holds no group"] += 1
                        continue
                    settings = record.get("settings")
                    yield group, settings if isinstance(settings, dict) else {}


def _good(group: Group, options: argparse.Namespace) -> list[Mapping[str, Any]]:
    # What was cut off, or is masked for another reason, is no example for anybody.
    scored = (one for one in group.rollouts if one["score"] is not None)
    return [one for one in scored if one["score"] >= options.min_score and not one.get("mask_reason")]


def _text(rollout: Mapping[str, Any]) -> int:
    return hash(rollout["messages"][-1]["content"])


def _rows(group: Group, options: argparse.Namespace, taken: set[int]) -> Iterator[dict[str, Any]]:
    """Rows of the best completions first; `taken` has the hashes of those that their question has, and gets theirs."""
    scored = [one for one in group.rollouts if one["score"] is not None]
    worst = min(scored, key=lambda one: float(one["score"]), default=None)
    for one in sorted(_good(group, options), key=lambda one: -float(one["score"])):
        *prompt, reply = one["messages"]
        if (text := _text(one)) in taken or len(taken) >= options.per_question:
            continue
        if options.format != "dpo":
            row = {**_shaped(options.format, prompt, reply), **_about(one)}
        elif worst is not None and worst["score"] < one["score"]:
            pair = {"prompt": prompt, "chosen": [reply], "rejected": [worst["messages"][-1]]}
            row = {**pair, **_about(one), "score_rejected": worst["score"]}
        else:
            continue
        taken.add(text)
        yield row


def _about(rollout: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: rollout.get(name) for name in KEPT}, "score": rollout["score"]}


def _card(options: argparse.Namespace, about: str, rows_of: Mapping[str, int], groups_of: Mapping[str, int]) -> str:
    tasks = "\n".join(f"| {task} | {groups_of[task]} | {rows_of.get(task, 0)} |" for task in sorted(groups_of))
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: {ROWS.as_posix()}
tags: [reasoning-gym, {options.format.replace("_", "-")}]
---

# {sum(rows_of.values())} rows in the format {options.format}

Completions to questions of [reasoning-gym](https://github.com/open-thought/reasoning-gym), scored by its verifiers.

{about}
* **Not in it**: the one question in ten that is held out for evaluation, by a hash of its text.
* Made by `reasoning-gym-env export`, version {__version__}.

| task | groups | rows |
|---|---|---|
{tasks}
"""
