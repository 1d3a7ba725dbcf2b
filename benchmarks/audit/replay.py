"""Which holes of its verifiers does a release of reasoning-gym have? python benchmarks/audit/replay.py [TASK ...]

It needs only reasoning-gym, in any release. Each line of `soundness.jsonl` has an item (task, seed, config), an answer,
and the score of this answer in release 0.1.25:

    unsound    a wrong answer with a full score, because of a hole. The line describes the hole in a sentence
    generous   a wrong answer with a partial score, which the verifier gives on purpose
    refuses    a right answer without a full score, because of its notation

This script scores each answer again, both bare and inside answer tags, as the environment for Atropos does. If the
verifier raises an error, the score is 0. The output is JSON: the number of holes that remain, and each case with its
current score. Exits with 1 if a hole remains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = Path(__file__).with_name("soundness.jsonl")
SLACK = 1e-3


def replayed(case: dict[str, Any]) -> dict[str, Any]:
    """The case with what it is `paid_now` (None: the item cannot be made any more) and whether it `stands`."""
    import reasoning_gym

    paid, raised = 0.0, ""
    try:
        dataset = reasoning_gym.create_dataset(case["task"], seed=case["seed"], size=1, **case["config"])
        item = dataset[0]
    except Exception as error:  # noqa: BLE001
        return {**case, "paid_now": None, "error": f"{type(error).__name__}: {error}", "stands": False}
    for text in (case["answer"], f"<answer>{case['answer']}</answer>"):
        # A verifier that raises pays nothing; whether it refused or is broken is for the reader to see.
        try:
            paid = max(paid, float(dataset.score_answer(text, item)))
        except Exception as error:  # noqa: BLE001
            raised = f"{type(error).__name__}: {error}"
    stands = paid < 1 if case["kind"] == "refuses" else paid >= case["paid"] - SLACK
    return {**case, "paid_now": round(paid, 4), "stands": stands, **({"raised": raised} if raised else {})}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="only these")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The items of five tasks follow from it.
        return subprocess.call([sys.executable, *sys.argv], env={**os.environ, "PYTHONHASHSEED": "0"})
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    if unknown := {*given.tasks} - {case["task"] for case in cases}:
        parser.error(f"no case is of {', '.join(sorted(unknown))}.")
    found = [replayed(case) for case in cases if not given.tasks or case["task"] in given.tasks]
    report = {
        "stand": sum(case["stands"] for case in found),
        "could_not_be_tried": sum(case["paid_now"] is None for case in found),
        "verifier_raised": sum("raised" in case for case in found),
        "cases": found,
    }
    print(json.dumps(report, indent=1, ensure_ascii=False))
    return int(report["stand"] > 0)


if __name__ == "__main__":
    sys.exit(main())
