"""The report: what it reads, everything in it, and nothing in it that can act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment.report.load import TEXT_LIMIT, as_inert_json, load, parts_of, select
from reasoning_gym_environment.report.main import main, write_page
from reasoning_gym_environment.report.page import Bar, bars, policy, render, shown

from ..report_samples import ATTACKS, Page, write_dump, write_everything, write_lines, write_results

ASKED = {"role": "user", "content": "q"}


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
    tags = [tag for tag, _ in page.elements]
    # Matplotlib puts one style element into each figure.
    assert (tags.count("script"), tags.count("style")) == (2, 1 + tags.count("svg"))
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert ATTACKS[0] in page.text and ATTACKS[2] in page.text


def test_the_policy_allows_our_script_alone_which_writes_text_only(page: Page) -> None:
    [script] = [text for attributes, text in page.scripts if not attributes.get("type")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [allowed] = [a["content"] or "" for tag, a in page.elements if tag == "meta" and a.get("http-equiv")]
    assert allowed == policy(script)
    assert f"script-src 'sha256-{digest}';" in allowed and allowed.startswith("default-src 'none';")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\(", script)


def test_rollouts_come_through_as_they_were(page: Page) -> None:
    assert set(ATTACKS[:9]) <= {one["question"] for one in page.rollouts}
    attacked = next(one for one in page.rollouts if one["question"] == ATTACKS[1])
    assert (attacked["thinking"], attacked["reply"]) == (ATTACKS[1], ATTACKS[1])
    assert {"unscored", "correct", "wrong", "format_failure"} <= {one["outcome"] for one in page.rollouts}


def test_attacks_are_text_in_json_and_in_charts() -> None:
    for attack in ATTACKS:
        text = as_inert_json([attack])
        assert not set("<>&\u2028\x00") & set(text)
        assert json.loads(text) == [attack]
    drawn = Page(bars([Bar(attack, 0.5, 0.4, 0.6) for attack in ATTACKS], axis="accuracy"))
    assert {tag for tag, _ in drawn.elements} <= {
        *("svg", "metadata", "rdf:rdf", "cc:work", "dc:type", "dc:format", "defs", "style"),
        *("g", "path", "text", "tspan", "use", "clippath", "rect"),
    }
    words = " ".join(drawn.text.split("\n"))
    assert all(shown(attack) in words for attack in ATTACKS)


def test_the_page_beside_a_file_of_process_has_all_of_it_and_its_name(tmp_path: Path) -> None:
    said = ["</pre><img src=x onerror=alert(1)>", "[click](javascript:alert(1)) **bold** `code`", *ATTACKS]
    said += ["```\nfenced\n```\n\n\n    indented\n<div markdown=1>"]
    said += ["<think>2 < 3 &amp; so</think>\n\n<answer>5</answer>"]
    conversations = [[ASKED, {"role": "assistant", "content": text}] for text in said]
    line = {"messages": conversations, "scores": [1.0] * len(said), "masks": [[-100, 5, 6]] * len(said)}
    groups = write_lines(tmp_path / "run.jsonl", [line])
    path = write_page([groups], tmp_path / "run.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.words.startswith("run.jsonl")
    assert "Dumps keep groups" not in page.words, "here every group is written"
    replies = [one["reply"] for one in page.rollouts if not one["thinking"]]
    assert sorted(replies) == sorted(text.strip() for text in said if "<think>" not in text)
    assert [(one["thinking"], one["reply"], one["tokens"]) for one in page.rollouts if one["thinking"]] == [
        ("2 < 3 &amp; so", "<answer>5</answer>", 2)
    ]
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not {"img", "iframe", "pre"} & {tag for tag, _ in page.elements}, page.elements


# --- how much it holds


def test_a_long_list_of_rollouts_is_cut_evenly_and_a_long_text_too_and_a_note_says_so(folder: Path) -> None:
    sources = load([folder / "before", folder / "dumps"])
    selection = select(sources, 60)
    kept = json.loads(selection.payload)
    assert (selection.shown, len(kept), selection.total) == (60, 60, 8 * 5 * 3 + 60 * 8)
    assert {"unscored", "correct", "wrong", "format_failure"} <= {one["outcome"] for one in kept}
    assert len({one["source"] for one in kept}) == 2
    text = Page(render(sources, title="t", max_rollouts=60)).words
    assert "60 of 600 rollouts, taken in turn from every source, task and outcome" in text
    sources.evaluations[0].samples[0]["question"] = "x" * (TEXT_LIMIT + 5)
    longest = max(json.loads(select(sources, 600).payload), key=lambda one: len(one["question"]))["question"]
    assert longest.endswith("x … [5 characters more]")
    assert len(longest) < TEXT_LIMIT + 40


def test_thinking_is_what_stands_before_the_last_end_of_it() -> None:
    expected = {
        "<think>a</think>\n<answer>1</answer>": ("a", "<answer>1</answer>"),
        "a</THINK>b": ("a", "b"),
        "<think>a</think>b</think>c": ("a</think>b", "c"),
        "<think>never ends": ("never ends", ""),
        "plain": ("", "plain"),
        "": ("", ""),
    }
    assert {text: parts_of(text) for text in expected} == expected


# --- what it reads


def test_files_of_every_command_are_told_apart_and_each_is_read_once(tmp_path: Path) -> None:
    reply = {"role": "assistant", "content": "a"}
    line = {"messages": [[ASKED, reply]], "scores": [1.0], "masks": [[-100, 5, 6]], "tokens": [[1, 5, 6]]}
    groups = write_lines(tmp_path / "groups.jsonl", [line])
    results, dump = write_results(tmp_path / "before", tasks=1), write_dump(tmp_path / "dumps", groups=12)
    part = dump.with_name("x_0001.jsonl.part")
    part.write_bytes(dump.read_bytes().split(b"\n")[0] + b"\n\xff\xfe\n")
    sources = load([results / "metrics.json", dump.parent, dump, dump.parent / "." / dump.name, groups])
    assert [(one.name, one.model, one.manifest) for one in sources.evaluations] == [
        ("before", "qwen_qwq-32b", "0123456789abcdef")
    ]
    assert len(sources.groups) == 12 + 1 + 1
    assert sources.groups[-1][1].rollouts[0]["num_completion_tokens"] == 2
    assert sources.malformed == {str(part): 1}, "a byte that is no text costs its line"


def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results", tasks=2) / "samples.jsonl"
    bad = [
        *("not json", "[1]", "{}", "[" * 3000, "1" * 5000, '{"item_id": "t", "rollouts": []}'),
        *('{"question": "q", "task": "t", "score": "<script>"}', '{"question": "q", "task": 5, "score": 1}'),
        '{"question": "q", "task": "t", "score": 1' + "0" * 400 + "}",
        '{"messages": [[{"content": "q"}, {"content": "a"}]], "scores": [1.0], "masks": [5]}',
        '{"messages": [[]], "scores": [1.0], "masks": [[5]]}',
    ]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"\n{line}\n" for line in bad))
    sources = load([path])
    assert sources.malformed == {str(path): len(bad)}
    assert len(sources.evaluations[0].samples) == 30
    assert f"{len(bad)} lines of" in Page(render(sources, title="t", max_rollouts=9)).text


def test_odd_values_beside_the_score_do_no_harm(tmp_path: Path) -> None:
    odd: list[Any] = [None, [], {"a": 1}, "<b>", -1, 10**400, True, 0.5]
    rollout = {"conversation": [{"content": "q"}, {"content": "a"}], "score": 1.0}
    lines: list[dict[str, Any]] = []
    for value in odd:
        shared = dict.fromkeys(("category", "index", "level", "complexity", "expected_answer", "seed"), value)
        names = ("answer", "outcome", "finish_reason", "num_completion_tokens", "raw_score", "format_failure")
        lines.append({"item_id": "t", "rollouts": [{**rollout, **dict.fromkeys(names, value)}], **shared})
        sample = dict.fromkeys(("category", "index", "outcome", "level", "attempt", "messages"), value)
        lines.append({**sample, "question": value, "task": "t", "score": 1.0})
    write_lines(tmp_path / "odd.jsonl", lines)
    sources = load([tmp_path])
    assert (len(sources.groups), len(sources.evaluations[0].samples), sources.malformed) == (8, 8, {})
    assert len(Page(render(sources, title="t", max_rollouts=99)).rollouts) == 16


def test_what_cannot_be_shown_or_written_is_said_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str, output: Path = tmp_path / "page.html") -> str:
        assert main([*arguments, "-o", str(output)]) == 2
        [message] = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("WARNING")]
        return message

    assert "nowhere does not exist" in refused(str(tmp_path / "nowhere"))
    assert "at least one PATH" in refused()
    empty = tmp_path / "empty.jsonl"
    for content in (b"", b"{}", b"\xff\xfe"):
        empty.write_bytes(content)
        assert "nothing to show" in refused(str(empty))
    assert not (tmp_path / "page.html").exists()
    assert "cannot write" in refused(str(folder / "before"), output=folder / "nowhere" / "page.html")
    for named in ("before", "before/samples.jsonl"):
        for name in ("samples.jsonl", "metrics.json"):
            before = (folder / "before" / name).read_bytes()
            assert "would be replaced" in refused(str(folder / named), output=folder / "before" / name)
            assert (folder / "before" / name).read_bytes() == before
