"""The documentation site (its links, its search, its API reference), and the workflows of GitHub."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import markdown
import pytest
import yaml

from testing.browser import browser, find_browser
from testing.support import PATIENCE_S, child_environment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

LINKS = [
    ("docs/sizing.md", "[settings](reference.md#servers)", "[settings](reference.md#servers)"),
    ("docs/sizing.md", "[a host](https://example.com/README.md)", "[a host](https://example.com/README.md)"),
    ("docs/sizing.md", "[start](../README.md#install)", "[start](index.md#install)"),
    ("docs/sizing.md", "[`env.py`](../reasoning_gym_environment/env.py)", "`reasoning_gym_environment/env.py`"),
    ("docs/sizing.md", "[python.md](python.md)", "[From Python](python.md)"),
    ("docs/sizing.md", "[lost](../lost.md)", "[lost](../lost.md)"),
    ("README.md", "[changes](CHANGELOG.md)", "[changes](changelog.md)"),
    ("README.md", '<img src="docs/real_model.png">', '<img src="real_model.png">'),
]
"""A file of the repository, Markdown in it, and the same Markdown on the site."""


@pytest.fixture(scope="module")
def hooks() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "site_hooks.py"))


@pytest.mark.parametrize(("source", "written", "expected"), LINKS)
def test_a_link_leads_to_the_same_page_on_the_site(
    hooks: dict[str, Any], source: str, written: str, expected: str
) -> None:
    assert hooks["for_the_site"](f"See {written}.\n", source) == f"See {expected}.\n"


def test_a_list_has_the_form_that_python_markdown_needs(hooks: dict[str, Any]) -> None:
    text = (
        "Two things:\n* first,\n  with a second line\n* second:\n  * a part\n\nSteps:\n1. start\n   * a part\n2. end\n"
    )
    html = markdown.markdown(hooks["for_the_site"](text, "docs/sizing.md"))
    outline = re.findall(r"</?(?:ul|ol)>|(?<=<li>)\w+", html)
    unordered = ["<ul>", "first", "second", "<ul>", "a", "</ul>", "</ul>"]
    ordered = ["<ol>", "start", "<ul>", "a", "</ul>", "end", "</ol>"]
    assert outline == unordered + ordered


@pytest.mark.parametrize("name", ["checks.yml", "slow-tests.yml"])
def test_a_workflow_runs_only_targets_of_the_makefile(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = {step["run"] for step in steps if "run" in step}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands and commands <= {f"make {target}" for target in targets}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A broken link fails the test."""
    folder = tmp_path_factory.mktemp("site")
    environment = child_environment(NO_MKDOCS_2_WARNING="1", PYTHONPATH="")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_an_entry_for_every_public_name(site: Path) -> None:
    import reasoning_gym_environment as package

    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    missing = [
        name for name, home in package._HOME.items() if f'id="{package.__name__}.{home}.{name}"' not in reference
    ]
    assert missing == []


@pytest.mark.slow
async def test_search_works_in_pages_that_are_opened_as_files(site: Path) -> None:
    program = find_browser()
    assert program is not None, "This test needs a browser: apt-get install chromium"
    async with browser(program) as page:
        await page.open(f"{(site / 'reference.html').as_uri()}?q=curriculum", width=1400)
        await page.until("document.querySelectorAll('.md-search-result__item').length > 5")
