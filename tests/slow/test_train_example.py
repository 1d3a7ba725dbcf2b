"""The example trainer, as a person runs it on a processor, only shorter: `make test-servers` and the nightly tests.

Its Python environment has vLLM and torch, and `serve` runs in ours.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from testing.support import running, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-llm" / "bin" / "python"
LIMIT_S = 3000.0


def command(out: Path, steps: int) -> list[str]:
    """The small model is asked for plain text, because it never uses tags without a cold start of some minutes.

    It is rarely right, so groups with equal rewards are sent too. Otherwise the first step would be a matter of luck.
    """
    sizes = f"--steps {steps} --groups 2 --group-size 4 --questions 2 --cold-start 0 --max-tokens 256".split()
    module = ["-m", "examples.train", "--model", "small", "--tasks", "isomorphic_strings,syllogism", "--threads", "1"]
    settings = ["--env.answer_format", "text", "--env.ensure_scores_are_not_same", "False"]
    return [*module, *sizes, "--out", str(out), "--", *settings]


def steps_of(out: Path) -> list[int]:
    steps = out / "steps.jsonl"
    lines = steps.read_text("utf-8").splitlines() if steps.exists() else []
    return [json.loads(line)["step"] for line in lines]


def test_one_command_trains_stops_resumes_and_compares_before_with_after(tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = tmp_path / "train.log"
    with running(command(out, steps=50), log, ROOT, program=PYTHON) as stopped:
        try:
            wait_for(lambda: steps_of(out), "a first step of the trainer", LIMIT_S)
        finally:
            # The launcher stops its processes. A kill would leave them.
            stopped.send_signal(signal.SIGINT)
            code = stopped.wait(LIMIT_S)
    assert code == 130, log.read_text("utf-8")
    assert "the same command resumes" in log.read_text("utf-8")
    made = max(steps_of(out))
    second_log = tmp_path / "resumed.log"
    with running(command(out, steps=made + 1), second_log, ROOT, program=PYTHON) as resumed:
        assert resumed.wait(LIMIT_S) == 0, second_log.read_text("utf-8")
    text = second_log.read_text("utf-8")
    assert steps_of(out) == list(range(1, made + 2)), "no step is missing or stands twice"
    assert "before training" not in text, "the questions before the training are asked once"
    assert "after training: " in text
    assert (out / "report.html").exists()
