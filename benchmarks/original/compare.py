"""Compare this environment with the original environment: python benchmarks/original/compare.py ATROPOS [--groups N]

ATROPOS is a checkout of https://github.com/NousResearch/atropos. Both environments get the same groups: items of all
tasks, half of them with reasoning-gym's default configs, half at a random level, with completions of many kinds. Each
environment runs in a separate process, because their modules have the same name, and because the original changes
global state.

    stdout    JSON: how often each listed difference was seen, and every unlisted difference in full
    stderr    a summary of this
    exit 1    there was a difference that benchmarks/original/differences.py does not list, or that has no row in
              docs/differences_from_the_original.md

Our side runs twice, with `verification: strict` and `native`, and otherwise with the defaults of the class.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.original.differences import DIFFERENCES, Observation, explain, names_without_row, outside_thinking
from benchmarks.original.groups import GROUP_SIZE, MAX_TOKEN_LENGTH, PLANS, Group, make_groups
from benchmarks.original.rules import CORRECT, TOLERANCE, is_sent, length_penalty
from reasoning_gym_environment.tasks.catalog import discover
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladders

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "environments/reasoning_gym_environment/reasoning_gym_environment.py"
OBSERVE = Path(__file__).with_name("observe.py")
PAGE = ROOT / "docs" / "differences_from_the_original.md"
GROUPS = 300
SAVE_THRESHOLD = 0.7
"""The default of `rollout_save_score_threshold`."""
LEAST_TOKENS = 10
"""The original drops shorter completions."""
GRADINGS = ("strict", "native")

Seen = Mapping[str, Any]
"""A part of what observe.py has written."""


# --- scores of the groups


def compare_scoring(groups: Sequence[Group], original: Seen, ours: Seen, grading: str) -> Iterator[Observation]:
    dumps = {"original": failed_lines(original["dumps"]), "ours": failed_lines(ours["dumps"])}
    for group, seen_there, seen_here in zip(groups, original["groups"], ours["groups"], strict=True):
        there, here = ScoredGroup(group, seen_there), ScoredGroup(group, seen_here)
        there.leave_out_as_the_original_does()
        yield from compare_rollouts(there, here, grading)
        yield from check_rules(there, "original", group)
        yield from check_rules(here, "ours", group)
        yield from compare_failed_dump(there, here, dumps["original"], dumps["ours"])
    yield from compare_values("scoring", _chosen(original, "empty list"), _chosen(ours, "empty list"))
    yield from compare_values("variant", original["variants"], ours["variants"])


class ScoredGroup:
    """A group with what one environment made of it. `members` are the numbers of the completions that count."""

    def __init__(self, group: Group, seen: Seen) -> None:
        self.group = group
        self.result = seen["result"]
        self.percent_correct = seen["percent_correct"]
        self.rollouts = seen["rollouts"]
        self.bases = [rollout["base"] for rollout in seen["rollouts"]]
        self._order = seen["order"]
        self.members = list(range(len(group.attempts)))

    def leave_out_as_the_original_does(self) -> None:
        """Keep the first completions of sufficient length, in the order in which the original shuffled them."""
        long_ones = [number for number in self._order if self.group.attempts[number].completion_tokens >= LEAST_TOKENS]
        self.members = sorted(long_ones[:GROUP_SIZE])

    @property
    def member_bases(self) -> list[float]:
        return [self.bases[number] for number in self.members]

    @property
    def scores(self) -> list[float]:
        """The scores of the members by the common rules."""
        lengths = [self.group.attempts[number].length for number in self.members]
        return length_penalty(self.member_bases, lengths, MAX_TOKEN_LENGTH)

    @property
    def has_unscored(self) -> bool:
        return not all(rollout.get("is_scored", True) for rollout in self.rollouts)

    def override(self, number: int) -> Any:
        """The override of one completion in the group; None if there is no group."""
        return None if self.result is None else self.result["rollouts"][str(number)]["override"]


def where(group: Group, number: int | None = None) -> str:
    level = "default config" if group.level is None else f"level {group.level}"
    place = f"group {group.number} ({group.plan}), {group.task}, {level}, seed {group.seed}"
    return place if number is None else f"{place}, completion {number} ({group.attempts[number].kind})"


def compare_rollouts(there: ScoredGroup, here: ScoredGroup, grading: str) -> Iterator[Observation]:
    """Base scores, membership, overrides and tensors of each completion."""
    group = there.group
    for number, attempt in enumerate(group.attempts):
        described = here.rollouts[number]
        facts = {
            "task": group.task,
            "text": attempt.text,
            "expected": group.entry["answer"],
            "grading": grading,
            "native": described.get("native"),
            "outcome": described.get("outcome"),
            "failure": described.get("failure"),
            "completion_tokens": attempt.completion_tokens,
            "rollouts": len(group.attempts),
            "group_size": GROUP_SIZE,
            "override": here.override(number),
        }
        place = where(group, number)
        if number not in there.members:
            yield Observation("membership", place, "left out", "kept", facts)
            continue
        if abs(there.bases[number] - here.bases[number]) > TOLERANCE:
            yield Observation("score", place, there.bases[number], here.bases[number], facts)
    yield from _compare_sent_rollouts(there, here)


def _compare_sent_rollouts(there: ScoredGroup, here: ScoredGroup) -> Iterator[Observation]:
    if there.result is None or here.result is None:
        return
    group = there.group
    if there.result["keys"] != here.result["keys"]:
        yield Observation("keys of a group", where(group), there.result["keys"], here.result["keys"])
    for number in there.members:
        sent_there, sent_here = (result["rollouts"][str(number)] for result in (there.result, here.result))
        for name in ("same tokens", "same mask", "same logprobs", "override"):
            if sent_there[name] != sent_here[name]:
                tokens = {"completion_tokens": group.attempts[number].completion_tokens}
                yield Observation(name, where(group, number), sent_there[name], sent_here[name], tokens)


def check_rules(side: ScoredGroup, name: str, group: Group) -> Iterator[Observation]:
    """Whether an environment made of its base scores what the common rules make of them.

    Then two environments that agree about the base scores and the members agree about the group.
    """
    scores = side.scores
    if side.has_unscored or not scores:
        return
    expected = "sent" if is_sent(scores) else "not sent"
    found = "not sent" if side.result is None else "sent"
    facts = {"by": name, "scores": scores, "masked": _masked(side), "bases": side.member_bases}
    if found != expected:
        yield _by_rule("group", where(group), expected, found, name, facts)
    if side.result is not None:
        sent = side.result["rollouts"]
        if sorted(map(int, sent)) != side.members:
            yield _by_rule("members", where(group), side.members, sorted(map(int, sent)), name, facts)
        for number, score in zip(side.members, scores, strict=True):
            if abs(sent[str(number)]["score"] - score) > TOLERANCE:
                yield _by_rule("final score", where(group, number), score, sent[str(number)]["score"], name, facts)
    correct = sorted(1.0 if base >= CORRECT else 0.0 for base in side.member_bases)
    if side.percent_correct != correct:
        yield _by_rule("percent_correct", where(group), correct, side.percent_correct, name, facts)


def _masked(side: ScoredGroup) -> list[bool]:
    return [bool(side.rollouts[number].get("mask_reason")) for number in side.members]


def _by_rule(subject: str, place: str, expected: Any, found: Any, name: str, facts: Seen) -> Observation:
    """The common rules stand for the environment that follows them."""
    if name == "ours":
        return Observation(subject, place, expected, found, facts)
    return Observation(subject, place, found, expected, facts)


# --- dumps


def failed_lines(dumps: Sequence[Seen]) -> dict[int, Seen]:
    """The lines of failed groups by the number of the group, which the system message has."""
    lines = {}
    for dumped in dumps:
        if "_FAILED_" in dumped["file"]:
            lines[group_number(dumped["line"])] = dumped["line"]
    return lines


def group_number(line: Seen) -> int:
    message = line["rollouts"][0]["conversation"][0]["content"]
    return int(message.rstrip(".").split()[-1])


def compare_failed_dump(
    there: ScoredGroup, here: ScoredGroup, lines_there: Mapping[int, Seen], lines_here: Mapping[int, Seen]
) -> Iterator[Observation]:
    group = there.group
    line_there, line_here = lines_there.get(group.number), lines_here.get(group.number)
    facts = {
        "kind": "FAILED",
        "bases": there.member_bases,
        "scores": there.scores,
        "threshold": SAVE_THRESHOLD,
        "bases are unlike": there.members != here.members or there.bases != here.bases,
        "expected": {
            "original": bool(there.members) and not any(there.scores),
            "ours": not any(here.bases),
        },
        "short": sum(attempt.completion_tokens < LEAST_TOKENS for attempt in group.attempts),
        "rollouts": len(group.attempts),
        "group_size": GROUP_SIZE,
    }
    yield from compare_lines(where(group), line_there, line_here, facts)


def compare_lines(place: str, there: Seen | None, here: Seen | None, facts: Seen) -> Iterator[Observation]:
    if (there is None) != (here is None):
        words = ["no line" if line is None else "a line" for line in (there, here)]
        yield Observation("dump", place, words[0], words[1], facts)
    if there is None or here is None:
        return
    if not there.keys() <= here.keys():
        yield Observation("keys of a dump", place, sorted(there), sorted(here))
    if there["item_id"] != here["item_id"]:
        yield Observation("item_id of a dump", place, there["item_id"], here["item_id"])
    dumped_there, dumped_here = _dumped_rollouts(there), _dumped_rollouts(here)
    if dumped_there != dumped_here:
        yield Observation("dumped rollouts", place, dumped_there, dumped_here, facts)


def _dumped_rollouts(line: Seen) -> list[list[Any]]:
    """Conversation and score of each rollout, in an order that does not depend on the environment."""
    return sorted([_as_text(rollout["conversation"]), round(rollout["score"], 9)] for rollout in line["rollouts"])


def _as_text(conversation: Sequence[Seen]) -> str:
    return json.dumps([dict(sorted(message.items())) for message in conversation])


def file_pattern(name: str, run: str) -> str:
    return name.replace(run, "RUN")


# --- everything that is not a score


def compare_values(subject: str, there: Seen, here: Seen, facts: Seen | None = None) -> Iterator[Observation]:
    """An Observation for each name of the original whose value differs or is missing here."""
    for name, value in there.items():
        if name not in here:
            yield Observation(subject, name, value, "missing", facts or {})
        elif value != here[name]:
            yield Observation(subject, name, value, here[name], facts or {})


def _chosen(seen: Seen, *names: str) -> dict[str, Any]:
    return {name: seen[name] for name in names}


def compare_settings(there: Seen, here: Seen) -> Iterator[Observation]:
    yield from compare_values("default", there["defaults"], here["defaults"])
    yield from compare_values("start value", there["start values"], here["start values"])
    yield from compare_values("server", there["server"], here["server"])
    yield from compare_values("refused", there["refused"], here["refused"])
    yield from compare_values("argument", there["arguments"], here["arguments"])
    yield from compare_values("class", *(_chosen(side, "servers", "name", "env_config_cls") for side in (there, here)))
    for kind, names in there["public names"].items():
        for name in names:
            if name not in here["public names"][kind]:
                yield Observation("public name", f"{kind}.{name}", "there", "missing")
    limit = "max_staleness_steps"
    if limit in here["defaults"]:
        yield Observation("further setting", limit, None, here["defaults"][limit])


def compare_sampling(groups: Sequence[Group], there: Seen, here: Seen) -> Iterator[Observation]:
    for item_there, item_here in zip(there["items"], here["items"], strict=True):
        yield from compare_values("item", item_there, item_here)
    for number, (group_there, group_here) in enumerate(zip(there["groups"], here["groups"], strict=True)):
        yield from _named(number, compare_values("sampled group", group_there, group_here))
    if there["requests"] != here["requests"]:
        yield Observation("training requests", "all", there["requests"], here["requests"])
    yield from compare_values(
        "sampling", *(_chosen(side, "attributes", "prompt that does not fit") for side in (there, here))
    )
    files_there, files_here = len(there["files before the end"]), len(here["files before the end"])
    if files_there != files_here:
        yield Observation("dump files before the end", "lines", files_there, files_here)
    yield from compare_sampled_dumps(groups, there, here)
    yield from compare_metrics(there["metrics"], here["metrics"])
    yield from compare_evaluation(there["evaluation"], here["evaluation"])


def _named(number: int, observations: Iterator[Observation]) -> Iterator[Observation]:
    for seen in observations:
        yield Observation(seen.subject, f"number {number}: {seen.where}", seen.original, seen.ours)


def compare_sampled_dumps(groups: Sequence[Group], there: Seen, here: Seen) -> Iterator[Observation]:
    """Lines of both kinds, for groups with equal base scores in both environments."""
    names = []
    lines = []
    for side in (there, here):
        names.append(sorted({file_pattern(dumped["file"], side["run"]) for dumped in side["dumps"]}))
        lines.append({(_kind(dumped), group_number(dumped["line"])): dumped["line"] for dumped in side["dumps"]})
    if names[0] != names[1]:
        yield Observation("names of dumps", "all", names[0], names[1])
    rewards = {number: _rewards(line) for (_, number), line in {**lines[0], **lines[1]}.items()}
    by_number = {group.number: group for group in groups}
    for kind, number in sorted(lines[0].keys() | lines[1].keys()):
        group = by_number[number]
        facts = {
            "kind": kind,
            "bases": rewards[number],
            "scores": rewards[number],
            "threshold": SAVE_THRESHOLD,
            "bases are unlike": False,
            "expected": {},
            "short": 0,
            "rollouts": GROUP_SIZE,
            "group_size": GROUP_SIZE,
        }
        place = f"{kind} dump of {where(group)}"
        yield from compare_lines(place, lines[0].get((kind, number)), lines[1].get((kind, number)), facts)


def _kind(dumped: Seen) -> str:
    return "FAILED" if "_FAILED_" in dumped["file"] else "rollouts"


def _rewards(line: Seen) -> list[float]:
    return [rollout["score"] for rollout in line["rollouts"]]


TIMES = ("perf", "_time", "timings", "server_")
"""Parts of the names of metrics that measure time or the server."""


def compare_metrics(there: Seen, here: Seen) -> Iterator[Observation]:
    for name, value in there.items():
        is_time = any(part in name for part in TIMES)
        if name not in here:
            yield Observation("metric", name, value, "missing")
        elif name == "train/rollouts":
            yield from compare_tables(value, here[name])
        elif not is_time and abs(value - here[name]) > TOLERANCE:
            yield Observation("metric", name, value, here[name])


def compare_tables(there: Seen, here: Seen) -> Iterator[Observation]:
    """The columns, the number of rows, and the first row that is unlike. Both tables are sorted."""
    yield from compare_values("table", _chosen(there, "columns"), _chosen(here, "columns"))
    if len(there["rows"]) != len(here["rows"]):
        yield Observation("table", "number of rows", len(there["rows"]), len(here["rows"]))
        return
    pairs = zip(there["rows"], here["rows"], strict=True)
    unlike = [pair for pair in pairs if pair[0] != pair[1]]
    if unlike:
        yield Observation("table", "rows", unlike[0][0], unlike[0][1], {"rows that are unlike": len(unlike)})


def compare_evaluation(there: Seen, here: Seen) -> Iterator[Observation]:
    yield from compare_evaluation_scores(there, here, "native")
    if there["requests"] != here["requests"]:
        yield Observation("evaluation requests", "one by one", there["requests"], here["requests"])
    kinds = [sorted({json.dumps(request) for request in side["requests of evaluate"]}) for side in (there, here)]
    if kinds[0] != kinds[1]:
        yield Observation("evaluation requests", "evaluate", kinds[0], kinds[1])
    names = ("prompt that does not fit", "questions", "metric is the mean", "metric after the next step")
    yield from compare_values("evaluation", _chosen(there, *names), _chosen(here, *names))


def compare_evaluation_scores(there: Seen, here: Seen, grading: str) -> Iterator[Observation]:
    for seen_there, seen_here in zip(there["scores"], here["scores"], strict=True):
        scores = [seen_there["score"], seen_here["score"]]
        if scores[1] is None or abs(scores[0] - scores[1]) > TOLERANCE:
            facts = {
                "text": seen_there["text"],
                "grading": grading,
                "has one answer": outside_thinking(seen_there["text"]).lower().count("<answer>") == 1,
            }
            place = f"group {seen_there['group']}, {seen_there['task']}"
            yield Observation("evaluation score", place, scores[0], scores[1], facts)


def compare_curriculum(there: Seen, here: Seen) -> Iterator[Observation]:
    yield from _compare_curriculum_values("curriculum value before the first group", there, here, "first metrics")
    yield from _compare_curriculum_values("curriculum value", there, here, "metrics")
    for name in there["keys of the statistics"]:
        if name not in here["keys of the statistics"]:
            yield Observation("curriculum statistics", name, "there", "missing")


def _compare_curriculum_values(subject: str, there: Seen, here: Seen, key: str) -> Iterator[Observation]:
    for name, value in there[key].items():
        found = here[key].get(name, "missing")
        facts = {
            "is a share": isinstance(found, float) and 0 <= found <= 1,
            "tasks of the original": len(there["tasks"]),
            "observed tasks": here["observed tasks"] if key == "metrics" else 0,
        }
        if found != value:
            yield Observation(subject, name, value, found, facts)


def compare_tasks(there: Seen, here: Seen) -> Iterator[Observation]:
    for mode in ("None", "random"):
        for name in sorted(set(there[mode]) ^ set(here[mode])):
            words = ["served" if name in side[mode] else "not served" for side in (there, here)]
            yield Observation(f"tasks of {mode}", name, words[0], words[1])
        statistics = f"statistics, {mode}"
        for name in there[statistics]:
            if name not in here[statistics]:
                yield Observation("curriculum statistics", f"{name}, mode {mode}", "there", "missing")


# --- the run


def observe(kind: str, script: Path, folder: Path) -> Seen:
    """Run observe.py in a separate process. Raises SystemExit with its last lines if it fails."""
    began = time.monotonic()
    result = folder / f"{kind}.json"
    log = folder / f"{kind}.log"
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(OBSERVE),
        kind,
        str(script),
        str(folder / "groups.pickle"),
        str(result),
    ]
    # The questions of some tasks depend on the hash seed. No hub is needed.
    variables = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    with log.open("wb") as output:
        ended = subprocess.run(
            command, cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode != 0:
        sys.exit(f"The run of {kind} failed:\n{log.read_text(errors='replace')[-3000:]}")
    found: Seen = json.loads(result.read_text(encoding="utf-8"))
    print(f"The run of {kind} took {time.monotonic() - began:.0f} s.", file=sys.stderr)
    return found


def compare_all(groups: Sequence[Group], sides: Mapping[str, Seen]) -> dict[str, list[Observation]]:
    """The observations by the part of the comparison."""
    original, strict, native = sides["original"], sides["strict"], sides["native"]
    found: dict[str, list[Observation]] = {}
    for grading in GRADINGS:
        scoring = compare_scoring(groups, original["scoring"], sides[grading]["scoring"], grading)
        found[f"scores, {grading}"] = list(scoring)
    evaluations = [side["sampling"]["evaluation"] for side in (original, strict)]
    found["evaluation, strict"] = list(compare_evaluation_scores(*evaluations, "strict"))
    found["settings"] = list(compare_settings(original["settings"], strict["settings"]))
    found["sampling, native"] = list(compare_sampling(groups, original["sampling"], native["sampling"]))
    found["curriculum"] = list(compare_curriculum(original["curriculum"], native["curriculum"]))
    found["tasks"] = list(compare_tasks(original["tasks"], native["tasks"]))
    return found


def report(groups: Sequence[Group], found: Mapping[str, Sequence[Observation]]) -> dict[str, Any]:
    listed: dict[str, Counter[str]] = {difference.name: Counter() for difference in DIFFERENCES}
    unlisted = []
    for part, observations in found.items():
        for seen in observations:
            name = explain(seen)
            if name is None:
                unlisted.append({"part": part, **vars(seen)})
            else:
                listed[name][part] += 1
    without_row = names_without_row(PAGE.read_text(encoding="utf-8"))
    return {
        "groups": len(groups),
        "completions": sum(len(group.attempts) for group in groups),
        "tasks": len({group.task for group in groups}),
        "listed": listed,
        "seen without a row": [name for name in without_row if listed[name].total()],
        "unlisted": unlisted,
    }


def summary(result: Seen) -> str:
    lines = [f"{result['groups']} groups, {result['completions']} completions, {result['tasks']} tasks."]
    lines.append("Listed differences, and how often each was seen:")
    for name, counts in result["listed"].items():
        note = "  (no row on the page)" if name in result["seen without a row"] else ""
        lines.append(f"  {sum(counts.values()):6}  {name}{note}")
    unlisted = Counter((seen["part"], seen["subject"]) for seen in result["unlisted"])
    lines.append(f"Unlisted differences: {len(result['unlisted'])}")
    lines += [f"  {count:6}  {part}: {subject}" for (part, subject), count in unlisted.items()]
    return "\n".join(lines)


def make_all_groups(count: int, seed: int) -> list[Group]:
    tasks = list(discover().tasks)
    return asyncio.run(make_groups(count, seed, tasks, build_ladders(tasks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atropos", type=Path, help="checkout of Atropos")
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"number of groups (default: {GROUPS})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the items and completions (default: 1)")
    chosen = parser.parse_args()
    if chosen.groups < len(PLANS):
        parser.error(f"--groups: expected at least {len(PLANS)}, one for each plan, got {chosen.groups}")
    script = chosen.atropos.resolve() / SCRIPT
    if not script.is_file():
        sys.exit(f"Expected a checkout of Atropos, but {script} does not exist.")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        groups = make_all_groups(chosen.groups, chosen.seed)
        print(f"The {len(groups)} groups took {time.monotonic() - began:.0f} s.", file=sys.stderr)
        (folder / "groups.pickle").write_bytes(pickle.dumps(groups))
        sides = {kind: observe(kind, script, folder) for kind in ("original", *GRADINGS)}
    result = report(groups, compare_all(groups, sides))
    result["seconds"] = round(time.monotonic() - began)
    print(json.dumps(result, indent=1))
    print(summary(result), file=sys.stderr)
    sys.exit(1 if result["unlisted"] or result["seen without a row"] else 0)


if __name__ == "__main__":
    main()
