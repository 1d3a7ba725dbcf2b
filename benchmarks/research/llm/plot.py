"""Draw what the arms learned, and print two tables: held-out accuracy with 95% intervals, and the arms against `ours`.

    python benchmarks/research/llm/plot.py data/llm/all/*/results.json --out docs/real_model.png

An accuracy is the mean over questions of the share of exact completions. Its interval is 1.96 standard errors over
questions (Miller 2024, "Adding Error Bars to Evals", eq. 3): completions of one question are not independent.

The second table has each arm at its end, a mean over its seeds. Its difference to `ours` is paired by question. The
interval does not include the chance of the training run itself, so it is too narrow: look at the seeds as well. The
worst quarter is the mean accuracy of the quarter of the tasks that the arm answers worst.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = {
    "ours": "#0b6e4f",
    "learnability": "#2f6db5",
    "thompson": "#8a5fb0",
    "original": "#b5541c",
    "shuffled": "#7a7a7a",
}
SETS = ("easiest", "default")


def with_interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% interval."""
    return fmean(values), 1.96 * stdev(values) / len(values) ** 0.5


def shares(rows: list[list[Any]]) -> dict[str, float]:
    """Share of exact completions of each question."""
    return {question: fmean(exact) for question, *exact in rows}


def at_the_end(results: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Share of exact completions of each question after training, a mean over the runs of an arm."""
    of_runs = [shares(result["evaluations"][max(result["evaluations"], key=int)][name]) for result in results]
    return {question: fmean(run[question] for run in of_runs) for question in of_runs[0]}


def worst_quarter(answers: dict[str, float]) -> float:
    """Mean accuracy of the quarter of the tasks with the lowest accuracy."""
    of_tasks: dict[str, list[float]] = {}
    for question, share in answers.items():
        of_tasks.setdefault(question.split()[0], []).append(share)
    means = sorted(fmean(values) for values in of_tasks.values())
    return fmean(means[: max(1, len(means) // 4)])


def print_arms(results: list[dict[str, Any]]) -> None:
    """The arms at their ends, against `ours`."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        runs.setdefault(result["arm"], []).append(result)
    if "ours" not in runs:
        return
    print("\n| arm | questions | runs | accuracy | worst quarter | against ours, paired |\n|---|---|---|---|---|---|")
    for name in SETS:
        ours = at_the_end(runs["ours"], name)
        for arm, of_arm in runs.items():
            answers = at_the_end(of_arm, name)
            mean, half = with_interval(list(answers.values()))
            gain, width = with_interval([answers[question] - ours[question] for question in ours])
            against = "" if arm == "ours" else f"{100 * gain:+.1f} ± {100 * width:.1f}"
            worst = 100 * worst_quarter(answers)
            print(
                f"| {arm} | {name} | {len(of_arm)} | {100 * mean:.1f}% ± {100 * half:.1f} | {worst:.1f}% | {against} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("real_model.png"))
    options = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in options.results]
    # Results of runs with a budget of steps have no counts of generated tokens.
    has_tokens = all("generated" in result["steps"][-1] for result in results)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    print("| arm | questions | step | accuracy | against step 0, paired |\n|---|---|---|---|---|")
    for result in results:
        generated = {line["step"]: line.get("generated") for line in result["steps"]}
        generated[0] = 0
        label = f"{result['arm']}, seed {result['seed']}"
        for name, axis in zip(SETS, axes, strict=True):
            points = sorted(
                (int(step), shares(sets[name])) for step, sets in result["evaluations"].items() if name in sets
            )
            before = points[0][1]
            drawn = []
            for step, after in points:
                mean, half = with_interval(list(after.values()))
                gain, width = with_interval([after[question] - before[question] for question in before])
                drawn.append((generated[step] / 1000 if has_tokens else step, mean, half))
                against = "" if step == points[0][0] else f"{100 * gain:+.1f} ± {100 * width:.1f}"
                print(f"| {label} | {name} | {step} | {100 * mean:.1f}% ± {100 * half:.1f} | {against} |")
            places, means, halves = zip(*drawn, strict=True)
            axis.errorbar(
                places, [100 * mean for mean in means], [100 * half for half in halves],
                label=label, color=COLORS[result["arm"]], marker="o", capsize=3, alpha=0.85,
            )  # fmt: skip
            axis.set(title=f"held-out questions, {name} configs", ylabel="exact answers, %")
            axis.set_xlabel("generated tokens, thousands" if has_tokens else "training steps")
            axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(options.out, dpi=120)
    print_arms(results)


if __name__ == "__main__":
    main()
