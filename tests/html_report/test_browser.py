"""The page in a real headless Chromium: what it draws, what a reader can do, and that no text of a model acts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest

from reasoning_gym_environment.html_report.comparison import compare
from reasoning_gym_environment.html_report.load import load
from reasoning_gym_environment.html_report.main import main
from testing.browser import TOO_WIDE, Browser, browser, find_browser
from testing.report_samples import ATTACKS, MARK, group_line, write_dump, write_lines, write_results, write_run

pytestmark = pytest.mark.slow

WIDTHS = (420, 1400, 2200)
SCHEMES = ("light", "dark")
ROW = "document.querySelectorAll('#rows .row').length"
COUNT = "document.getElementById('count').textContent"
READY = f"{ROW} > 0 && document.querySelector('#rows .question') !== null"


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.fail("These tests need a browser: apt-get install chromium", pytrace=False)
    async with browser(program) as page:
        yield page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages `run.html`, `attacks.html` and `compare.html`, and the files behind them."""
    folder = tmp_path_factory.mktemp("pages")
    run = write_run(folder / "run")
    before = write_results(folder / "before", tasks=12)
    after = write_results(folder / "after", tasks=12, gain=0.2, seed=9)
    dumps = write_dump(folder / "dumps", groups=60, attack=ATTACKS[0])
    assert main([str(run), "-o", str(folder / "run.html")]) == 0
    assert main([str(before), str(dumps), "-o", str(folder / "attacks.html"), "--title", ATTACKS[2]]) == 0
    assert main(["--compare", str(before), str(after), "-o", str(folder / "compare.html")]) == 0
    return folder


async def test_all_pages_are_drawn_at_every_width_light_and_dark(folder: Path, tmp_path: Path) -> None:
    async with opened_browser() as page:
        for name, width, scheme in product(("run", "attacks", "compare"), WIDTHS, SCHEMES):
            await page.open((folder / f"{name}.html").as_uri(), width=width, scheme=scheme)
            await page.until(READY)
            case = (name, width, scheme)
            assert json.loads(await page.value(TOO_WIDE)) == [], case
            picture = tmp_path / f"{name}-{width}-{scheme}.png"
            picture.write_bytes(await page.picture(width=width))
            assert picture.stat().st_size > 50_000, case
            curves = await page.value("document.querySelectorAll('#curves canvas').length")
            assert curves >= {"run": 6, "attacks": 4, "compare": 0}[name], case
            height = await page.value("document.documentElement.scrollHeight")
            assert height < {420: 6500, 1400: 4200, 2200: 3600}[width], case
        assert page.mistakes == []


async def test_a_task_opens_its_curves_and_a_sample_leads_to_the_next(folder: Path) -> None:
    async with opened_browser() as page:
        await page.open((folder / "run.html").as_uri(), width=1400)
        await page.until(READY)
        await page.value("document.querySelectorAll('.opener')[1].click()")
        assert await page.value("document.querySelectorAll('#task-table .card canvas').length") >= 1
        await page.value("document.querySelectorAll('#task-table thead button')[0].click()")
        assert await page.value("document.querySelectorAll('#task-table .card').length") == 0
        await page.value("location.hash = '#samples?open=0&source=run+run'")
        text = "document.getElementById('detail').textContent"
        await page.until(f"{text}.includes('advantage') && {text}.includes('tokens')")
        await page.value(
            "[...document.querySelectorAll('#detail button')].find((b) => b.textContent === 'next').click()"
        )
        await page.until("document.querySelector('#row-1').getAttribute('aria-selected') === 'true'")
        assert "open=1" in await page.value("location.hash")
        assert page.mistakes == []


async def test_the_page_opens_no_connection(folder: Path) -> None:
    async with opened_browser() as page:
        await page.open((folder / "run.html").as_uri(), width=1400)
        await page.until(READY)
        loaded = await page.value("performance.getEntriesByType('resource').length")
        assert loaded == 0


async def test_no_text_of_a_model_acts(folder: Path) -> None:
    async with opened_browser() as page:
        for attack in ATTACKS[:6]:
            query = urlencode({"q": attack, "open": "0"})
            await page.open(f"{(folder / 'attacks.html').as_uri()}#samples?{query}", width=1400)
            text = "document.getElementById('detail').textContent"
            await page.until(f"{text}.includes({json.dumps(attack)})")
            # The small curves of the tasks are ours.
            active = "main img, main iframe, main svg:not(.spark), main [onerror], main [onload], main script"
            assert await page.value(f"document.querySelectorAll('{active}').length") == 0
            assert MARK not in (await page.value("document.title")).replace(ATTACKS[2], "")
        assert page.mistakes == []


async def test_the_policy_stops_what_escaping_would_have_missed(folder: Path) -> None:
    page_text = (folder / "run.html").read_text(encoding="utf-8")
    attack = "".join(f"<body>{attack}" for attack in ATTACKS[:6])
    start, end = page_text.index("<meta http-equiv"), page_text.index("<meta name=")
    broken, without_policy = folder / "broken.html", folder / "without_policy.html"
    broken.write_text(page_text.replace("</main>", f"</main>{attack}", 1), encoding="utf-8")
    unprotected = page_text[:start] + page_text[end:]
    without_policy.write_text(unprotected.replace("</main>", f"</main>{attack}", 1), encoding="utf-8")
    async with opened_browser() as page:
        await page.open(broken.as_uri(), width=1400)
        assert await page.value("document.title") != MARK
        await page.open(without_policy.as_uri(), width=1400)
        await page.until(f"document.title === '{MARK}'")


async def test_filters_find_what_the_numbers_say(folder: Path) -> None:
    first, second = load([folder / "before", folder / "after"]).evaluations
    comparison = compare(first, second)
    assert comparison.measures[0].difference.value > 0

    async def count(page: Browser, **filters: Any) -> int:
        await page.open(f"{(folder / 'compare.html').as_uri()}#samples?{urlencode(filters)}", width=1400)
        await page.until(f"/^[0-9]/.test({COUNT})")
        return int((await page.value(COUNT)).split()[0].replace(",", ""))

    async with opened_browser() as page:
        everything = await count(page, source="before", against="after")
        relations = [await count(page, relation=relation) for relation in ("won", "lost", "right", "wrong")]
        assert sum(relations) == everything and relations[0] > relations[1]
        expected = sum(sample["outcome"] == "format_failure" for sample in first.samples)
        unreadable = {"source": "before", "against": "", "outcome": "format_failure"}
        assert await count(page, **unreadable) == expected
        assert page.mistakes == []


async def test_many_samples_are_not_in_the_page_at_once(tmp_path: Path) -> None:
    lines = [group_line(f"task_{number % 50}", number, 0, [1.0, 0.0] * 8, Random(number)) for number in range(1500)]
    run = write_lines(tmp_path / "run.jsonl", lines)
    assert main([str(run), "-o", str(tmp_path / "many.html"), "--max-rollouts", "100000"]) == 0
    async with opened_browser() as page:
        await page.open((tmp_path / "many.html").as_uri(), width=1400)
        await page.until(READY)
        assert await page.value(COUNT) == "24,000 of 24,000"
        assert await page.value(ROW) == 50
        await page.value("document.querySelector('.pager button:last-child').click()")
        await page.until("document.querySelector('#row-99 .task') && !document.querySelector('#row-50 > :only-child')")
        assert await page.value(ROW) == 50
        await page.value("location.hash = '#samples?q=1499+of'")
        await page.until(f"{COUNT}.startsWith('16 of')")
