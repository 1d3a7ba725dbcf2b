"""The report: what it reads, what its sections say, and nothing in it that can act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import resource
from pathlib import Path
from random import Random
from typing import Any

import pytest

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.html_report.curves import estimates_of, samples_of
from reasoning_gym_environment.html_report.load import load
from reasoning_gym_environment.html_report.main import main, write_page
from reasoning_gym_environment.html_report.page import STATIC, VENDOR, as_inert_json, policy, render, shown
from reasoning_gym_environment.storage.lines import described
from testing.report_samples import (
    ATTACKS,
    Page,
    group_line,
    talk,
    write_dump,
    write_everything,
    write_lines,
    write_results,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_everything(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    output = folder / "page.html"
    assert main([str(folder / "before"), str(folder / "dumps"), "-o", str(output), "--title", ATTACKS[2]]) == 0
    return Page(output.read_text(encoding="utf-8"))


def words_of(path: Path, **options: Any) -> str:
    return Page(render(load([path]), **{"title": "t", "max_rollouts": 9, **options})).words


# --- a page that cannot act


def test_the_page_has_every_section_and_needs_nothing_from_outside(page: Page) -> None:
    assert {"evaluation-1", "training", "tasks", "samples", "filters", "table", "detail"} <= page.ids
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    kinds = [attributes.get("type") for attributes, _ in page.scripts]
    assert set(kinds) == {None, "application/json", "application/octet-stream"}
    assert {"accuracy", "pass@3", "unscored"} <= {line.strip() for line in page.text.splitlines()}
    assert ATTACKS[0] in page.text and ATTACKS[2] in page.text


def test_the_policy_allows_our_scripts_alone_which_write_text_only(page: Page) -> None:
    scripts = [text for attributes, text in page.scripts if not attributes.get("type")]
    [allowed] = [a["content"] or "" for tag, a in page.elements if tag == "meta" and a.get("http-equiv")]
    assert allowed == policy(scripts)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert f"script-src {sources};" in allowed and allowed.startswith("default-src 'none';")
    assert "connect-src" not in allowed
    for script in scripts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", script)


def test_the_library_of_charts_is_whole_and_has_its_licence() -> None:
    assert (VENDOR / "uPlot.iife.min.js").read_bytes().startswith(b"/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
    # The file is as its author published it.
    digest = hashlib.sha256((VENDOR / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", (
        "the file is as its author published it"
    )
    assert "MIT" in (VENDOR / "uPlot.LICENSE").read_text()
    assert all(path.stat().st_size < 20_000 for path in STATIC.iterdir())


def test_attacks_are_text_in_json_in_charts_and_in_rollouts(page: Page, tmp_path: Path) -> None:
    for attack in ATTACKS:
        text = as_inert_json([attack])
        assert not set("<>&\u2028\x00") & set(text)
        assert json.loads(text) == [attack]
    assert set(ATTACKS[:9]) <= {rollout["question"] for rollout in page.rollouts}
    attacked = next(rollout for rollout in page.rollouts if rollout["question"] == ATTACKS[1])
    assert (attacked["thinking"], attacked["reply"]) == (ATTACKS[1], ATTACKS[1])
    # As names of tasks they are in every chart, table and sentence.
    lines = [group_line(attack, n, 1, [1.0] * 8, Random(1)) for attack in ATTACKS for n in range(30)]
    drawn = Page(render(load([write_lines(tmp_path / "x.jsonl", lines)]), title="t", max_rollouts=0))
    plain = Page(render(load([write_dump(tmp_path / "plain", groups=300)]), title="t", max_rollouts=0))
    assert {tag for tag, _ in drawn.elements} <= {tag for tag, _ in plain.elements}
    words = drawn.words.replace("_ ", "_")
    assert all(" ".join(shown(attack)[:30].split()) in words for attack in ATTACKS)


def test_the_page_beside_a_file_of_process_has_all_of_it_and_its_name(tmp_path: Path) -> None:
    said = ["</pre><img src=x onerror=alert(1)>", "```\nfenced\n```\n<div markdown=1>", *ATTACKS]
    said += ["<think>2 < 3 &amp; so</think>\n\n<answer>5</answer>"]
    conversations = [talk("q", text) for text in said]
    line = {"messages": conversations, "scores": [1.0] * len(said), "masks": [[-100, 5, 6]] * len(said)}
    path = write_page([write_lines(tmp_path / "run.jsonl", [line])], tmp_path / "run.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.words.startswith("run.jsonl")
    assert [curve["isHeldOut"] for curve in page.curves["curves"]] == [False], "its lines do not name their tasks"
    assert "A file of process holds every group" in page.words
    [thought] = [rollout for rollout in page.rollouts if rollout["thinking"]]
    assert (thought["thinking"], thought["reply"]) == ("2 < 3 &amp; so", "<answer>5</answer>")
    assert not {"img", "iframe", "pre"} & {tag for tag, _ in page.elements}, page.elements


def test_a_page_that_cannot_be_written_in_full_leaves_the_earlier_page(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "run.jsonl", [group_line("a_task", n, 1, [1.0] * 8, Random(1)) for n in range(300)])
    page = tmp_path / "run.html"
    assert main([str(file), "-o", str(page), "--title", "an earlier page"]) == 0
    earlier = page.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel refuses to write the last bytes of the page.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(earlier) - 100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            main([str(file), "-o", str(page), "--title", "a later page"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert page.read_bytes() == earlier
    assert {path.name for path in tmp_path.iterdir()} == {"run.jsonl", "run.html"}


# --- how much it holds


def test_a_long_list_of_samples_is_cut_evenly_and_a_note_says_so(folder: Path) -> None:
    sources = load([folder / "before", folder / "dumps"])
    every = Page(render(sources, title="t", max_rollouts=9999)).rollouts
    page = Page(render(sources, title="t", max_rollouts=200))
    kept = page.rollouts
    assert 190 < len(kept) <= 200 < len(every)
    assert {rollout["source"] for rollout in kept} == {"before", "dumps run"}, "a run has its folder's name"
    assert {rollout["outcome"] for rollout in kept} == {rollout["outcome"] for rollout in every}
    assert f"{len(kept)} of {len(every)} samples, taken in turn from all sources, tasks and outcomes" in page.words


# --- what it reads


def test_files_of_every_command_are_told_apart_and_each_is_read_once(tmp_path: Path, make_group: Any) -> None:
    texts = [talk("q", "a")] * 2
    line = {"messages": texts, "scores": [1.0, 0.0], "masks": [[-100, 5, 6]] * 2, "tokens": [[1, 5, 6]] * 2}
    told = described(make_group([1.0, 0.0], task="gcd", level=2), "0.1.25", {})
    groups = write_lines(tmp_path / "groups.jsonl", [line, {**line, **told}])
    results, dump = write_results(tmp_path / "before", tasks=1), write_dump(tmp_path / "dumps", groups=12)
    part = dump.with_name("x_0001.jsonl")
    part.write_bytes(dump.read_bytes().split(b"\n")[0] + b"\n\xff\xfe\n")
    sources = load([results, dump.parent, dump, dump.parent / "." / dump.name, groups])
    assert [(evaluation.name, evaluation.model, evaluation.manifest) for evaluation in sources.evaluations] == [
        ("before", "qwen_qwq-32b", "0123456789abcdef")
    ]
    assert sum(len(run.groups) for run in sources.runs) == 12 + 1 + 2
    bare, known = next(run for run in sources.runs if run.kinds == {"process"}).groups
    assert (bare.task, bare.rewards) == ("unknown", (1.0, 0.0))
    assert (known.task, known.level, known.rewards) == ("gcd", 2, (1.0, 0.0))
    assert sources.malformed == {str(part): 1}, "a byte that is no text costs its line"


@pytest.mark.parametrize("content", ["", "[]", '{"config_general": 3}'])
def test_metrics_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    results = write_results(tmp_path / "model", tasks=1)
    (results / "metrics.json").write_text(content)
    with pytest.raises(EnvironmentSetupError, match=r"Expected the metrics\.json of an evaluation in"):
        load([results])


def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results", tasks=2) / "samples.jsonl"
    bad = [
        *("not json", "[1]", "{}", "[" * 3000, "1" * 5000, '{"item_id": "t", "rollouts": []}'),
        *('{"question": "q", "task": "t", "score": "<script>"}', '{"question": "q", "task": 5, "score": 1}'),
        '{"question": "q", "task": "t", "score": 1' + "0" * 400 + "}",
        *('{"question": "q", "task": "t"}', '{"question": "q", "task": "t", "score": -1.0}'),
        '{"question": "q", "task": "t", "score": 100}',
        '{"question": "q", "task": "t", "score": 1, "level": "x", "messages": [{"role": "user", "content": "q"}]}',
        '{"messages": [[{"content": "q"}, {"content": "a"}]], "scores": [1.0], "masks": [5]}',
        '{"messages": [[]], "scores": [1.0], "masks": [[5]]}',
    ]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"\n{line}\n" for line in bad))
    sources = load([path])
    assert sources.malformed == {str(path): len(bad)} and len(sources.evaluations[0].samples) == 30
    assert f"{len(bad)} lines of" in words_of(path)


def test_what_cannot_be_shown_or_written_is_refused(folder: Path, tmp_path: Path) -> None:
    def refused(*arguments: str | Path, output: Path = tmp_path / "page.html") -> str:
        with pytest.raises(EnvironmentSetupError) as found:
            main([*map(str, arguments), "-o", str(output)])
        return str(found.value)

    assert "nowhere does not exist" in refused(tmp_path / "nowhere")
    assert "at least one PATH" in refused()
    assert "no .jsonl files" in refused(tmp_path)
    empty = write_lines(tmp_path / "empty.jsonl", [{}])
    assert "nothing to show" in refused(empty)
    for name in ("samples.jsonl", "metrics.json"):
        before = (folder / "before" / name).read_bytes()
        assert "ends in .html" in refused(folder / "before", output=folder / "before" / name)
        assert (folder / "before" / name).read_bytes() == before


def test_a_folder_is_searched_below_and_what_is_found_has_a_name(tmp_path: Path) -> None:
    for name in ("a/some-model", "b/some-model", ".trash/some-model"):
        write_results(tmp_path / name, tasks=1, attacks=False)
    names = ("rollouts_5e90191b-0a2d_0000", "rollouts_5e90191b-0a2d_0001", "FAILED_rollouts_5e90191b-0a2d_0000")
    for number, name in enumerate(names):
        path = tmp_path / f"deep/er/dumps/reasoning_gym_environment_{name}.jsonl"
        write_dump(path.parent, groups=12 + number).rename(path)
    sources = load([tmp_path])
    assert [evaluation.name for evaluation in sources.evaluations] == ["some-model", "b/some-model"]
    [run] = sources.runs
    assert (run.name, len(run.groups)) == ("dumps 5e90191b", 39)
    assert "groups with a rollout above the threshold, or without any" in words_of(tmp_path)
    assert "only groups without any credit" in words_of(path)


# --- what its sections say


def dumped_group(*outcomes: str, index: int = 1, **fields: Any) -> dict[str, Any]:
    """A line of a dump; what has no score has 0 and is masked there."""
    rollouts = [
        {
            "conversation": talk("q", "a"),
            "outcome": outcome,
            "num_completion_tokens": 20,
            "score": 1.0,
            "verifier_score": float(outcome == "correct"),
            "mask_reason": None if outcome in ("correct", "wrong") else f"unscored_{outcome}",
            **fields,
        }
        for outcome in outcomes
    ]
    return {"item_id": "gcd", "category": "arithmetic", "index": index, "level": 0, "seed": index, "rollouts": rollouts}


def test_what_training_could_not_score_is_not_wrong_and_what_is_masked_brings_no_signal(tmp_path: Path) -> None:
    lines = [dumped_group("correct", "wrong", "timeout", "memory", "crashed"), dumped_group("timeout", index=2)]
    lines.append(dumped_group("correct", "timeout", index=3))
    lines[2]["rollouts"][1]["score"] = 0.0
    masked = [{**rollout, "mask_reason": "too_long"} for rollout in lines[2]["rollouts"]]
    sources = load([write_lines(tmp_path / "dump.jsonl", [*lines, {**lines[2], "rollouts": masked}])])
    [run] = sources.runs
    exact = estimates_of(samples_of(run.groups))["exact"]
    assert exact.value == 0.75, "3 of the 4 completions that have a score"
    assert [group.has_signal for group in run.groups] == [False, False, True, False]
    # Rewards of other environments may be negative.
    found = estimates_of([{**rollout, "reward": -1.0} for rollout in samples_of(run.groups)])["reward"]
    assert found.low <= found.value == -1.0
    shown_rollouts = [
        rollout for rollout in Page(render(sources, title="t", max_rollouts=99)).rollouts if rollout["item"] == 1
    ]
    assert [rollout["advantage"] for rollout in shown_rollouts] == [0.0] * 5
    assert [(rollout["score"], rollout["failures"]) for rollout in shown_rollouts] == [
        (1.0, []),
        (0.0, []),
        (None, ["timeout"]),
        (None, ["memory"]),
        (None, ["crashed"]),
    ]
