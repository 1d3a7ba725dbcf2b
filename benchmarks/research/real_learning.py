"""Compare ways to choose tasks and levels: how much does a real model learn from equal numbers of generated tokens?

    warm start ──> for each (mix of tasks, way, seed): choose ── sample ── score ── observe ── train ──> new weights
        held-out questions (default configs and levels 0 to 3), at temperature 1, before and after

The demo's trainer trains the tiny transformer of the demo. Task choice, curriculum, prompts, extraction, strict
verification and rewards are the project's, in a single process without server, run-api and sandbox (`make demo` has
them). A group has 8 completions, and IN_FLIGHT groups are in flight together. Training skips groups without a signal,
but their tokens count. A run ends after the round of groups in which it has generated `--tokens` tokens.

    python benchmarks/research/real_learning.py \\
        --mixes three --ways "uniform, curriculum+thompson, curriculum" --seeds 2
    python benchmarks/research/real_learning.py --runs runs.jsonl --results results.jsonl --plot docs/real_learning.png

The first command takes two minutes on two cores. The second takes hours, and resumes if it was stopped.

`--ways` has the arms. The arms named `..., curriculum` differ only in the choice of tasks: uniform, as in the package,
or a candidate of benchmarks/research/samplers. `--floor` is the share of learnability's draws that visit all tasks
evenly. In the mix `refused`, the first REFUSED_GROUPS groups of gcd earn nothing.

Prints JSON: accuracy by way, task and level, the worst task and the mean of the worst quarter of the tasks, the share
of groups with a signal, tokens for each of them, and differences to uniform tasks on the curriculum, paired by seed,
with 95 % intervals of Student's t.
"""

from __future__ import annotations

import os

# One process does one run: more threads would fight for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from benchmarks.research.samplers.absolute_advantage import AbsoluteAdvantageTasks
from benchmarks.research.samplers.learnability import LearnableTasks
from benchmarks.research.samplers.near_half import NearHalfTasks
from benchmarks.research.samplers.policy import TaskPolicy
from benchmarks.research.samplers.preferences import FLOOR
from benchmarks.research.samplers.thompson import ThompsonTasks
from benchmarks.research.samplers.weighted import WeightedTasks
from examples.demo.model import RATE, Sampled, Trainer, Transformer
from reasoning_gym_environment.evaluation.statistics import t_quantile
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer
from reasoning_gym_environment.inference.prompts import as_dicts, build_messages
from reasoning_gym_environment.records import MASKED, MIN_COMPLETION_TOKENS, Verdict
from reasoning_gym_environment.sampling.curriculum import Curriculum, GroupResult
from reasoning_gym_environment.sampling.levels import level_chooser
from reasoning_gym_environment.sampling.seeds import HELD_OUT_ONE_IN, is_held_out
from reasoning_gym_environment.scoring.extraction import extract_answer
from reasoning_gym_environment.scoring.rewards import base_reward
from reasoning_gym_environment.settings.components import SamplingSettings
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder, build_ladder
from reasoning_gym_environment.verification.grade import check_for, grade

WARM_START = Path(__file__).resolve().parents[2] / "examples" / "demo" / "tiny_model"

# Of `half` and `other half` the last three teach this model nothing, not even alone: 160 groups of one task on the
# curriculum improve the accuracy by 0.02 or less, and for the first three tasks by 0.05 to 0.23.
MIXES = {
    "three": ("spell_backward", "leg_counting", "gcd"),
    "six": ("spell_backward", "leg_counting", "gcd", "chain_sum", "products", "count_bits"),
    "half": ("spell_backward", "leg_counting", "gcd", "count_bits", "chain_sum", "count_primes"),
    "other half": (
        "aiw", "letter_counting", "family_relationships", "basic_arithmetic", "simple_equations", "base_conversion",
    ),
    "twelve": (
        "spell_backward", "leg_counting", "gcd", "chain_sum", "products", "count_bits", "letter_counting",
        "family_relationships", "base_conversion", "syllogism", "count_primes", "simple_equations",
    ),
    # All tasks of reasoning-gym whose questions at the easiest level have at most MAX_PROMPT tokens, except for those
    # whose items take seconds.
    "all": (
        "aiw", "base_conversion", "basic_arithmetic", "calendar_arithmetic", "chain_sum", "coin_flip",
        "complex_arithmetic", "count_bits", "count_primes", "decimal_arithmetic", "decimal_chain_sum",
        "family_relationships", "fraction_simplification", "gcd", "isomorphic_strings", "lcm", "leg_counting",
        "letter_counting", "prime_factorization", "products", "sentence_reordering", "simple_equations",
        "spell_backward", "syllogism", "time_intervals",
    ),
    "refused": ("spell_backward", "leg_counting", "gcd"),
}  # fmt: skip

REFUSED_TASK = "gcd"
REFUSED_GROUPS = 200

AS_SHIPPED = "as Atropos ships it"
WAYS: dict[str, tuple[str, str | None]] = {
    AS_SHIPPED: ("uniform", None),
    "uniform, default configs": ("uniform", None),
    "uniform, random levels": ("uniform", "random"),
    "uniform, curriculum": ("uniform", "curriculum"),
    "learnability, default configs": ("learnability", None),
    "learnability, random levels": ("learnability", "random"),
    "learnability, curriculum": ("learnability", "curriculum"),
    "thompson, curriculum": ("thompson", "curriculum"),
    "absolute advantage, curriculum": ("absolute advantage", "curriculum"),
    "near half, curriculum": ("near half", "curriculum"),
}
CANDIDATES: dict[str, Any] = {
    "uniform": WeightedTasks,
    "thompson": ThompsonTasks,
    "absolute advantage": AbsoluteAdvantageTasks,
    "near half": NearHalfTasks,
}
BASE, ORIGINAL = "uniform, curriculum", "uniform, default configs"
"""`AS_SHIPPED` is ORIGINAL with the original's sampling and pay as well: top_p 0.95, the library's scores without
strict checks, without completions of fewer than ten tokens. All arms are evaluated by the same rule."""

TOKENS = 100_000
"""Generated by a run: about 1,500 groups."""

GROUP_SIZE = 8
IN_FLIGHT = 16
GROUPS_PER_STEP = 4
POOL = 400
MAX_PROMPT = 160
MAX_NEW = 24
EVAL_LEVELS = (None, 0, 1, 2, 3)


@dataclass(frozen=True)
class Question:
    task: str
    level: int | None
    entry: dict[str, Any]
    tokens: tuple[int, ...]


class World:
    """What all runs share: tokenizer, ladders, questions by task and level."""

    def __init__(self, warm_start: Path) -> None:
        library.load()
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(WARM_START)
        self.chat_tokenizer = ChatTokenizer(self.tokenizer, "warm start")
        self.weights = warm_start

    @functools.cache  # noqa: B019  (one world a process)
    def ladder(self, task: str) -> Ladder:
        """The levels whose questions fit into the model's context."""
        ladder = build_ladder(task)
        fits = [level for level in ladder.levels if self.fits(task, level.index)]
        return Ladder(task, tuple(fits), ladder.source)

    def fits(self, task: str, level: int) -> bool:
        config = dict(build_ladder(task).levels[level].config)
        sample = self._make(task, level, "probe", 5, config)
        return all(len(question.tokens) <= MAX_PROMPT for question in sample)

    @functools.cache  # noqa: B019
    def verifier(self, task: str) -> Any:
        return library.create_dataset(task, seed=0, size=1).score_answer

    @functools.cache  # noqa: B019
    def pool(self, task: str, level: int | None) -> list[Question]:
        """Training questions, without held-out questions."""
        made = self._make(task, level, "train", POOL)
        return [question for question in made if not is_held_out(question.entry["question"])]

    @functools.cache  # noqa: B019
    def held_out(self, task: str, level: int | None, count: int) -> list[Question]:
        if level is not None and level >= len(self.ladder(task)):
            return []
        made = self._make(task, level, "held out", 2 * HELD_OUT_ONE_IN * count)
        held_out = [question for question in made if is_held_out(question.entry["question"])]
        fits = [question for question in held_out if len(question.tokens) <= 2 * MAX_PROMPT]
        return fits[:count]

    def _make(
        self, task: str, level: int | None, split: str, count: int, config: dict[str, Any] | None = None
    ) -> list[Question]:
        if config is None:
            config = config_of(task) if level is None else dict(self.ladder(task).levels[level].config)
        seed = {"train": 1_000_000, "held out": 2_000_000, "probe": 3_000_000}[split]
        fields = {name: value for name, value in config.items() if name not in ("seed", "size")}
        dataset = library.create_dataset(task, seed=seed, size=count, **fields)
        entries = [dataset[index] for index in range(count)]
        return [Question(task, level, entry, tuple(self._prompt(entry["question"]))) for entry in entries]

    def _prompt(self, question: str) -> list[int]:
        return self.chat_tokenizer.render(as_dicts(build_messages(question))).tokens

    def score(self, question: Question, text: str, strict: bool = True) -> Verdict:
        found = extract_answer(text)
        if found.answer is None:
            return Verdict(0.0)
        check = check_for(question.task, question.entry) if strict else None
        return grade(self.verifier(question.task), question.entry, found.answer, check)


@functools.cache
def world(warm_start: Path) -> World:
    return World(warm_start)


def answers(
    world: World, model: Transformer, questions: Sequence[Question], rng: Any, top_p: float = 1.0
) -> list[Sampled]:
    prompts = [question.tokens for question in questions]
    limits = [MAX_NEW] * len(prompts)
    return model.sample(prompts, max_tokens=limits, end=world.tokenizer.eos_token_id, rng=rng, top_p=top_p)


def accuracy(
    world: World, model: Transformer, tasks: Sequence[str], each: int, seed: int
) -> dict[str, dict[str, float]]:
    """Share of right answers by task and level (`default`, `0`, ...)."""
    rng = np.random.default_rng(seed)
    questions = [question for task in tasks for level in EVAL_LEVELS for question in world.held_out(task, level, each)]
    right: dict[str, dict[str, list[bool]]] = {}
    for at in range(0, len(questions), 192):
        part = questions[at : at + 192]
        for question, sampled in zip(part, answers(world, model, part, rng), strict=True):
            text = world.tokenizer.decode(sampled.tokens, skip_special_tokens=True)
            place = "default" if question.level is None else str(question.level)
            value = world.score(question, text).value
            right.setdefault(question.task, {}).setdefault(place, []).append(value >= 1.0)
    return {task: {place: statistics.fmean(seen) for place, seen in places.items()} for task, places in right.items()}


@functools.cache
def accuracy_before(warm_start: Path, tasks: tuple[str, ...], each: int, seed: int) -> dict[str, dict[str, float]]:
    """The accuracy of the warm start, which all ways have in common."""
    return accuracy(world(warm_start), Transformer.load(warm_start), tasks, each, seed)


def overall(table: dict[str, dict[str, float]]) -> float:
    """Mean over tasks of the mean over levels: every task counts alike."""
    return statistics.fmean(statistics.fmean(places.values()) for places in table.values())


def learn(job: dict[str, Any]) -> dict[str, Any]:
    """One run."""
    here = world(Path(job["warm_start"]))
    tasks, (sampling, mode) = MIXES[job["mix"]], WAYS[job["way"]]
    seed, began, is_ours = job["seed"], time.monotonic(), job["way"] != AS_SHIPPED
    model = Transformer.load(here.weights)
    trainer = Trainer(model, rate=job["rate"])
    ladders = {task: here.ladder(task) for task in tasks} if mode else {}
    curriculum = Curriculum(ladders, lambda task: len(ladders[task]) - 1, job["target"])
    weights = dict.fromkeys(tasks, 1.0)
    settings = SamplingSettings(complexity_mode=mode, seed=seed)
    policy: TaskPolicy
    if sampling == "learnability":
        level_of = curriculum.level if mode == "curriculum" else None
        policy = LearnableTasks(weights, seed, level_of, job["options"]["task_floor"])
    else:
        policy = CANDIDATES[sampling](weights, seed)
    levels = level_chooser(settings, ladders, curriculum)
    partial_credit = job["partial_credit"] if is_ours else "native"
    rng = np.random.default_rng(seed)
    shuffler = random.Random(seed)
    before = accuracy_before(here.weights, tasks, job["each"], seed)
    ready: list[dict[str, Any]] = []
    drawn: Counter[str] = Counter()
    signals: Counter[str] = Counter()
    tokens = 0
    steps, curve = 0, []
    for start in itertools.count(0, IN_FLIGHT):
        if tokens >= job["tokens"]:
            break
        chosen = []
        for index in range(start, start + IN_FLIGHT):
            task = policy.choose(index, "0")
            level = levels(task, index) if levels else None
            pool = here.pool(task, level.index if level else None)
            chosen.append(pool[random.Random(f"{seed} {index}").randrange(len(pool))])
        repeated = [question for question in chosen for _ in range(GROUP_SIZE)]
        sampled = answers(here, model, repeated, rng, 1.0 if is_ours else 0.95)
        for number, question in enumerate(chosen):
            group = sampled[number * GROUP_SIZE : (number + 1) * GROUP_SIZE]
            drawn[question.task] += 1
            tokens += sum(len(completion.tokens) for completion in group)
            if not is_ours:
                group = [completion for completion in group if len(completion.tokens) >= MIN_COMPLETION_TOKENS]
                if not group:
                    continue
            texts = [here.tokenizer.decode(completion.tokens, skip_special_tokens=True) for completion in group]
            rewards = [base_reward(here.score(question, text, is_ours), partial_credit) for text in texts]
            if job["shuffled"]:
                # Rewards of other completions: what is learned must not be the reward's doing.
                rewards = [float(shuffler.random() < 0.3) for _ in rewards]
            if job["mix"] == "refused" and question.task == REFUSED_TASK and drawn[REFUSED_TASK] <= REFUSED_GROUPS:
                rewards = [0.0] * len(rewards)
            spread = max(rewards) - min(rewards)
            signals[question.task] += spread > 0
            observe(policy, curriculum if mode == "curriculum" else None, question, rewards)
            if spread > 0:
                ready.append(as_posted(question, group, rewards))
        while len(ready) >= GROUPS_PER_STEP:
            trainer.step(ready[:GROUPS_PER_STEP])
            del ready[:GROUPS_PER_STEP]
            steps += 1
        if job["curve"] and (start // IN_FLIGHT) % job["curve"] == 0:
            curve.append([tokens, overall(accuracy(here, model, tasks, 12, seed))])
    after = accuracy(here, model, tasks, job["each"], seed)
    return {
        **job,
        **figures_of(before, after),
        "generated_tokens": tokens,
        "drawn": dict(drawn),
        "signals": dict(signals),
        "levels": {task: curriculum.level(task) for task in tasks} if mode == "curriculum" else {},
        "steps": steps,
        "curve": curve,
        "seconds": round(time.monotonic() - began, 1),
    }


def figures_of(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What the two tables of accuracies come to."""
    by_task = {task: statistics.fmean(places.values()) for task, places in after.items()}
    worst_first = sorted(by_task.values())
    worst_quarter = worst_first[: math.ceil(len(worst_first) / 4)]
    return {
        "before": overall(before),
        "after": overall(after),
        "worst_task": worst_first[0],
        "worst_quarter": statistics.fmean(worst_quarter),
        "by_task": by_task,
        "by_task_before": {task: statistics.fmean(places.values()) for task, places in before.items()},
        "table": after,
    }


def as_posted(question: Question, group: Sequence[Sampled], rewards: list[float]) -> dict[str, Any]:
    """The group as a trainer reads it from a batch."""
    size = len(question.tokens)
    return {
        "tokens": [[*question.tokens, *completion.tokens] for completion in group],
        "masks": [[MASKED] * size + completion.tokens for completion in group],
        "inference_logprobs": [[1.0] * size + completion.logprobs for completion in group],
        "scores": rewards,
    }


def observe(policy: TaskPolicy, curriculum: Curriculum | None, question: Question, rewards: list[float]) -> None:
    """What SamplerWithPolicy does with a scored group."""
    result = GroupResult(question.task, question.level, tuple(rewards))
    policy.observe(result)
    if curriculum is not None and question.level is not None:
        curriculum.observe(result)


# --- all runs together


def compared(runs: Sequence[dict[str, Any]], way: str, base: str) -> dict[str, Any] | None:
    """Mean differences of two ways over the seeds that both have, with their 95 % intervals."""
    by_seed = {run["seed"]: run for run in runs if run["way"] == way}
    of_base = {run["seed"]: run for run in runs if run["way"] == base}
    seeds = sorted(by_seed.keys() & of_base.keys())
    if len(seeds) < 2:
        return None
    return {
        key: interval([by_seed[seed][key] - of_base[seed][key] for seed in seeds])
        for key in ("after", "worst_task", "worst_quarter")
    }


def interval(differences: Sequence[float]) -> dict[str, Any]:
    mean, half = statistics.fmean(differences), spread(differences)
    return {
        "difference": round(mean, 4),
        "interval": [round(mean - half, 4), round(mean + half, 4)],
        "seeds": len(differences),
    }


def spread(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean."""
    return (
        t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    )


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of one way in one mix."""
    gains = [run["after"] - run["before"] for run in runs]
    count = sum(sum(run["drawn"].values()) for run in runs)
    informative = sum(sum(run["signals"].values()) for run in runs)
    tokens = sum(run["generated_tokens"] for run in runs)
    return {
        "runs": len(runs),
        "before": round(statistics.fmean(run["before"] for run in runs), 4),
        "after": round(statistics.fmean(run["after"] for run in runs), 4),
        "gain": round(statistics.fmean(gains), 4),
        "gain_interval": [round(statistics.fmean(gains) + sign * spread(gains), 4) for sign in (-1, 1)],
        "worst_task": round(statistics.fmean(run["worst_task"] for run in runs), 4),
        "worst_quarter": round(statistics.fmean(run["worst_quarter"] for run in runs), 4),
        "groups": round(count / len(runs)),
        "tokens": round(tokens / len(runs)),
        "informative_share": round(informative / count, 3),
        "tokens_per_informative_group": round(tokens / informative, 1) if informative else None,
        "share_of_groups": {
            task: round(sum(run["drawn"].get(task, 0) for run in runs) / count, 3) for task in runs[0]["by_task"]
        },
        "accuracy_by_task": {
            task: [
                round(statistics.fmean(run["by_task_before"][task] for run in runs), 3),
                round(statistics.fmean(run["by_task"][task] for run in runs), 3),
            ]
            for task in runs[0]["by_task"]
        },
        "accuracy_by_level": {
            task: {
                place: round(statistics.fmean(run["table"][task][place] for run in runs), 3)
                for place in runs[0]["table"][task]
            }
            for task in runs[0]["by_task"]
        },
    }


def report(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for mix in dict.fromkeys(run["mix"] for run in runs):
        of_mix = [run for run in runs if run["mix"] == mix and not run["shuffled"]]
        ways = {
            way: [run for run in of_mix if run["way"] == way] for way in dict.fromkeys(run["way"] for run in of_mix)
        }
        made[mix] = {
            "ways": {way: summary(of_way) for way, of_way in ways.items()},
            f"against {BASE}": {way: compared(of_mix, way, BASE) for way in ways if way != BASE},
        }
        for original in (ORIGINAL, AS_SHIPPED):
            if original in ways:
                gain = made[mix]["ways"][original]["gain"]
                made[mix][f"times the gain of {original}"] = {
                    way: round(row["gain"] / gain, 2) for way, row in made[mix]["ways"].items()
                }
        shuffled = [run for run in runs if run["mix"] == mix and run["shuffled"]]
        if shuffled:
            made[mix]["shuffled_rewards"] = summary(shuffled)
    return made


def plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Differences in held-out accuracy to BASE, with their intervals: a row for each mix, a colour for each way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = [run for run in runs if not run["shuffled"]]
    mixes = [mix for mix in MIXES if any(run["mix"] == mix for run in runs)]
    ways = [way for way in WAYS if way != BASE and any(run["way"] == way for run in runs)]
    figure, axis = pyplot.subplots(figsize=(7.5, 0.8 + 0.65 * len(mixes)))
    for number, way in enumerate(ways):
        for row, mix in enumerate(mixes):
            found = compared([run for run in runs if run["mix"] == mix], way, BASE)
            if found is None:
                continue
            difference = found["after"]["difference"]
            low, high = found["after"]["interval"]
            place = row + 0.7 * ((number + 0.5) / len(ways) - 0.5)
            colour = f"C{number}"
            axis.plot([low, high], [place, place], color=colour, linewidth=1.6)
            axis.plot([difference], [place], "o", color=colour, markersize=4, label=way if row == 0 else None)
    axis.axvline(0.0, color="#22303c", linewidth=1, linestyle="--")
    axis.set_yticks(range(len(mixes)), [f"{mix}: {len(MIXES[mix])} tasks" for mix in mixes])
    axis.invert_yaxis()
    axis.set_xlabel(f"held-out accuracy, difference to {BASE!r}, 95 % intervals")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


RESULT_FIELDS = ("mix", "way", "seed", "generated_tokens", "before", "after", "worst_task", "worst_quarter")


def result_of(run: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run without its tables: small enough to keep beside the script."""
    result = {name: run[name] for name in RESULT_FIELDS}
    result["groups"] = sum(run["drawn"].values())
    result["informative_groups"] = sum(run["signals"].values())
    result["by_task"] = run["by_task"]
    return rounded(result)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def write_results(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """A line of JSON for each run, in a fixed order."""
    ordered = sorted(runs, key=lambda run: (list(MIXES).index(run["mix"]), list(WAYS).index(run["way"]), run["seed"]))
    lines = [json.dumps(result_of(run)) + "\n" for run in ordered]
    path.write_text("".join(lines), encoding="utf-8")


def jobs_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    fixed = {
        "warm_start": str(options.warm_start),
        "rate": options.rate,
        "target": options.target,
        "each": options.each,
        "tokens": options.tokens,
        "curve": 0,
        "options": {"task_floor": options.floor},
        "partial_credit": options.partial_credit,
    }
    jobs = [
        {**fixed, "mix": mix, "way": way, "seed": seed, "shuffled": False}
        for seed in range(1, options.seeds + 1)
        for mix in options.mixes
        for way in options.ways
    ]
    if not options.no_control:
        jobs += [
            {**fixed, "mix": options.mixes[0], "way": BASE, "seed": seed, "shuffled": True}
            for seed in range(1, options.seeds + 1)
        ]
    return jobs


def names(allowed: Sequence[str]) -> Any:
    def parse(text: str) -> list[str]:
        given = [name.strip() for name in text.split("+")]
        if unknown := [name for name in given if name not in allowed]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; expected some of {', '.join(allowed)}")
        return given

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixes", type=names(list(MIXES)), default=list(MIXES), help="joined by +")
    parser.add_argument("--ways", type=names(list(WAYS)), default=list(WAYS), help="joined by +")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"generated by each run (default: {TOKENS:,})")
    parser.add_argument("--each", type=int, default=40, help="held-out questions of each task and level")
    parser.add_argument("--target", type=float, default=0.7, help="accuracy that the curriculum aims at")
    parser.add_argument("--floor", type=float, default=FLOOR, help="(default: %(default)s)")
    parser.add_argument(
        "--partial-credit",
        choices=["exact", "native"],
        default="exact",
        help="what is paid (default: exact)",
    )
    parser.add_argument("--rate", type=float, default=RATE, help="of the trainer's Adam")
    parser.add_argument("--warm-start", type=Path, default=WARM_START, help="folder with model.safetensors")
    parser.add_argument("--no-control", action="store_true", help="leave out the runs with shuffled rewards")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--runs", type=Path, help="append the runs to this file, a line each; skip runs that it already has"
    )
    parser.add_argument("--results", type=Path, help="write the figures of each run here, a line each")
    parser.add_argument("--plot", type=Path, help="write a picture, too")
    options = parser.parse_args()
    jobs, runs = jobs_of(options), []
    if options.runs and options.runs.exists():
        runs = [json.loads(line) for line in options.runs.read_text(encoding="utf-8").splitlines()]
    done = {key_of(run) for run in runs}
    began = time.monotonic()
    with multiprocessing.Pool(options.processes) as pool:
        left = [job for job in jobs if key_of(job) not in done]
        for run in tqdm(pool.imap_unordered(learn, left), total=len(left), unit="run", disable=None, file=sys.stderr):
            runs.append(run)
            if options.runs:
                with options.runs.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(run) + "\n")
    wanted = {key_of(job) for job in jobs}
    runs = [run for run in runs if key_of(run) in wanted]
    if options.results:
        write_results(runs, options.results)
    if options.plot:
        plot(runs, options.plot)
    settings = {name: str(value) for name, value in vars(options).items() if name not in ("plot", "runs", "results")}
    print(
        json.dumps({"settings": settings, "mixes": report(runs), "seconds": round(time.monotonic() - began)}, indent=1)
    )


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    names = ("mix", "way", "seed", "shuffled", "target", "rate", "tokens", "warm_start", "options", "partial_credit")
    return tuple(json.dumps(run[name]) for name in names)


if __name__ == "__main__":
    main()
