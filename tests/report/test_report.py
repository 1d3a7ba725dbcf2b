"""The report: everything in it, and nothing in it that can act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.report import charts
from reasoning_gym_environment.report.load import TEXT_LIMIT, as_inert_json, load, select, split_thinking
from reasoning_gym_environment.report.main import main
from reasoning_gym_environment.report.page import policy, render

from ..report_page import Page, write_everything
from ..report_samples import ATTACKS, MARK, write_dump, write_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    output = folder / "page.html"
    assert main([str(folder / "before"), str(folder / "dumps"), "-o", str(output), "--title", ATTACKS[2]]) == 0
    return Page(output.read_text(encoding="utf-8"))


# --- what the page holds


def test_the_page_has_every_section_and_needs_nothing_from_outside(page: Page) -> None:
    assert {"evaluation-1", "training", "levels", "details", "rollouts", "filters", "list"} <= page.ids
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), (tag, attributes)
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert {"accuracy", "pass@3", "unscored", "Format failures"} <= {line.strip() for line in page.text.splitlines()}


def test_no_text_of_a_file_becomes_an_element_or_an_attribute(page: Page) -> None:
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 2
    assert len([tag for tag, _ in page.elements if tag == "style"]) == 1 + page_figures(page)
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert ATTACKS[0] in page.text and ATTACKS[2] in page.text


def page_figures(page: Page) -> int:
    """Matplotlib puts one style element into each figure."""
    return len([tag for tag, _ in page.elements if tag == "svg"])


def test_the_policy_allows_our_script_alone(page: Page) -> None:
    [(_, script)] = [(attributes, text) for attributes, text in page.scripts if not attributes.get("type")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [allowed] = [a["content"] for tag, a in page.elements if tag == "meta" and a.get("http-equiv")]
    assert allowed == policy(script)
    assert f"script-src 'sha256-{digest}';" in (allowed or "")
    assert (allowed or "").startswith("default-src 'none';")


def test_our_script_writes_text_only(page: Page) -> None:
    [script] = [text for attributes, text in page.scripts if not attributes.get("type")]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\(", script)


def test_rollouts_come_through_as_they_were(page: Page) -> None:
    shown = {one["question"] for one in page.rollouts}
    assert set(ATTACKS[:9]) <= shown
    attacked = next(one for one in page.rollouts if one["question"] == ATTACKS[1])
    assert (attacked["thinking"], attacked["reply"]) == (ATTACKS[1], ATTACKS[1])
    assert {"unscored", "correct", "wrong", "format_failure"} <= {one["outcome"] for one in page.rollouts}


@pytest.mark.parametrize("attack", ATTACKS)
def test_json_in_a_script_element_holds_no_markup(attack: str) -> None:
    text = as_inert_json([attack])
    assert not set("<>&\u2028\x00") & set(text)
    assert json.loads(text) == [attack]


@pytest.mark.parametrize("attack", ATTACKS)
def test_labels_of_charts_are_text(attack: str) -> None:
    chart = charts.bars([charts.Bar(attack, 0.5, 0.4, 0.6)], axis="accuracy")
    drawn = Page(chart)
    assert {tag for tag, _ in drawn.elements} <= {
        *("svg", "metadata", "rdf:rdf", "cc:work", "dc:type", "dc:format", "defs", "style"),
        *("g", "path", "text", "tspan", "use", "clippath", "rect"),
    }
    assert charts.shown(attack) in " ".join(drawn.text.split("\n"))


# --- how much it holds


def test_a_long_list_of_rollouts_is_cut_evenly_and_a_note_says_so(folder: Path) -> None:
    sources = load([folder / "before", folder / "dumps"])
    selection = select(sources, 60)
    kept = json.loads(selection.payload)
    assert (selection.shown, len(kept), selection.total) == (60, 60, 8 * 5 * 3 + 60 * 8)
    assert {"unscored", "correct", "wrong", "format_failure"} <= {one["outcome"] for one in kept}
    assert len({one["source"] for one in kept}) == 2
    text = " ".join(Page(render(sources, title="t", max_rollouts=60)).text.split())
    assert "60 of 600 rollouts, taken in turn from every source, task and outcome" in text


def test_a_long_text_is_cut_and_says_so(tmp_path: Path) -> None:
    sources = load([write_results(tmp_path, tasks=1, attacks=False)])
    sources.evaluations[0].samples[0]["question"] = "x" * (TEXT_LIMIT + 5)
    longest = max(json.loads(select(sources, 100).payload), key=lambda one: len(one["question"]))["question"]
    assert longest.endswith("x … [5 characters more]")
    assert len(longest) < TEXT_LIMIT + 40


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think>\n<answer>1</answer>", ("a", "<answer>1</answer>")),
        ("a</think>b", ("a", "b")),
        ("<think>a</think>b</think>c", ("a</think>b", "c")),
        ("<think>never ends", ("never ends", "")),
        ("plain", ("", "plain")),
        ("", ("", "")),
    ],
)
def test_thinking_is_what_stands_before_the_last_end_of_it(text: str, parts: tuple[str, str]) -> None:
    assert split_thinking(text) == parts


# --- what it reads


def test_files_of_every_command_are_told_apart(folder: Path, tmp_path: Path) -> None:
    processed = {
        "messages": [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]],
        "scores": [1.0],
    }
    (tmp_path / "groups.jsonl").write_text(json.dumps({**processed, "masks": [[-100, 5, 6]], "tokens": [[1, 5, 6]]}))
    sources = load([folder / "before" / "metrics.json", folder / "dumps", tmp_path / "groups.jsonl"])
    assert [(one.name, one.model, one.manifest) for one in sources.evaluations] == [
        ("before", "qwen_qwq-32b", "0123456789abcdef")
    ]
    assert len(sources.groups) == 61
    assert sources.groups[-1][1].rollouts[0]["num_completion_tokens"] == 2
    assert "unknown" in Page(render(sources, title="t", max_rollouts=9)).text


def test_every_file_of_a_folder_is_read_once_and_parts_too(tmp_path: Path) -> None:
    path = write_dump(tmp_path, groups=12)
    part = path.with_name("x_0001.jsonl.part")
    part.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n\xff\xfe\n")
    sources = load([tmp_path, path, tmp_path / "." / path.name])
    assert len(sources.groups) == 13
    assert sources.malformed == {str(part): 1}, "a byte that is no text costs its line"


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        "{}",
        '{"question": "q", "task": "t", "score": "<script>"}',
        '{"question": "q", "task": 5, "score": 1}',
        '{"item_id": "t", "rollouts": []}',
        '{"item_id": "t", "rollouts": [{"conversation": [], "score": 1}]}',
        '{"item_id": "t", "rollouts": [{"conversation": [{"content": "a"}, {"content": "b"}], "score": NaN}]}',
        "[" * 3000,
        "1" * 5000,
        '{"question": "q", "task": "t", "score": 1' + "0" * 400 + "}",
    ],
)
def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path, line: str) -> None:
    path = write_results(tmp_path / "results", tasks=2) / "samples.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    sources = load([path])
    assert sources.malformed == {str(path): 1}
    assert len(sources.evaluations[0].samples) == 30
    assert "1 lines of" in Page(render(sources, title="t", max_rollouts=9)).text


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, ["nowhere"], "nowhere does not exist"),
        (None, [], "at least one PATH"),
        ("", ["empty.jsonl"], "nothing to show"),
        ("{}", ["empty.jsonl"], "nothing to show"),
        (b"\xff\xfe", ["empty.jsonl"], "nothing to show"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, arguments: list[str], said: str
) -> None:
    if content is not None:
        (tmp_path / "empty.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main([*(str(tmp_path / name) for name in arguments), "-o", str(tmp_path / "page.html")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written_is_said_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder / "before"), "-o", str(folder / "nowhere" / "page.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["before", "before/samples.jsonl"])
@pytest.mark.parametrize("output", ["samples.jsonl", "metrics.json"])
def test_what_the_page_is_made_from_is_not_replaced(
    named: str, output: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "before" / output).read_bytes()
    assert main([str(folder / named), "-o", str(folder / "before" / output)]) == 2
    assert "would be replaced" in capsys.readouterr().err
    assert (folder / "before" / output).read_bytes() == before


def test_odd_values_beside_the_score_do_no_harm(tmp_path: Path) -> None:
    odd = [None, [], {"a": 1}, "<b>", -1, 10**400, True, 0.5]
    rollout = {"conversation": [{"content": "q"}, {"content": "a"}], "score": 1.0}
    with (tmp_path / "odd.jsonl").open("w", encoding="utf-8") as file:
        for value in odd:
            names = ("category", "index", "level", "complexity", "expected_answer")
            shared = dict.fromkeys(names, value)
            extra = dict.fromkeys(("answer", "outcome", "finish_reason", "num_completion_tokens", "raw_score"), value)
            group = {"item_id": value, "rollouts": [{**rollout, **extra}], **shared}
            line = {**dict.fromkeys(("category", "index", "outcome", "level", "attempt", "messages"), value)}
            file.write(json.dumps(group) + "\n")
            file.write(json.dumps({**line, "question": value, "task": "t", "score": 1.0}) + "\n")
    sources = load([tmp_path])
    assert (len(sources.groups), len(sources.evaluations[0].samples), sources.malformed) == (8, 8, {})
    assert len(Page(render(sources, title="t", max_rollouts=99)).rollouts) == 16


def test_the_mark_of_the_attacks_stands_in_them() -> None:
    assert sum(MARK in attack for attack in ATTACKS) >= 6
