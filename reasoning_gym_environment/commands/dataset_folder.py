"""A folder that can be published as a dataset: its files and its card.

A command that ends early leaves no part of a dataset: `new_folder` moves the files to their place at the end.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from ..errors import EnvironmentSetupError
from ..utils.terminal import check_folder

CARD = Path("README.md")
TEMPLATES = Path(__file__).resolve().parent.parent / "html_report" / "templates"

UNFINISHED = ".unfinished"
"""Name of the subfolder for the files of a command that is running or was killed."""


@contextlib.contextmanager
def new_folder(folder: Path, name: str | Path) -> Iterator[Path]:
    """A folder to write the files of a dataset to. At the end they move to `folder`, the card last.

    If the command ends early, the files are removed, and `folder` too if it is new. If the command is killed, the same
    command replaces them.

    Raises EnvironmentSetupError if `folder` cannot be written, or has a card or a file `name` already.
    """
    if (folder / CARD).exists() or (folder / name).exists():
        raise EnvironmentSetupError(f"{folder} holds a dataset already: name a new folder with --to.")
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        check_folder("--to", unfinished)
        yield unfinished
        files = [path for path in unfinished.rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == CARD.name):
            place = folder / file.relative_to(unfinished)
            place.parent.mkdir(exist_ok=True)
            file.replace(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        for path in created:
            # A folder with files is kept.
            with contextlib.suppress(OSError):
                path.rmdir()


def write_card(folder: Path, template_name: str, **values: Any) -> None:
    """Write the card of a folder from a template of `html_report/templates`."""
    text = (TEMPLATES / template_name).read_text(encoding="utf-8")
    template = jinja2.Template(text, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    (folder / CARD).write_text(template.render(**values), encoding="utf-8")
