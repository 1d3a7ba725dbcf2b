"""A page shows what a completion says, and nothing in it acts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reasoning_gym_environment.report.group_page import write_group_page

HOSTILE = [
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) **bold** `code`",
    "```\nfenced\n```\n\n\n    indented\n<div markdown=1>",
    "<think>2 < 3 &amp; so</think>\n\n<answer>5</answer>",
]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.in_pre = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.in_pre = self.in_pre or tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self.in_pre = self.in_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        self.text += data if self.in_pre else ""


@pytest.mark.parametrize("completion", HOSTILE)
def test_a_completion_is_shown_as_it_is_and_cannot_act(tmp_path: Path, completion: str) -> None:
    def page_of(text: str) -> Page:
        groups = tmp_path / "groups.jsonl"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
        groups.write_text(json.dumps({"scores": [1.0], "messages": [messages]}) + "\n")
        page = Page()
        page.feed(write_group_page(groups).read_text(encoding="utf-8"))
        return page

    page = page_of(completion)
    assert completion in page.text
    assert page.tags == page_of("harmless").tags


def test_the_page_lies_beside_the_file_and_names_it(tmp_path: Path) -> None:
    groups = tmp_path / "run.jsonl"
    groups.write_text(json.dumps({"scores": [0.0], "messages": [[{"role": "user", "content": "?"}]]}) + "\n")
    page = write_group_page(groups)
    assert page == tmp_path / "run.html"
    assert "run.jsonl" in page.read_text(encoding="utf-8")
