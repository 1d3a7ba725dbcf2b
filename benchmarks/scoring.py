"""Measure the cost of the scoring sandbox: python benchmarks/scoring.py [--quick] > scoring.json

Measures groups per second, latency, processor time and memory for groups of 12 honest answers over all tasks. Also
measures the cost of an answer in this process, in a group of 8, and in a call with a single answer, and checks that the
sandbox gives the same scores as grading in this process. Grading in this process runs reasoning-gym's own verifiers, so
it gets honest text only. The tests send hostile answers to the sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reasoning_gym_environment.records import Outcome
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.verification.grade import check_for, grade
from reasoning_gym_environment.workers.grader import SandboxGrader
from testing.process_table import proportional_mb, with_descendants

GROUP_SIZE = 12
SHARED_SIZE = 8
SLOW_TASKS = frozenset({"intermediate_integration", "simple_integration"})
"""Their simplification takes so long that it hides all other costs."""
Group = tuple[str, dict[str, Any], list[str]]


def honest_group(task: str, seed: int) -> Group:
    """An item and 12 answers to it: right ones, ones to other items, slips of the pen."""
    rng = random.Random(f"{task}{seed}")
    dataset = library.create_dataset(task, seed=seed, size=4)
    entries = [dataset[index] for index in range(4)]
    answers = [str(entry["answer"]) for entry in entries]
    while len(answers) < GROUP_SIZE:
        letters = list(rng.choice(answers[:4]))
        if letters:
            letters[rng.randrange(len(letters))] = rng.choice("0123456789 abx+-.")
        answers.append("".join(letters) + " " * (len(answers) % 3))
    return task, entries[0], answers


async def measure_costs(groups: Sequence[Group], num_workers: int) -> dict[str, float]:
    """Latency with one group at a time, throughput with a group for each worker; every dataset is built before."""
    grader = SandboxGrader(num_workers=num_workers)
    await grader.start()
    pids = [worker.pid or 0 for worker in grader._pool.workers]
    slots = asyncio.Semaphore(num_workers)

    async def run(group: Group) -> float:
        async with slots:
            before = time.perf_counter()
            await grader.grade(group[0], {}, group[1], group[2])
            return time.perf_counter() - before

    try:
        await asyncio.gather(*map(run, [*groups] * num_workers))
        grader._remembered.clear()
        latencies = sorted([await run(group) for group in groups])
        grader._remembered.clear()
        used, began = sum(map(processor_s, pids)), time.perf_counter()
        await asyncio.gather(*map(run, groups))
        wall, used = time.perf_counter() - began, sum(map(processor_s, pids)) - used
        memory = max(map(proportional_mb, pids))
    finally:
        await grader.close()
    return {
        "groups_per_s": round(len(groups) / wall, 1),
        "processor_ms_per_group": round(1e3 * used / len(groups), 2),
        "p50_ms": round(1e3 * statistics.median(latencies), 2),
        "p99_ms": round(1e3 * latencies[int(0.99 * (len(latencies) - 1))], 2),
        "worker_mb": round(memory),
    }


async def measure_shared(groups: Sequence[Group], rounds: int) -> list[dict[str, float]]:
    """Processor milliseconds per answer, of this process and one worker, in turn.

    There are four measurements: without a fork; in groups of 8; calls with one answer each, in order; and such calls in
    random order, so that few answers to the same problem wait at the same time.
    """
    groups = [(task, entry, answers[:SHARED_SIZE]) for task, entry, answers in groups if task not in SLOW_TASKS]
    singles = [(task, entry, [answer]) for task, entry, answers in groups for answer in answers]
    shuffled = random.Random(1).sample(singles, len(singles))
    verifiers = {task: library.create_dataset(task, seed=0, size=1).score_answer for task, _, _ in groups}
    grader = SandboxGrader(num_workers=1, strict=True)
    await grader.start()
    pid = grader._pool.workers[0].pid or 0

    async def milliseconds(calls: Sequence[Group], callers: int) -> float:
        grader._remembered.clear()
        remaining = iter(calls)

        async def ask() -> None:
            for task, entry, answers in remaining:
                await grader.grade(task, {}, entry, answers)

        began = time.process_time() + processor_s(pid)
        await asyncio.gather(*(ask() for _ in range(callers)))
        used = time.process_time() + processor_s(pid) - began
        return round(1e3 * used / len(singles), 3)

    def without_fork() -> float:
        began = time.process_time()
        for task, entry, answers in groups:
            check = check_for(task, entry)
            for answer in dict.fromkeys(answers):
                grade(verifiers[task], entry, answer, check)
        return round(1e3 * (time.process_time() - began) / len(singles), 3)

    table = []
    # The first round builds the datasets.
    for number in range(rounds + 1):
        row = {
            "without_fork": without_fork(),
            "groups_of_8": await milliseconds(groups, 1),
            "one_a_call_1_caller": await milliseconds(singles, 1),
            "one_a_call_8_callers": await milliseconds(singles, 8),
            "one_a_call_32_callers": await milliseconds(singles, 32),
            "one_a_call_32_callers_shuffled": await milliseconds(shuffled, 32),
        }
        if number:
            table.append(row)
    await grader.close()
    return table


def processor_s(pid: int) -> float:
    """Of a worker and the children that it has collected."""
    return with_descendants(pid)[0].cpu_s


async def measure_equality(grader: SandboxGrader, groups: Sequence[Group]) -> dict[str, Any]:
    """Honest answers, sandboxed and in this process. Those that time out have no score to compare."""
    compared, different = 0, []
    for task, entry, answers in groups:
        score_answer = library.create_dataset(task, seed=0, size=1).score_answer
        for answer, verdict in zip(answers, await grader.grade(task, {}, entry, answers), strict=True):
            if verdict.failure is not Outcome.TIMEOUT:
                compared += 1
                plain = await asyncio.to_thread(grade, score_answer, entry, answer)
                if (plain.value, plain.failure) != (verdict.value, verdict.failure):
                    different.append({"task": task, "answer": answer[:80], "detail": verdict.detail})
    return {"compared": compared, "different": len(different), "examples": different[:20]}


async def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one item of each task, and one round, instead of three")
    tasks = sorted(set(library.registry()) - {"composite"})
    rounds = 1 if parser.parse_args().quick else 3
    groups = [honest_group(task, seed) for seed in range(rounds) for task in tasks]
    report: dict[str, Any] = {"cores": os.cpu_count(), "groups": len(groups)}
    for num_workers in (1, 2):
        report[f"workers_{num_workers}"] = await measure_costs(groups, num_workers)
    report["processor_ms_per_answer"] = await measure_shared(groups[: len(tasks)], rounds)
    grader = SandboxGrader(num_workers=2)
    await grader.start()
    report["layers"] = grader.describe()
    report["equality"] = await measure_equality(grader, groups)
    await grader.close()
    return report


if __name__ == "__main__":
    # Some generators and verifiers print; standard output is for the report.
    with library.stdout_to_stderr():
        measured = asyncio.run(main())
    print(json.dumps(measured, indent=1))
