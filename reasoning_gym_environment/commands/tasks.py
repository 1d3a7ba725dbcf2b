"""A look at what is served, before anything is trained, for a person or as JSON.

`reasoning-gym-env tasks`: a table of all tasks, with what is known of each. `reasoning-gym-env preview TASK`: items of
one task at some difficulty, with config and oracle answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..api import ItemStream, PromptedProblem, Tasks
from ..errors import EnvironmentSetupError
from ..tasks import reasoning_gym_source as library
from ..tasks.catalog import Catalog, discover, progress
from ..tasks.difficulty_ladder import WITHOUT_EFFECT, build_ladders
from ..tasks.measured_data import load_facts
from ..tasks.selectors import parse_names
from ..utils.terminal import Output, positive, print_table, share
from ..verification import eval_guards
from ..verification.grade import CHECKS

CHARS_PER_TOKEN = 3.5
"""A rough figure for English and numbers; what counts at run time is the run's own tokenizer."""

COLUMNS = ("task", "category", "levels", "oracle", "verifier", "ms", "~tokens", "distinct")
LEGEND = (
    "oracle: items come with a right answer. verifier: checked = reasoning-gym's own pays some wrong answers, which "
    "verification: strict refuses (docs/verifiers.md). ms, ~tokens: to make an item, and in its prompt; distinct: "
    "questions in so many draws; all measured at the default config."
)
WITHOUT_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
"""Tasks whose items have no answer of their own."""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises EnvironmentSetupError for a mistake in the arguments."""
    options = _parser().parse_args(arguments)
    include = [*options.tasks, *options.include, *(f"category:{name}" for name in options.category)]
    with library.stdout_to_stderr():
        catalog = discover(include=include, exclude=options.exclude, modules=options.task_modules)
        records = task_records(catalog, difficulty_range=options.difficulty_range)
    if options.json:
        print(json.dumps(records, indent=1))
        return 0
    print_table(Output(), _table(records))
    for name, reason in catalog.excluded.items():
        if "include_tasks" not in reason and "exclude_tasks" not in reason:
            print(f"left out: {name} ({reason})")
    count = f"{len(catalog)} task{'s' * (len(catalog) != 1)}"
    print(f"{count}, categories: {', '.join(catalog.categories)}; reasoning-gym {library.load().version}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env tasks",
        description="List the tasks that would be served: levels of difficulty, whether items have a right answer "
        "(oracle), how far the verifier can be trusted, and what making items was measured to take.",
    )
    parser.add_argument("tasks", metavar="TASK", nargs="*", help="as in --include")
    for name, text in (
        ("--include", "names, globs or category:NAME, comma-separated (default: all)"),
        ("--exclude", "tasks to leave out, written like --include"),
        ("--category", "categories, comma-separated"),
    ):
        parser.add_argument(name, type=parse_names, default=[], help=text)
    return _with_shared(parser, json_help="everything known, as JSON")


def _with_shared(parser: argparse.ArgumentParser, *, json_help: str) -> argparse.ArgumentParser:
    parser.add_argument("--difficulty-range", choices=("level", "cumulative"), default="level")
    modules = "register your own datasets first"
    parser.add_argument("--task-modules", type=parse_names, default=[], metavar="MODULES", help=modules)
    parser.add_argument("--json", action="store_true", help=json_help)
    return parser


def task_records(catalog: Catalog, *, difficulty_range: Any = "level") -> list[dict[str, Any]]:
    """One plain record per task, in the catalog's order."""
    measured = load_facts(library.load().version)
    ladders = build_ladders(progress("difficulty ladders")(catalog.tasks), difficulty_range=difficulty_range)
    return [
        {
            "task": task.name,
            "category": task.category,
            "levels": len(ladders[task.name]),
            "has_curriculum": library.has_curriculum(task.name),
            "note": WITHOUT_EFFECT.get(task.name, ""),
            "has_oracle": task.name not in WITHOUT_ANSWER,
            "verifier": "checked" if task.name in CHECKS else "native",
            "evaluates_answers": task.name in eval_guards.GUARDS,
            "measured": asdict(measured[task.name]) if task.name in measured else None,
        }
        for task in catalog.tasks
    ]


def _table(records: Sequence[dict[str, Any]]) -> Table:
    table = Table(caption=LEGEND, caption_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in COLUMNS[5:] else "left", no_wrap=True)
    for one in records:
        cells = [one["task"], one["category"], str(one["levels"]) + " (no curriculum)" * (not one["has_curriculum"])]
        cells += ["yes" if one["has_oracle"] else "no", one["verifier"]]
        measured = ["-", "-", "not measured"]
        if one["measured"]:
            of = one["measured"]["default"]
            measured = [f"{of['ms']:.1f}", f"{of['chars'] / CHARS_PER_TOKEN:,.0f}", f"{of['distinct']}/{of['draws']}"]
        table.add_row(*cells, *measured)
    return table


# --- preview


def preview(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises EnvironmentSetupError for a mistake in the arguments or an item that cannot be made."""
    options = _preview_parser().parse_args(arguments)
    with library.stdout_to_stderr():
        items = _items(options)
    if options.json:
        print(json.dumps(items, indent=1, default=str))
    else:
        _show(items)
    return 0


def _preview_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reasoning-gym-env preview",
        description="Print items of a task as training draws them, with the config they were made from and the oracle "
        "answer. Without --complexity: reasoning-gym's default config.",
    )
    parser.add_argument("task", metavar="TASK", help="`reasoning-gym-env tasks` lists them")
    parser.add_argument("--complexity", type=share, help="0 (easiest level) to 1 (hardest); the nearest level is used")
    parser.add_argument("--count", type=positive, default=1, help="how many items (default: 1)")
    parser.add_argument("--seed", type=int, default=42, help="other items with another seed (default: 42)")
    return _with_shared(parser, json_help="plain data instead of panels")


def _items(options: argparse.Namespace) -> list[dict[str, Any]]:
    with Tasks(
        options.task,
        modules=options.task_modules,
        # Nothing is graded here, so a verifier that evaluates answers does no harm.
        allow_unguarded=list(eval_guards.unguarded_tasks()),
        complexity_mode=options.complexity,
        difficulty_range=options.difficulty_range,
    ) as tasks:
        if len(tasks.names) > 1:
            raise EnvironmentSetupError(f"{options.task!r} stands for {', '.join(tasks.names)}: name one of them.")
        names = ("task", "category", "level", "complexity", "config", "seed", "question")
        return [
            {name: getattr(problem, name) for name in names}
            | {"oracle_answer": right_answer(problem.task, problem.entry)}
            for problem in islice(training_items(tasks, options.seed), options.count)
        ]


def training_items(tasks: Tasks, seed: int) -> Iterator[PromptedProblem]:
    """Items as a training run draws them, without end; no question is held out for evaluation."""
    stream = ItemStream(tasks, seed=seed, task_sampling="weighted")
    for problem in stream:
        # Nothing is to be learned from it; it is done.
        stream.observe(problem, [])
        yield problem


def right_answer(task: str, entry: Mapping[str, Any]) -> str | None:
    """A right answer to the item: its own, or the example in its metadata; None where there is neither.

    An integral that is only written down is no answer, though it is some items' own.
    """
    if entry["answer"] is not None:
        answer = str(entry["answer"])
        return None if "Integral(" in answer else answer
    metadata = entry["metadata"]
    if task == "graph_color":
        return json.dumps(metadata["possible_answer"])
    return metadata["example_correct_answer"] or None if task == "rubiks_cube" else None


def _show(items: Sequence[dict[str, Any]]) -> None:
    console = Output()
    for item in items:
        place = "default config"
        if item["level"] is not None:
            place = f"level {item['level']}, complexity {item['complexity']:.2f}"
        config = ", ".join(f"{name}={value!r}" for name, value in item["config"].items())
        answer = item["oracle_answer"] or "none: no right answer is at hand"
        body = Text.assemble((f"{config}\n\n", "dim"), item["question"], ("\n\noracle answer: ", "bold"), answer)
        console.print(Panel(body, title=f"{item['task']} ({item['category']}), {place}, seed {item['seed']}"))
