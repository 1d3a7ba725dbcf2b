"""The report: what it reads, everything in it, and nothing in it that can act."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.report import load as reading
from reasoning_gym_environment.report.load import TEXT_LIMIT, as_inert_json, load, parts_of, select
from reasoning_gym_environment.report.main import main, write_page
from reasoning_gym_environment.report.page import TEMPLATES, policy, render, shown
from reasoning_gym_environment.training_log.group_file import described

from ..report_samples import ATTACKS, Page, group_line, write_dump, write_everything, write_lines, write_results

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
    assert (tags.count("script"), tags.count("style")) == (2, 1)
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


def test_attacks_are_text_in_json_and_in_charts(tmp_path: Path) -> None:
    for attack in ATTACKS:
        text = as_inert_json([attack])
        assert not set("<>&\u2028\x00") & set(text)
        assert json.loads(text) == [attack]
    # As names of tasks they are in every chart, table and sentence.
    lines = [group_line(one, n, 1, [1.0] * 8, Random(1)) for one in ATTACKS for n in range(30)]
    drawn = Page(render(load([write_lines(tmp_path / "x.jsonl", lines)]), title="t", max_rollouts=0))
    plain = Page(render(load([write_dump(tmp_path / "plain", groups=300)]), title="t", max_rollouts=0))
    assert {tag for tag, _ in drawn.elements} <= {tag for tag, _ in plain.elements}
    words = drawn.words.replace("_ ", "_")
    assert all(" ".join(shown(attack).split()) in words for attack in ATTACKS)


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
    assert "A file of process holds every group" in page.words and "Training" not in page.words
    assert "do not tell whether an answer could be read" in page.words
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
    assert {one["source"].partition(",")[0] for one in kept} == {"before", "dumps"}, "a run has its folder's name"
    text = Page(render(sources, title="t", max_rollouts=60)).words
    assert "60 of 600 rollouts, taken in turn from every source, task and outcome" in text
    sources.evaluations[0].samples[0]["question"] = "x" * (TEXT_LIMIT + 5)
    longest = max(json.loads(select(sources, 600).payload), key=lambda one: len(one["question"]))["question"]
    assert longest.endswith("x … [5 characters more]")
    assert len(longest) < TEXT_LIMIT + 40


@pytest.mark.parametrize("shown_characters", [4_000, 60_000, 10_000_000])
def test_of_many_dumps_only_the_texts_that_may_be_shown_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown_characters: int
) -> None:
    paths = [write_dump(tmp_path / str(number), groups=60, seed=number) for number in range(4)]
    for number, path in enumerate(paths):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for rollout in line["rollouts"]:
                # Lines of old runs do not say which answer was read.
                del rollout["answer"], rollout["format_failure"]
        write_lines(path.with_name(f"reasoning_gym_environment_rollouts_run{number}_0000.jsonl"), lines)
        path.unlink()
    monkeypatch.setattr(reading, "TOTAL_LIMIT", shown_characters)

    def page(most_added: int) -> tuple[str, int]:
        monkeypatch.setattr(reading, "MOST_ADDED", most_added)
        sources = load([tmp_path])
        held = sum(bool(rollout["messages"]) for _, group in sources.groups for rollout in group.rollouts)
        return render(sources, title="t", max_rollouts=10_000), held

    (whole, every), (pruned, held) = page(10**9), page(5_000)
    assert pruned == whole
    assert every == 4 * 60 * 8
    assert held < every / 4 or shown_characters == 10_000_000


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
    assert "/dev/null is neither a file nor a folder: expected a folder of results" in refused("/dev/null")
    assert "at least one PATH" in refused()
    empty = tmp_path / "empty.jsonl"
    for content in (b"", b"{}", b"\xff\xfe"):
        empty.write_bytes(content)
        assert "nothing to show" in refused(str(empty))
    for number in ("-1", "many", "1e3", "٣", ""):
        said = refused(str(folder / "before"), f"--max-rollouts={number}")
        assert f"--max-rollouts: expected a whole number of at least 0, got {number!r}" in said
    assert not (tmp_path / "page.html").exists()
    assert "cannot write" in refused(str(folder / "before"), output=folder / "nowhere" / "page.html")
    for named in ("before", "before/samples.jsonl"):
        for name in ("samples.jsonl", "metrics.json"):
            before = (folder / "before" / name).read_bytes()
            assert "would be replaced" in refused(str(folder / named), output=folder / "before" / name)
            assert (folder / "before" / name).read_bytes() == before


def test_a_folder_is_searched_below_and_what_is_found_has_a_name_and_a_date(tmp_path: Path) -> None:
    for name in ("a/some-model", "b/some-model", ".trash/some-model", "c/1b4e28ba-2fa1-11d2-883f-0016d3cca427"):
        write_results(tmp_path / name, tasks=1, attacks=False)
    names = ("rollouts_5e90191b-0a2d_0000", "rollouts_5e90191b-0a2d_0001", "FAILED_rollouts_5e90191b-0a2d_0000")
    for number, name in enumerate(names):
        path = tmp_path / f"deep/er/dumps/reasoning_gym_environment_{name}.jsonl"
        write_dump(path.parent, groups=12 + number).rename(path)
        os.utime(path, (1_790_000_000 + 60 * number,) * 2)
    sources = load([tmp_path])
    assert [one.name for one in sources.evaluations] == ["some-model", "b/some-model", "qwen_qwq-32b"]
    [(run, groups)] = sources.by_run()
    assert (run.name, run.id, len(run.files), len(groups)) == ("dumps, 21 Sep 2026 14:13 UTC", "5e90191b", 3, 39)
    both = Page(render(sources, title="t", max_rollouts=0)).words
    assert "Dumps keep groups with a rollout above the threshold, or without any" in both
    assert "only groups without any credit" in Page(render(load([path]), title="t", max_rollouts=0)).words


def test_an_unfinished_evaluation_and_groups_that_say_what_they_are_are_read_as_such(
    tmp_path: Path, make_group: Any
) -> None:
    group = make_group([1.0, 0.0], task="gcd", level=2)
    texts = [[ASKED, {"role": "assistant", "content": "<answer>5</answer>"}]] * 2
    line = {"messages": texts, "scores": [1.0, 0.0], "masks": [[-100, 5]] * 2, **described(group, "0.1.25", {})}
    sources = load([write_lines(tmp_path / "groups.jsonl", [line])])
    [(run, [found])] = sources.by_run()
    assert (run.kinds, found.task, found.level, found.rewards) == ({"process"}, "gcd", 2, (1.0, 0.0))
    assert [one["outcome"] for one in found.rollouts] == [one.score.outcome.value for one in group.rollouts]
    samples = write_results(tmp_path / "model", tasks=1, attacks=False) / "samples.jsonl"
    header = json.dumps({"evaluation": {"model_name": "m", "temperature": 0.6}})
    (tmp_path / "model" / "answers.jsonl").write_text(
        f"{header}\n{samples.read_text(encoding='utf-8')}", encoding="utf-8"
    )
    samples.unlink()
    [found_so_far] = load([tmp_path / "model"]).evaluations
    assert (found_so_far.name, found_so_far.model) == ("model (unfinished)", "m")
    assert found_so_far.parameters["temperature"] == 0.6 and len(found_so_far.samples) == 15


# --- who reads it, and how


def test_a_temperature_that_a_server_did_not_take_is_not_told(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "some-model", tasks=2, attacks=False)
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["config_general"]["generation_parameters"]["asked_otherwise"] = ["its own temperature"]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    [evaluation] = load([folder]).evaluations
    assert evaluation.parameters["temperature"] == "the server's own"


def test_headings_tables_and_fields_can_be_told_apart_without_seeing_them(page: Page) -> None:
    tags = [tag for tag, _ in page.elements]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert tags.count("table") == tags.count("caption") > 3
    assert tags.count("details") == tags.count("summary") > 3
    for tag, names in page.elements:
        assert tag != "th" or names.get("scope") in ("row", "col"), names
        if tag in ("input", "select", "nav", "form") or names.get("role") in ("img", "region"):
            assert names.get("aria-label"), (tag, names)
        # What scrolls is reached by keyboard; and no text is stretched or shrunk with a chart.
        assert "long" not in (names.get("class") or "").split() or names.get("tabindex") == "0"
        assert tag not in ("text", "tspan")
    assert ":focus-visible" in (TEMPLATES / "report.css").read_text(encoding="utf-8")


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.1 between two colours like #0a0b0c."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_the_heatmap_pass_wcag_aa_in_light_and_dark() -> None:
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", style)
    light, dark = ({name: both[place] for name, *both in pairs} for place in (0, 1))
    for one in (light, dark):
        for text in ("ink", "quiet", "accent", "second", "good", "bad", "mid"):
            assert min(contrast(one[text], one[ground]) for ground in ("paper", "panel")) >= 4.5, text
        for step in range(11):
            assert contrast(one["hot" if step > 5 else "ink"], one[f"h{step}"]) >= 4.5, step
        for drawn in ("bar", "bar-out", *(f"s{number}" for number in range(6))):
            assert contrast(one[drawn], one["panel"]) >= 3.0, drawn
        assert contrast(one["ink"], one["bar"]) >= 3.0, "the interval on its bar"
