"""Compare grade-server with a handler that calls reasoning-gym's verifiers: python benchmarks/grade_server.py

The client keeps 512 requests in flight, each with one completion for an item of one of twelve tasks. The two servers
run alternately, several times:

    ours     reasoning-gym-env grade-server, with as many grading processes as there are cores
    handler  a FastAPI handler that calls `score_answer` in its event loop, as other projects do

Then the client sends an answer whose evaluation never ends (a power tower, which the verifiers of tasks such as
`countdown` evaluate) together with normal answers. The script counts the normal answers that are graded within ten
seconds, and prints the reward of the endless answer. The two servers do not grade by the same rules: ours uses forms
and validators in a sandbox, and the handler uses only the library's verifier.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

IN_FLIGHT = 512
TASKS = (
    "chain_sum,gcd,countdown,n_queens,word_ladder,sudoku,polynomial_equations,spell_backward,binary_matrix,"
    "time_intervals,propositional_logic,shortest_path"
)
ENDLESS = "9**9**9**9"
PATIENCE_S = 10.0


def handler(port: int) -> None:
    """The other server: in this process, until it is ended."""
    import reasoning_gym
    import uvicorn
    from fastapi import FastAPI

    app, datasets = FastAPI(), {}

    @app.post("/grade")
    async def grade(groups: list[dict[str, Any]]) -> list[Any]:
        found = []
        for group in groups:
            key = (group["recipe"]["task"], group["recipe"]["seed"])
            if key not in datasets:
                task, seed = key
                datasets[key] = reasoning_gym.create_dataset(task, seed=seed, size=1)
            dataset = datasets[key]
            answers = [re.sub(r".*<answer>|</answer>.*", "", text, flags=re.DOTALL) for text in group["completions"]]
            found.append([{"reward": dataset.score_answer(answer, dataset[0])} for answer in answers])
        return found

    uvicorn.run(app, port=port, log_level="error")


@contextlib.contextmanager
def server(kind: str, port: int) -> Iterator[str]:
    ours = ["-m", "reasoning_gym_environment", "grade-server", "--tasks", TASKS + ",puzzle24", "--port", str(port)]
    ours += ["--num-scoring-workers", str(os.cpu_count() or 1)]
    command = ours if kind == "ours" else [__file__, "--handler", str(port)]
    process = subprocess.Popen([sys.executable, *command], stdout=sys.stderr, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"The server {kind} ended with {process.returncode}.")
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/openapi.json", timeout=5)
                break
            time.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def groups() -> list[dict[str, Any]]:
    """An item of each task, with its right answer and another item's."""
    import reasoning_gym

    found = []
    for task in TASKS.split(","):
        answers = [reasoning_gym.create_dataset(task, seed=seed, size=1)[0]["answer"] for seed in range(8)]
        for seed, (own, other) in enumerate(zip(answers, answers[::-1], strict=True)):
            for answer in (own, other):
                found.append({"recipe": recipe(task, seed), "completions": [f"<answer>{answer}</answer>"]})
    return found


def recipe(task: str, seed: int) -> dict[str, Any]:
    return {"task": task, "seed": seed, "config": "{}", "level": None, "question_digest": ""}


async def load(url: str, asked: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Keeps IN_FLIGHT requests going for so long."""
    latencies: list[float] = []
    # httpx takes longer for a request the more connections there are.
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def ask(number: int) -> None:
            began = start
            while began < start + seconds:
                began = time.monotonic()
                async with client.post(f"{url}/grade", json=[asked[number % len(asked)]]) as reply:
                    reply.raise_for_status()
                    await reply.read()
                latencies.append(time.monotonic() - began)
                number += IN_FLIGHT

        start = time.monotonic()
        await asyncio.gather(*map(ask, range(IN_FLIGHT)))
        took = time.monotonic() - start
    return {
        "grades_per_s": round(len(latencies) / took, 1),
        "p50_s": round(statistics.median(latencies), 3),
        "p99_s": round(statistics.quantiles(latencies, n=100)[98], 3),
    }


async def hang(url: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """One answer that never ends, and others right behind it."""
    endless = {"recipe": recipe("puzzle24", 7), "completions": [f"<answer>{ENDLESS}</answer>"]}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

        async def reward(group: dict[str, Any]) -> Any:
            try:
                [[grade]] = (await client.post(f"{url}/grade", json=[group])).json()
                return grade["reward"]
            except httpx.HTTPError as error:
                return type(error).__name__

        first = asyncio.ensure_future(reward(endless))
        await asyncio.sleep(0.3)
        others = await asyncio.gather(*map(reward, asked[:64]))
    answered = sum(not isinstance(outcome, str) for outcome in others)
    return {"others_answered": f"{answered} of {len(others)} in {PATIENCE_S:.0f} s", "the_endless_one": await first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server, in turn (%(default)s)")
    parser.add_argument("--handler", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.handler:
        return handler(given.handler)
    asked = groups()
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "handler": []}
    hangs = {}
    for number in range(given.rounds):
        for kind, found in runs.items():
            with server(kind, 8190) as url:
                asyncio.run(load(url, asked, 2.0))
                found.append(asyncio.run(load(url, asked, given.seconds)))
                print(kind, found[-1], file=sys.stderr)
                if number == 0:
                    hangs[kind] = asyncio.run(hang(url, asked))
    print(
        json.dumps({"in_flight": IN_FLIGHT, "cores": os.cpu_count(), "runs": runs, "one_that_hangs": hangs}, indent=1)
    )


if __name__ == "__main__":
    main()
