"""What the tests of reports share: a page taken apart, one evaluation, and a folder of everything."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from reasoning_gym_environment.report.load import Evaluation, load

from .report_samples import ATTACKS, write_dump, write_results


class Page(HTMLParser):
    """Elements with their attributes, the text of each id, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = (tag, dict(attrs))
        self.elements.append(self._open)

    def handle_endtag(self, tag: str) -> None:
        self._open = ("", {})

    def handle_data(self, data: str) -> None:
        if self._open[0] == "script":
            self.scripts.append((self._open[1], data))
        elif self._open[0] != "style":
            self.text += f"{data}\n"

    @property
    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.elements}

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        [data] = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        return list(json.loads(data))


def evaluation(folder: Path, **fields: Any) -> Evaluation:
    [found] = load([write_results(folder, tasks=4, **fields)]).evaluations
    return found


def write_everything(folder: Path) -> Path:
    """Two evaluations of the same questions, and a dump, all with attacks in them."""
    write_results(folder / "before", tasks=8)
    write_results(folder / "after", tasks=8, gain=0.3, seed=9)
    write_dump(folder / "dumps", groups=60, attack=ATTACKS[0])
    return folder
