"""What the tests of reports share: a page taken apart, and results and dumps as the commands write them, by simulated
models, some of whose completions attack the reader.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

from reasoning_gym_environment.html_report.load import Evaluation, load
from reasoning_gym_environment.html_report.samples import CHUNK
from reasoning_gym_environment.tasks.measured_data import packaged

MARK = "OWNED"
"""The text that an attack writes if it succeeds."""

ATTACKS = [
    f"<script>document.title='{MARK}'</script>",
    f"</script><script>document.title='{MARK}'</script>",
    f"<img src=x onerror=\"document.title='{MARK}'\">",
    f"<svg onload=\"document.title='{MARK}'\"></svg>",
    f"<a href=\"javascript:document.title='{MARK}'\">here</a>",
    f"<style>body{{display:none}}</style><iframe srcdoc=\"<script>parent.document.title='{MARK}'</script>\">",
    "<!--<script>", "]]><script>", "$\\frac{1}{", "\u2028 \x00 \ud800 {{ 7*7 }} {% raw %}",
]  # fmt: skip
MODEL = "qwen_qwq-32b"
ATTEMPTS = 3
OUTCOMES = ("correct", "wrong", "format_failure")
TASKS = sorted(packaged("levels.json")["tasks"])[::2]
"""The simulated models answer the questions of the first of these tasks."""


def write_results(
    folder: Path,
    *,
    tasks: int = 40,
    per_task: int = 5,
    seed: int = 1,
    gain: float = 0.0,
    complexity: str = "default",
    manifest: str = "0123456789abcdef",
    attacks: bool = True,
) -> Path:
    """A folder of `evaluate`, of a model with a different accuracy in each task. `gain` adds to all of them."""
    random = Random(seed)
    samples = []
    for task in TASKS[:tasks]:
        rate = min(0.98, max(0.0, Random(task).uniform(0.1, 0.9) + gain))
        for index in range(per_task):
            chance = Random(f"{task} {index}").betavariate(0.2 + 2 * rate, 0.2 + 2 * (1 - rate))
            for attempt in range(ATTEMPTS):
                outcome = "correct" if random.random() < chance else random.choice(("wrong", "wrong", "format_failure"))
                samples.append(sample(task, task[0], index, attempt, outcome, manifest, random))
    if attacks:
        for place, attack in enumerate(ATTACKS):
            chosen = 7 * place % len(samples)
            samples[chosen] = attacked(samples[chosen], attack)
        samples[5] = {**samples[5], "score": None, "outcome": "unscored", "unscored_reason": "timeout"}
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "samples.jsonl", samples)
    parameters = {"eval_complexity": complexity, "eval_seed": 123, "temperature": 0.6, "n": ATTEMPTS}
    parameters.update({"manifest": manifest, "reasoning_gym_version": "0.1.25", "left_out": {}})
    parameters.update({"verification": "strict"})
    general = {"model_name": MODEL, "generation_parameters": parameters}
    (folder / "metrics.json").write_text(json.dumps({"config_general": general}), encoding="utf-8")
    return folder


def sample(
    task: str, category: str, index: int, attempt: int, outcome: str, manifest: str, random: Random
) -> dict[str, Any]:
    """One line of samples.jsonl."""
    answer = str(37 * index)
    thinking = "<think>" + "Let me work it out step by step. " * random.randint(3, 40) + "</think>\n"
    reply = {"correct": f"<answer>{answer}</answer>", "wrong": "<answer>no idea</answer>"}.get(outcome, "It is 12.")
    score = float(outcome == "correct")
    length = int(random.lognormvariate(6.5 if score else 7.0, 0.5))
    is_cut_off = outcome == "format_failure" and random.random() < 0.4
    question = f"Question {index} of {task}?"
    known = {"task": task, "category": category, "seed": index, "index": index, "attempt": attempt, "level": None}
    known |= {
        "question": question,
        "question_digest": f"{task}/{index}",
        "expected_answer": answer,
        "manifest": manifest,
    }
    known |= {"messages": [{"role": "system", "content": "Think."}, *talk(question, thinking + reply)]}
    known |= {"model_parsed": {"correct": answer, "wrong": "no idea"}.get(outcome), "num_completion_tokens": length}
    known |= {"score": score, "native_score": score, "finish_reason": "length" if is_cut_off else "stop"}
    known |= {"format_failure": "no_answer" if outcome == "format_failure" else None}
    return {**known, "outcome": outcome, "unscored_reason": None}


def talk(question: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


def attacked(line: dict[str, Any], attack: str) -> dict[str, Any]:
    """The line with the attack in every text that a model or a file could have brought."""
    messages = [*line["messages"][:2], {"role": "assistant", "content": f"<think>{attack}</think>{attack}"}]
    texts = {"question": attack, "question_digest": attack, "expected_answer": attack, "model_parsed": attack}
    return {**line, "messages": messages, **texts}


def write_dump(folder: Path, *, groups: int = 400, seed: int = 2, attack: str = "") -> Path:
    """A dump of a run whose levels rise; one group's names are `attack`."""
    random = Random(seed)
    names = ["chain_sum", "gcd", "maze", "sudoku", "knights_knaves", "word_ladder"]
    lines = []
    for index in range(groups):
        task = names[index % len(names)]
        level = min(6, int(8 * index / groups * random.random() + 1.5 * index / groups))
        chance = 1 / (1 + 2.718 ** (0.7 * level - 1.2 - index / groups))
        scores = [float(random.random() < chance) for _ in range(8)]
        lines.append(group_line(task if not (attack and index == 3) else attack, index, level, scores, random))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reasoning_gym_environment_rollouts_run_0000.jsonl"
    write_lines(path, lines)
    return path


def write_run(folder: Path, *, groups: int = 600, tasks: int = 12, evaluations: int = 5, seed: int = 3) -> Path:
    """The folder of a run that learns: its dumps, and an evaluation every few steps in `evals/step-N`."""
    random = Random(seed)
    names = TASKS[:tasks]
    steps = groups // 4
    lines = []
    for index in range(groups):
        place = index % len(names)
        # One task is stuck, one is solved and one falls. The remaining tasks rise, each at a different pace.
        pace = (0.0, 0.0, -0.2, *[0.1 + 0.7 * number / len(names) for number in range(len(names))])[place]
        chance = min(1.0, max(0.0, (0.0, 1.0, 0.6, *[0.2] * len(names))[place] + pace * index / groups))
        scores = [float(random.random() < chance) for _ in range(8)]
        line = group_line(
            names[place], index, min(4, int(5 * pace * index / groups)) if pace > 0 else 0, scores, random
        )
        times = {"sampled_at_step": index // 4, "scored_at_step": index // 4 + 1}
        lines.append({**line, **times})
    write_lines(folder / "reasoning_gym_environment_rollouts_run_0000.jsonl", lines)
    for number in range(evaluations):
        step = number * steps // (evaluations - 1)
        gain = 0.3 * number / (evaluations - 1) - 0.25
        results = write_results(
            folder / f"evals/step-{step}", tasks=tasks, per_task=8, seed=number, gain=gain, attacks=False
        )
        moment = 1.79e9 + 36.0 * step
        os.utime(results / "samples.jsonl", (moment, moment))
    return folder


def group_line(task: str, index: int, level: int, scores: list[float], random: Random) -> dict[str, Any]:
    """One line of a dump."""
    rollouts = []
    names = ("outcome", "format_failure", "finish_reason", "num_completion_tokens")
    for score in scores:
        line = sample(task, "mixed", index, 0, "correct" if score else random.choice(OUTCOMES[1:]), "", random)
        known = {
            "conversation": line["messages"],
            "score": score,
            "verifier_score": score,
            "answer": line["model_parsed"],
        }
        rollouts.append({**known, **{name: line[name] for name in names}})
    shared = {"item_id": task, "category": "mixed", "index": index, "level": level, "complexity": level / 6}
    return {**shared, "rollouts": rollouts, "expected_answer": str(37 * index)}


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


class Page(HTMLParser):
    """Elements with their attributes, scripts, text outside of scripts and styles, and the text of each id or tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.texts: defaultdict[str, str] = defaultdict(str)
        self._open: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = (tag, dict(attrs))
        self.elements.append(self._open)

    def handle_endtag(self, tag: str) -> None:
        self._open = ("", {})

    def handle_data(self, data: str) -> None:
        if self._open[0] == "script":
            self.scripts.append((self._open[1], data))
        elif self._open[0] != "style":
            self.text += f"{data}\n"
            self.texts[self._open[1].get("id") or self._open[0]] += data

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())

    @property
    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.elements}

    def block(self, name: str) -> Any:
        """The content of the compressed block with this id."""
        [data] = [text for attributes, text in self.scripts if attributes.get("id") == name]
        return json.loads(zlib.decompress(base64.b64decode(data)))

    @property
    def curves(self) -> dict[str, Any]:
        [data] = [text for attributes, text in self.scripts if attributes.get("id") == "curve-data"]
        return dict(json.loads(data))

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """The samples of the page, each with the properties and texts of its question."""
        questions = self.block("index")
        texts = []
        for chunk in range(-(-len(questions) // CHUNK)):
            texts += self.block(f"chunk-{chunk}")
        found = []
        for question, texts_of_question in zip(questions, texts, strict=True):
            for sample, own in zip(question["samples"], texts_of_question["samples"], strict=True):
                found.append({**question, **texts_of_question, **sample, **own})
        return found


def evaluation(folder: Path, **fields: Any) -> Evaluation:
    [found] = load([write_results(folder, tasks=4, **fields)]).evaluations
    return found


def write_everything(folder: Path) -> Path:
    """Two evaluations of the same questions, and a dump, all with attacks in them."""
    write_results(folder / "before", tasks=8)
    write_results(folder / "after", tasks=8, gain=0.3, seed=9)
    write_dump(folder / "dumps", groups=60, attack=ATTACKS[0])
    return folder
