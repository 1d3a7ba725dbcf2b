"""How often an evaluation's 95 % intervals hold the truth: python benchmarks/coverage.py [--quick] > coverage.json

A solver of known accuracy stands behind the mock server: it solves each question with a probability of its own, drawn
from a distribution whose mean is known. Every run asks it new questions over HTTP, several times each, through the
environment's own evaluator and scoring workers, and takes the interval that `evaluate` would report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from atroposlib.envs.base import APIServerConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.evaluation.results import summarise
from reasoning_gym_environment.evaluation.runner import sample_record
from reasoning_gym_environment.sampling.item_maker import Place
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from tests.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from tests.mock_dialects import ThreadedMockServer

TASKS = ("chain_sum", "gcd", "spell_backward")
MEAN, SPREAD = 0.6, 1.5
"""A question's probability is Beta(MEAN * SPREAD, (1 - MEAN) * SPREAD): questions differ much, completions little."""
COMPLETIONS = 3


class Solver:
    """Solves each question with its own probability."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self._rng = random.Random(5)

    def __call__(self, prompt: str) -> str:
        question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        mine = random.Random(question)
        solved = self._rng.random() < mine.betavariate(MEAN * SPREAD, (1.0 - MEAN) * SPREAD)
        return f"<think>I work on it.</think><answer>{self.answers[question] if solved else 'no idea'}</answer>"


async def one_run(env: ReasoningGymEnv, solver: Solver, run: int, per_task: int) -> tuple[float, float, float]:
    """Accuracy with its interval, over new questions."""
    assert env.components is not None
    maker = env.components.stream.maker
    problems = await asyncio.gather(
        *(maker.make(Place(task, index, f"coverage {run}", run)) for task in TASKS for index in range(per_task))
    )
    solver.answers = {problem.question: str(problem.entry["answer"]) for problem in problems}
    results = await env.components.evaluator.run(problems)
    found = summarise([sample_record(result) for result in results]).overall.accuracy
    assert found is not None
    return found.value, found.low, found.high


async def measure(runs: int, per_task: int, folder: Path) -> dict[str, Any]:
    tokenizer = build_byte_tokenizer()
    save_byte_tokenizer(folder / "tokenizer")
    solver = Solver()
    with ThreadedMockServer(solver, tokenizer) as server:
        config = ReasoningGymEnvConfig(
            tokenizer_name=str(folder / "tokenizer"),
            include_tasks=list(TASKS),
            num_eval_samples_per_task=0,
            eval_completions=COMPLETIONS,
            max_token_length=4096,
            use_wandb=False,
        )
        settings = APIServerConfig(
            server_type="vllm", base_url=server.base_url, model_name="mock", api_key="x", health_check=False
        )
        env = ReasoningGymEnv(config, [settings])
        await env.setup()
        try:
            found = [await one_run(env, solver, run, per_task) for run in range(runs)]
        finally:
            await env.close()
    holding = sum(low <= MEAN <= high for _, low, high in found)
    return {
        "questions": per_task * len(TASKS),
        "completions_per_question": COMPLETIONS,
        "true_accuracy": MEAN,
        "runs": runs,
        "mean_of_estimates": round(sum(value for value, _, _ in found) / runs, 4),
        "mean_width": round(sum(high - low for _, low, high in found) / runs, 4),
        "coverage": round(holding / runs, 3),
    }


async def main() -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 runs instead of 200")
    runs = 40 if parser.parse_args().quick else 200
    with tempfile.TemporaryDirectory() as folder:
        return [await measure(runs, per_task, Path(folder)) for per_task in (4, 15)]


if __name__ == "__main__":
    with library.stdout_to_stderr():
        measured = asyncio.run(main())
    print(json.dumps(measured, indent=1))
