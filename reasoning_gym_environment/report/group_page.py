"""The HTML page beside a `process` file, made by Atropos' renderer from text that cannot act.

Atropos renders completions as Markdown with raw HTML: a script in a completion would run in the reader's browser, and
`<think>` and `<answer>` would vanish. Here every message is escaped first and shown as it is.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from atroposlib.frontend.jsonl2html import generate_html

from ..utils.paths import place_of_page


def write_group_page(groups: Path) -> Path:
    """Write the page of a JSONL file of groups (with `messages` and `scores`) beside it; returns its path."""
    page = place_of_page(groups)
    with tempfile.TemporaryDirectory() as folder:
        # The renderer takes its title from the file name.
        escaped = Path(folder) / groups.name
        with groups.open(encoding="utf-8") as lines, escaped.open("w", encoding="utf-8") as output:
            for line in lines:
                output.write(json.dumps(_shown(json.loads(line))) + "\n")
        generate_html(str(escaped), str(page))
    return page


def _shown(group: dict[str, Any]) -> dict[str, Any]:
    return {"scores": group["scores"], "messages": [_conversation(messages) for messages in group["messages"]]}


def _conversation(messages: list[dict[str, Any]]) -> str:
    """One block of HTML, which the Markdown renderer passes on unchanged."""
    parts = [f"<b>{_inert(str(message['role']))}</b>\n{_inert(str(message['content']))}" for message in messages]
    separator = "\n\n"
    return f'<pre style="white-space: pre-wrap">{separator.join(parts)}</pre>'


def _inert(text: str) -> str:
    """Every character that HTML or Markdown could read as markup as its number; escaping <, > and & is not enough."""
    return re.sub(r"[^\w\s]", lambda match: f"&#{ord(match[0])};", text)
