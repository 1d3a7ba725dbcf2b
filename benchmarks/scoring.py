"""What the scoring sandbox costs and holds: python benchmarks/scoring.py [--quick] > scoring.json

Throughput and latency of groups of 12 answers in this process and in one or two workers, the event loop's
longest stall while half the answers are hostile, whether honest scores are the same on every task, whether any
oracle answer needs what a guard rejects, what baselines cost, and what hostile answers achieved. In-process
grading runs reasoning-gym's own verifiers, so it gets honest text only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.records import Problem, Status
from reasoning_gym_environment.scoring.scorer import Scorer
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.eval_guards import GUARDS
from reasoning_gym_environment.verification.grade import grade
from reasoning_gym_environment.workers.grader import SandboxGrader
from tests.hostile_answers import ATTACK_MODULE, ATTACK_TASK, ENTRY, HOSTILE_ANSWERS, RIGHT

GROUP_SIZE = 12
IN_FLIGHT = 4
Group = tuple[str, dict[str, Any], list[str]]


def right_answer(entry: dict[str, Any]) -> str:
    # countdown's `answer` is its expression as well; five tasks have none at all.
    return str(entry["answer"])


def honest_group(task: str, seed: int) -> Group:
    """An item and 12 answers to it: right ones, ones to other items, slips of the pen."""
    rng = random.Random(f"{task}{seed}")
    dataset = library.create_dataset(task, seed=seed, size=4)
    entries = [dataset[index] for index in range(4)]
    answers = [right_answer(entry) for entry in entries]
    while len(answers) < GROUP_SIZE:
        letters = list(rng.choice(answers[:4]))
        if letters:
            letters[rng.randrange(len(letters))] = rng.choice("0123456789 abx+-.")
        answers.append("".join(letters) + " " * (len(answers) % 3))
    return task, entries[0], answers


def summary(latencies: Sequence[float], wall: float, groups: int) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        "groups_per_s": round(groups / wall, 1),
        "p50_ms": round(1e3 * statistics.median(ordered), 2),
        "p99_ms": round(1e3 * ordered[int(0.99 * (len(ordered) - 1))], 2),
    }


def measure_in_process(groups: Sequence[Group]) -> dict[str, float]:
    datasets = {task: library.create_dataset(task, seed=0, size=1) for task, _, _ in groups}
    latencies = []
    began = time.perf_counter()
    for task, entry, answers in groups:
        before = time.perf_counter()
        for answer in answers:
            grade(datasets[task].score_answer, entry, answer)
        latencies.append(time.perf_counter() - before)
    return summary(latencies, time.perf_counter() - began, len(groups))


async def measure_sandbox(groups: Sequence[Group], num_workers: int) -> dict[str, float]:
    """Latency with one group at a time, throughput with several in flight, after every dataset is built."""
    grader = SandboxGrader(num_workers=num_workers)
    before = time.perf_counter()
    await grader.start()
    cold_start = time.perf_counter() - before
    try:
        for task, entry, answers in groups:
            await asyncio.gather(*(grader.grade(task, {}, entry, answers[:1]) for _ in range(num_workers)))
        latencies = []
        for task, entry, answers in groups:
            before = time.perf_counter()
            await grader.grade(task, {}, entry, answers)
            latencies.append(time.perf_counter() - before)
        wall = await throughput(grader, groups)
        # A child that is just ending shares its worker's pages and would halve the figure.
        await asyncio.sleep(0.5)
        memory = max(worker_memory_mb())
    finally:
        await grader.close()
    measured = summary(latencies, wall, len(groups))
    return {**measured, "cold_start_s": round(cold_start, 2), "worker_pss_mb": round(memory, 1)}


async def throughput(grader: SandboxGrader, groups: Sequence[Group]) -> float:
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def run(group: Group) -> None:
        async with slots:
            await grader.grade(group[0], {}, group[1], group[2])

    began = time.perf_counter()
    await asyncio.gather(*map(run, groups))
    return time.perf_counter() - began


def worker_memory_mb() -> list[float]:
    """Proportional set size of each child process of this one."""
    sizes = [0.0]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                rollup = (status.parent / "smaps_rollup").read_text()
                sizes.append(int(rollup.split("Pss:")[1].split()[0]) / 1024)
        except OSError:
            continue
    return sizes


async def measure_baselines(groups: Sequence[Group], rounds: int) -> dict[str, float]:
    """Strict scoring of the groups as verifiers score them, and with each item's baseline, by turns in one worker."""
    grader = SandboxGrader(num_workers=1, strict=True)
    await grader.start()
    problems = [(Problem(task, "", "train", 0, 0, {}, entry), answers) for task, entry, answers in groups]
    took: dict[bool, list[float]] = {False: [], True: []}
    try:
        for turn in range(rounds + 1):
            for with_baselines in (False, True):
                scorer = Scorer(grader, with_baselines=with_baselines)
                before = time.perf_counter()
                for problem, answers in problems:
                    await scorer.verdicts(problem, answers)
                # The first turn builds the datasets.
                if turn:
                    took[with_baselines].append(time.perf_counter() - before)
    finally:
        await grader.close()
    plain, baselines = (statistics.median(took[key]) for key in (False, True))
    return {
        "plain_ms_per_group": round(1e3 * plain / len(groups), 3),
        "baselines_ms_per_group": round(1e3 * baselines / len(groups), 3),
        "throughput_ratio": round(plain / baselines, 3),
    }


async def measure_hang(timeout_s: float) -> dict[str, float]:
    """How long a verifier that never returns holds its group, beyond its deadline."""
    hung = SandboxGrader(
        num_workers=1, timeout_s=timeout_s, task_modules=[ATTACK_MODULE], allow_unguarded=[ATTACK_TASK]
    )
    await hung.start()
    before = time.perf_counter()
    verdicts = await hung.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, "while True: pass", "None"])
    took = time.perf_counter() - before
    before = time.perf_counter()
    await hung.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
    following = time.perf_counter() - before
    await hung.close()
    return {
        "deadline_s": timeout_s,
        "resolved_s": round(took, 3),
        "next_group_ms": round(1e3 * following, 2),
        "neighbours_scored": float(sum(verdict.status is Status.SCORED for verdict in verdicts)),
    }


async def measure_hostile(grader: SandboxGrader, tasks: Sequence[str], marker: Path) -> dict[str, Any]:
    """Half the answers hostile, several groups in flight: effects, lost neighbours, stalls of the loop."""
    hostile = [text.replace("<marker>", str(marker)) for text in HOSTILE_ANSWERS.values()]
    prepared = []
    for task in tasks:
        _, entry, answers = honest_group(task, 3)
        score_answer = library.create_dataset(task, seed=0, size=1).score_answer
        neighbours = answers[: GROUP_SIZE // 2]
        expected = [grade(score_answer, entry, answer).value for answer in neighbours]
        prepared.append((task, entry, neighbours, expected))
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - before - 0.001)

    tally: Counter[str] = Counter()
    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(hostile_batches(grader, *problem, hostile, tally) for problem in prepared))
    watcher.cancel()
    return {
        "effects": await asyncio.to_thread(lambda: int(marker.exists())),
        **dict(sorted(tally.items())),
        "event_loop_longest_stall_ms": round(1e3 * max(stalls), 2),
        "worker_restarts": grader.metrics().get("grading/worker_restarts", 0.0),
    }


async def hostile_batches(
    grader: SandboxGrader,
    task: str,
    entry: dict[str, Any],
    neighbours: Sequence[str],
    expected: Sequence[float],
    hostile: Sequence[str],
    tally: Counter[str],
) -> None:
    for start in range(0, len(hostile), GROUP_SIZE // 2):
        batch = hostile[start : start + GROUP_SIZE // 2]
        verdicts = await grader.grade(task, {}, entry, [*neighbours, *batch])
        own, attacks = verdicts[: len(neighbours)], verdicts[len(neighbours) :]
        tally["neighbours"] += len(own)
        tally["neighbours_lost"] += sum(v.value != value for v, value in zip(own, expected, strict=True))
        tally.update(f"hostile_{verdict.status.value}" for verdict in attacks)
        tally.update(f"full_credit_in_{task}" for verdict in attacks if verdict.value == 1.0)


async def measure_equality(grader: SandboxGrader, tasks: Sequence[str], seeds: int) -> dict[str, Any]:
    """Honest answers, sandboxed and in this process. Those that time out have no score to compare."""
    compared = unscored = 0
    differences = []
    for task in tasks:
        score_answer = library.create_dataset(task, seed=0, size=1).score_answer
        for seed in range(seeds):
            _, entry, answers = honest_group(task, seed)
            for answer, verdict in zip(answers, await grader.grade(task, {}, entry, answers), strict=True):
                if verdict.status is Status.TIMEOUT:
                    unscored += 1
                    continue
                compared += 1
                plain = await asyncio.to_thread(grade, score_answer, entry, answer)
                if (plain.bare, plain.tagged, plain.status) != (verdict.bare, verdict.tagged, verdict.status):
                    differences.append({"task": task, "answer": answer[:80], "detail": verdict.detail})
    late = grader.metrics().get("grading/late_imports", 0.0)
    return {
        "tasks": len(tasks),
        "compared": compared,
        "timed_out": unscored,
        "different": len(differences),
        "late_imports": late,
        "examples": differences[:20],
    }


async def measure_oracles(grader: SandboxGrader, items: int) -> dict[str, Any]:
    """Oracle answers to tasks whose verifiers evaluate text: those without full credit were rejected."""
    below: dict[str, list[str]] = {}
    for task in sorted(GUARDS):
        dataset = library.create_dataset(task, seed=11, size=items)
        for start in range(0, items, 20):
            indices = range(start, min(start + 20, items))
            entries = await asyncio.to_thread(list, map(dataset.__getitem__, indices))
            graded = await asyncio.gather(*(grader.grade(task, {}, e, [right_answer(e)]) for e in entries))
            lost = [right_answer(e) for e, [verdict] in zip(entries, graded, strict=True) if verdict.value < 1.0]
            below.setdefault(task, []).extend(lost)
    return {"items_per_task": items, "below_full_credit": {task: texts[:3] for task, texts in below.items() if texts}}


async def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds and groups")
    quick = parser.parse_args().quick
    tasks = sorted(set(library.registry()) - {"composite"})
    groups = [honest_group(task, seed) for seed in range(1 if quick else 3) for task in tasks]
    report: dict[str, Any] = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    report["groups"] = len(groups)
    report["in_process"] = measure_in_process(groups)
    for num_workers in (1, 2):
        report[f"sandbox_{num_workers}"] = await measure_sandbox(groups, num_workers)
    grader = SandboxGrader(num_workers=2)
    await grader.start()
    report["baselines"] = await measure_baselines(groups, 2 if quick else 9)
    report["layers"] = grader.describe()
    report["hang"] = await measure_hang(timeout_s=2.0)
    with tempfile.TemporaryDirectory() as folder:
        guarded, others = sorted(GUARDS), sorted(set(tasks) - set(GUARDS))
        report["hostile_guarded"] = await measure_hostile(grader, guarded, Path(folder, "marker"))
        report["hostile_others"] = await measure_hostile(grader, others, Path(folder, "marker"))
    report["oracles"] = await measure_oracles(grader, 40 if quick else 2000)
    report["equality"] = await measure_equality(grader, tasks, 1 if quick else 10)
    await grader.close()
    return report


if __name__ == "__main__":
    # Some generators and verifiers print; standard output is for the report.
    with library.stdout_to_stderr():
        measured = asyncio.run(main())
    print(json.dumps(measured, indent=1))
