"""Workers that are started once: for every test that leaves them as healthy as it found them."""

from __future__ import annotations

import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from reasoning_gym_environment.workers.generator import ProcessGenerator
from reasoning_gym_environment.workers.grader import SandboxGrader
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK, SECRET

# Only workers import it: it would stay registered in this process.
MISBEHAVING_MODULE = str(Path(__file__).parents[2] / "testing" / "generator_task.py")


@asynccontextmanager
async def grading(**options: Any) -> AsyncIterator[SandboxGrader]:
    """One worker that also knows the task which executes its answers, unless `options` say otherwise."""
    values = {"num_workers": 1, "task_modules": [ATTACK_MODULE], "allow_unguarded": [ATTACK_TASK], **options}
    grader = SandboxGrader(**values)
    await grader.start()
    try:
        yield grader
    finally:
        await grader.close()


def dataset_module(task: str, score_answer: str, *, before: str = "", at_start: str = "") -> str:
    """A module with a task of the user's own, whose items are empty.

    `score_answer` is the body of its verifier. The line `before` precedes the class, and the line `at_start` ends its
    constructor.
    """
    return f"""
from dataclasses import dataclass
from pathlib import Path
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset

{before}

@dataclass
class Config:
    seed: int | None = None
    size: int = 1

class Dataset(ProceduralDataset):
    def __init__(self, config):
        super().__init__(config, config.seed, config.size)
        {at_start}

    def __getitem__(self, index):
        return {{}}

    def score_answer(self, answer, entry):
{textwrap.indent(textwrap.dedent(score_answer), " " * 8)}

register_dataset("{task}", Dataset, Config)
"""


FILE_TASK = "reads_a_file"
OWN_DATASET = dataset_module(
    FILE_TASK,
    """
    if "raise" in answer:
        raise NameError("no such name")
    return float(answer == self.word)
    """,
    at_start='self.word = Path(__file__).with_name("word.txt").read_text()',
)


HIDDEN_EVAL_TASK = "hides_its_eval"
HIDDEN_EVAL = dataset_module(
    HIDDEN_EVAL_TASK,
    """
    if answer == entry["answer"]:
        return 1.0
    TOOLS["run"](answer, {"Dataset": Dataset})
    return 0.25
    """,
    before='TOOLS = {"run": exec}',
)


ACTING_TASK = "acts"
ACTING = dataset_module(
    ACTING_TASK,
    """
    seen.append(entry["answer"])
    if set(seen) != {entry["answer"]}:
        return 0.125
    if answer == entry["answer"]:
        return 1.0
    if answer.startswith("hang"):
        while True:
            pass
    if answer.startswith("crash"):
        raise GeneratorExit
    if answer.startswith("memory"):
        bytearray(1 << 40)
    if answer.startswith("raise"):
        raise ValueError
    return 0.25
    """,
    before="seen = []",
)

OWN_DATASETS = {"own_dataset": OWN_DATASET, "hidden_eval": HIDDEN_EVAL, "acting": ACTING}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def grader(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxGrader]:
    """One worker, started with a secret in the environment. It also knows tasks of the user's own."""
    os.environ["ATTACK_TEST_API_KEY"] = SECRET
    folder = tmp_path_factory.mktemp("own")
    (folder / "word.txt").write_text("right")
    for name, module in OWN_DATASETS.items():
        (folder / f"{name}.py").write_text(module)
    async with grading(task_modules=[ATTACK_MODULE, *map(str, folder.glob("*.py"))]) as grader:
        yield grader
    del os.environ["ATTACK_TEST_API_KEY"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def generator() -> AsyncIterator[ProcessGenerator]:
    """One worker that also knows the task which misbehaves."""
    generator = ProcessGenerator(timeout_s=60.0, task_modules=[MISBEHAVING_MODULE])
    await generator.start()
    yield generator
    await generator.close()
