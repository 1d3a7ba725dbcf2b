"""A folder that can be published as a dataset: its files and its card.

A command that ends early leaves no part of a dataset: `new_folder` gives the folder its name at the end.
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


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write the files of a dataset to, which becomes `folder` at the end.

    If the command ends early, the files are removed. If the command is killed, the same command replaces them.

    Raises EnvironmentSetupError if `folder` cannot be written, or is not empty.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise EnvironmentSetupError(f"--to: expected a new folder, but {folder} exists and is not empty.")
    unfinished = folder.absolute().with_name(f".{folder.absolute().name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        check_folder("--to", unfinished)
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_card(folder: Path, template_name: str, **values: Any) -> None:
    """Write the card of a folder from a template of `html_report/templates`."""
    text = (TEMPLATES / template_name).read_text(encoding="utf-8")
    template = jinja2.Template(text, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    (folder / CARD).write_text(template.render(**values), encoding="utf-8")
