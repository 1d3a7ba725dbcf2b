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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
from tqdm import tqdm

from .. import __version__
from ..api import PromptedProblem, Tasks
from ..errors import EnvironmentSetupError
from ..report.load import Group, files_of, group_in
from ..sampling.item_maker import is_held_out
from ..storage.json_lines import BrokenLineError, read_object
from ..tasks import reasoning_gym_source as library
from ..utils.terminal import check_folder, positive, share
from .items import right_answer, training_items

FORMATS = ("messages", "prompt_completion", "dpo")
ROWS, CARD = Path("data", "train.jsonl"), Path("README.md")
CARD_TEMPLATE = Path(__file__).resolve().parent.parent / "report" / "templates" / "dataset_card.md.j2"
KEPT = ("task", "category", "level", "index", "seed")
THOUGHT = "<think>\nI work out what is asked. The answer is {answer}.\n</think>\n<answer>{answer}</answer>"
"""What an example for a cold start answers: it teaches the form, not how to think."""
TRIED = 200
"""Items in a row without a reference answer, after which there is none to be had."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises EnvironmentSetupError or OSError for files that cannot be exported as asked."""
    options = _parser().parse_args(arguments)
    if options.cold_start:
        with library.stdout_to_stderr():
            _write_examples(options)
    else:
        _export(options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env export",
        description="Write the good completions of dumps and groups, or pairs of a good and a bad one, as a folder "
        "that Hugging Face's datasets, TRL and Axolotl read. None of their questions is held out for evaluation.",
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="dumps and groups of process: files, or folders")
    add("--to", required=True, metavar="FOLDER", type=Path, help="a new folder")
    pair = "dpo: the best and the worst completion of each group"
    add("--format", choices=FORMATS, default=FORMATS[0], help=pair)
    good = "verifier's score from which a completion is good, 0 to 1 (default: 1, full credit)"
    add("--min-score", type=share, default=1.0, metavar="S", help=good)
    add("--per-question", type=positive, default=1, metavar="N", help="good completions of a question (default: 1)")
    cold = parser.add_argument_group("without completions, for a model that does not use <think> and <answer> yet")
    what = "write N training items with their reference answers, none of which is held out for evaluation"
    cold.add_argument("--cold-start", type=positive, metavar="N", help=what)
    cold.add_argument("--tasks", default="", help="names, globs or category:NAME, comma-separated (default: all)")
    cold.add_argument("--complexity", type=share, default=0.0, help="0 (easiest level, the default) to 1 (hardest)")
    cold.add_argument("--seed", type=int, default=42, help="another seed than the training's gives other items")
    return parser


# --- the rows


def _write_examples(options: argparse.Namespace) -> None:
    """Supervised examples from the items that training draws, so that no question of an evaluation is among them."""
    if options.paths or options.format == "dpo":
        raise EnvironmentSetupError("--cold-start takes no PATH, and has nothing to reject for --format dpo.")
    path = _new_rows(options)
    count = Counter[str]()
    with Tasks(options.tasks, complexity_mode=options.complexity) as tasks, path.open("w", encoding="utf-8") as target:
        found = islice(_answered(tasks, options.seed), options.cold_start)
        for problem, answer in tqdm(found, "export", options.cold_start, unit="item", disable=None):
            reply = {"role": "assistant", "content": THOUGHT.format(answer=answer)}
            row = _shaped(options.format, list(map(dict, problem.messages)), reply)
            target.write(json.dumps({**row, **{name: getattr(problem, name) for name in KEPT}}) + "\n")
            count[problem.task] += 1
    _write_card(options, count, count)
    print(f"{count.total()} examples of {len(count)} tasks in {options.to}")


def _answered(tasks: Tasks, seed: int) -> Iterator[tuple[PromptedProblem, str]]:
    """Training items that have a reference answer, with it."""
    without = 0
    for problem in training_items(tasks, seed):
        answer = right_answer(problem.task, problem.entry)
        without = without + 1 if answer is None else 0
        if without > TRIED:
            raise EnvironmentSetupError(f"{', '.join(tasks.names)}: their items have no reference answers.")
        if answer is not None:
            yield problem, answer


def write_export(groups: Path, form: str) -> Path:
    """What `process` was told to write beside its groups: their export, in place of an earlier one; its folder."""
    folder = groups.with_name(f"{groups.stem}.{form}")
    _export(_parser().parse_args([str(groups), "--to", str(folder), "--format", form]), is_replaced=True)
    return folder


def _export(options: argparse.Namespace, *, is_replaced: bool = False) -> None:
    if not options.paths:
        raise EnvironmentSetupError("name at least one PATH, or --cold-start N.")
    files = list({file.resolve(): file for path in options.paths for file in files_of(Path(path))}.values())
    path = _new_rows(options, is_replaced=is_replaced)
    groups_of, rows_of, left_out = Counter[str](), Counter[str](), Counter[str]()
    taken: dict[str, set[int]] = {}
    models: set[str] = set()
    with path.open("w", encoding="utf-8") as target:
        for group, model in _groups(files, left_out):
            groups_of[group.task] += 1
            models.add(model)
            if is_held_out(group.rollouts[0]["question"]):
                left_out["a question that is held out for evaluation"] += 1
                continue
            rows = list(_rows(group, options, taken.setdefault(group.rollouts[0]["question_digest"], set())))
            if not rows:
                left_out["a question that has its rows already, or a group without a good completion"] += 1
            for row in rows:
                # ASCII, as a completion may hold half of a character.
                target.write(json.dumps(row) + "\n")
                rows_of[group.task] += 1
    reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(left_out.items()))
    if not rows_of:
        path.unlink()
        raise EnvironmentSetupError(f"There is nothing to export: {reasons or 'the files hold no groups'}.")
    _write_card(options, rows_of, groups_of, models=sorted(models), left_out=reasons)
    print(f"{rows_of.total()} rows of {groups_of.total()} groups in {options.to}; its {CARD} has them by task.")
    if left_out:
        print(f"Left out: {reasons}.")


def _groups(files: Sequence[Path], left_out: Counter[str]) -> Iterator[tuple[Group, str]]:
    """The groups of all files, one at a time, each with the model that its line names."""
    for path in tqdm(files, "export", unit="file", disable=None):
        with path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    record = read_object(line)
                    group = group_in(record, number)
                except BrokenLineError:
                    left_out["a line that holds no group"] += 1
                    continue
                settings = record.get("settings")
                yield group, str((settings if isinstance(settings, dict) else {}).get("model_name", "not recorded"))


def _rows(group: Group, options: argparse.Namespace, taken: set[int]) -> Iterator[dict[str, Any]]:
    """Rows of the best completions first; `taken` has the hashes of those that their question has, and gets theirs."""
    scored = sorted((one for one in group.rollouts if one["score"] is not None), key=lambda one: -float(one["score"]))
    for one in scored:
        *prompt, reply = one["messages"]
        text, worst = hash(reply["content"]), scored[-1]
        is_enough = text in taken or len(taken) >= options.per_question
        # What was cut off, or is masked for another reason, is no example for anybody.
        if is_enough or one["score"] < options.min_score or one.get("mask_reason"):
            continue
        about = {**{name: one.get(name) for name in KEPT}, "score": one["score"]}
        if options.format != "dpo":
            taken.add(text)
            yield {**_shaped(options.format, prompt, reply), **about}
        elif worst["score"] < one["score"]:
            taken.add(text)
            pair = {"prompt": prompt, "chosen": [reply], "rejected": [worst["messages"][-1]]}
            yield {**pair, **about, "score_rejected": worst["score"]}


def _shaped(form: str, prompt: list[Any], reply: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [*prompt, reply]} if form == "messages" else {"prompt": prompt, "completion": [reply]}


# --- the folder


def _new_rows(options: argparse.Namespace, *, is_replaced: bool = False) -> Path:
    """The file of rows. Raises EnvironmentSetupError if it cannot be written."""
    path: Path = options.to / ROWS
    if not is_replaced and (path.exists() or (options.to / CARD).exists()):
        raise EnvironmentSetupError(f"{options.to} holds an export already: name a new folder with --to.")
    check_folder("--to", path.parent)
    return path


def _write_card(options: argparse.Namespace, rows_of: Counter[str], groups_of: Counter[str], **about: Any) -> None:
    template = jinja2.Template(CARD_TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    card = template.render(options=options, rows_of=rows_of, groups_of=groups_of, version=__version__, **about)
    (options.to / CARD).write_text(card, encoding="utf-8")
