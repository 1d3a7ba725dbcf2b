"""The command `export`: scored groups -> a folder of rows that fine-tuning libraries read.

    dumps of serve, groups of process ──> groups ──> good completions, or pairs of a good and a bad one ──> FOLDER
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
from ..errors import EnvironmentSetupError
from ..report.load import Group, files_of, group_in
from ..sampling.seeds import is_held_out
from ..training_log.dump_files import BrokenLineError, numbered_lines, read_object
from ..utils.terminal import Output, check_folder, positive, print_table, share

FORMATS = ("messages", "prompt_completion", "dpo")
ROWS, CARD = Path("data", "train.jsonl"), Path("README.md")
KEPT = ("task", "category", "level", "index", "seed")


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 for files that cannot be exported as asked."""
    options = _parser().parse_args(arguments)
    try:
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
    parser.add_argument("paths", nargs="+", metavar="PATH", help="dumps and groups of process: files, or folders")
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
    return parser


def write_export(groups: Path, form: str) -> Path:
    """What `process` was told to write beside its groups: their export, in place of an earlier one; its folder."""
    folder = groups.with_name(f"{groups.stem}.{form}")
    _export(_parser().parse_args([str(groups), "--to", str(folder), "--format", form]), is_replaced=True)
    return folder


def _export(options: argparse.Namespace, *, is_replaced: bool = False) -> None:
    rows, card = options.to / ROWS, options.to / CARD
    if not is_replaced and (rows.exists() or card.exists()):
        raise EnvironmentSetupError(f"{options.to} holds an export already: name a new folder with --to.")
    files = list({file.resolve(): file for path in options.paths for file in files_of(Path(path))}.values())
    check_folder("--to", rows.parent)
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
    card.write_text(_card(options, rows_of, groups_of, left_out, models), encoding="utf-8")
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
        if options.format == "messages":
            row = {"messages": one["messages"], **_about(one)}
        elif options.format == "prompt_completion":
            row = {"prompt": prompt, "completion": [reply], **_about(one)}
        elif worst is not None and worst["score"] < one["score"]:
            pair = {"prompt": prompt, "chosen": [reply], "rejected": [worst["messages"][-1]]}
            row = {**pair, **_about(one), "score_rejected": worst["score"]}
        else:
            continue
        taken.add(text)
        yield row


def _about(rollout: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: rollout.get(name) for name in KEPT}, "score": rollout["score"]}


def _card(
    options: argparse.Namespace,
    rows_of: Mapping[str, int],
    groups_of: Mapping[str, int],
    left_out: Mapping[str, int],
    models: set[str],
) -> str:
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

* **Model**: {", ".join(sorted(models))}.
* **Good** is a completion with a verifier's score of at least {options.min_score:g}, that was not cut off; at most
  {options.per_question} of a question{", beside the worst of its group" if options.format == "dpo" else ""}.
* **Left out**: {_told(left_out) or "nothing"}.
* **Not in it**: the one question in ten that is held out for evaluation, by a hash of its text.
* Made by `reasoning-gym-env export`, version {__version__}.

| task | groups | rows |
|---|---|---|
{tasks}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
