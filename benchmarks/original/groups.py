"""The groups that both environments score: items of all tasks, with completions of many kinds.

    task, level, seed ── generation worker ──> item ── plan ──> Group: eight completions, more or fewer
                                                 └── right answer, near misses ──┘

The items come from generation workers, which have a deadline and a fixed hash seed. An item that takes too long is
replaced by the item of reasoning-gym's default config.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from reasoning_gym_environment.errors import GenerationError
from reasoning_gym_environment.tasks.catalog import Task, config_of
from reasoning_gym_environment.tasks.difficulty_ladder import Ladder
from reasoning_gym_environment.workers.generator import ProcessGenerator
from testing.reference_answers import reference_answer

GROUP_SIZE = 8
MAX_TOKEN_LENGTH = 2048
"""Both environments run with these two settings."""
PENALTY_START = 1536
"""The length penalty starts above this length, which is 75 % of MAX_TOKEN_LENGTH."""
MAX_SEED = 2**32
"""Some tasks refuse larger seeds."""
SLOW_REFERENCE_ANSWERS = ("rush_hour",)
"""The search for a right answer can take a minute."""


@dataclass(frozen=True)
class Attempt:
    """A completion, with the numbers of tokens of the prompt and of the completion."""

    kind: str
    text: str
    completion_tokens: int
    prompt_tokens: int = 20
    finish_reason: str = "stop"

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Group:
    """An item of reasoning-gym with the completions that both environments score.

    `config` and `seed` build the dataset again. `level` is None for the default config.
    """

    number: int
    plan: str
    task: str
    level: int | None
    seed: int
    config: Mapping[str, Any]
    entry: dict[str, Any]
    attempts: list[Attempt] = field(default_factory=list)


# --- texts of completions


def ordinary_texts(right: str, wrong: str) -> dict[str, str]:
    """Completions that both environments must score alike, by kind."""
    return {
        "right": f"<think>I work it out.</think>\n<answer>{right}</answer>",
        "right without thinking": f"<answer>{right}</answer>",
        "right with words around it": f"<think>First this.</think>The result: <answer>{right}</answer>. Done.",
        "right on its own line": f"<think>Hm.</think>\n<answer>\n{right}\n</answer>\n",
        "right after a closing tag only": f"I work it out.</think><answer>{right}</answer>",
        "right after upper-case thinking": f"<THINK>I work it out.</THINK><answer>{right}</answer>",
        "right after two thoughts": f"<think>One.</think> <think>Two.</think><answer>{right}</answer>",
        "right after a wrong one in the thinking": (
            f"<think>Is it <answer>{wrong}</answer>?</think><answer>{right}</answer>"
        ),
        "wrong": f"<think>I guess.</think><answer>{wrong}</answer>",
        "wrong after the right one in the thinking": (
            f"<think>Is it <answer>{right}</answer>?</think><answer>{wrong}</answer>"
        ),
        "no answer": "<think>I think about it.</think>I do not know.",
        "no tags": f"The answer is {right}.",
        "nothing": "",
        "unfinished thinking": "<think>I never get to the end of",
        "unfinished answer": f"<think>Now.</think><answer>{right}",
        "two answers": f"<answer>{right}</answer> or <answer>{wrong}</answer>",
        "two equal answers": f"<answer>{right}</answer> so <answer>{right}</answer>",
    }


def unusual_texts(right: str, wrong: str) -> dict[str, str]:
    """Completions whose extraction is a matter of definition, by kind."""
    return {
        "answer in the thinking only": f"<think>It is <answer>{right}</answer>.</think>I am done.",
        "answer in unfinished thinking": f"<think>It is <answer>{right}</answer>",
        "answer before a closing tag only": f"It is <answer>{right}</answer></think>",
        "answers around a closing tag": f"Is it <answer>{wrong}</answer>?</think><answer>{right}</answer>",
        "upper-case tags": f"<think>Hm.</think><ANSWER>{right}</ANSWER>",
        "tags of mixed case": f"<think>Hm.</think><Answer>{right}</answer>",
        "space in the tag": f"<think>Hm.</think><answer >{right}</answer>",
        "empty pair": "<think>Hm.</think><answer></answer>",
        "empty pair and an answer": f"<think>Hm.</think><answer></answer> That is, <answer>{right}</answer>",
        "closing tag twice": f"<think>Hm.</think><answer>{right}</answer></answer>",
        "mention of the tag before": f"<think>Hm.</think>I put it into <answer> tags: <answer>{right}</answer>",
        "second answer never closed": f"<think>Hm.</think><answer>{right}</answer> and <answer>{wrong}",
        "mention of thinking after": f"<think>Hm.</think><answer>{right}</answer> I used the <think> tag.",
        "mention of the closing tag after": f"<think>Hm.</think><answer>{right}</answer> I closed </think> above.",
        "thinking after": f"<think>Hm.</think><answer>{right}</answer><think>Is it right? Yes.</think>",
        "nested thinking": f"<think>One <think>two</think> three</think><answer>{right}</answer>",
    }


def near_misses(right: str, other: str) -> dict[str, str]:
    """Answers that verifiers may pay in full, in part or not at all, by kind."""
    middle = max(1, len(right) // 2)
    return {
        "the answer of another item": other,
        "in bold": f"**{right}**",
        "boxed": f"\\boxed{{{right}}}",
        "in dollars": f"${right}$",
        "in quotes": f'"{right}"',
        "in a code block": f"```\n{right}\n```",
        "with words": f"The answer is {right}",
        "with a full stop": f"{right}.",
        "its first half": right[:middle],
        "without its last character": right[:-1],
        "with a character more": f"{right}1",
        "twice": f"{right} {right}",
        "in upper case": right.upper(),
        "in lower case": right.lower(),
        "without spaces": right.replace(" ", ""),
        "backwards": right[::-1],
        "with a digit changed": right.translate(str.maketrans("0123456789", "1234567890")),
        "zero": "0",
        "a letter": "A",
        "yes": "Yes",
        "a list": "[1, 2, 3]",
    }


# --- plans: which completions a group has


@dataclass(frozen=True)
class Answers:
    """The answers in the completions of an item."""

    right: str
    wrong: str
    other: str


Plan = Callable[[Answers, random.Random], list[Attempt]]


def _short(rng: random.Random) -> int:
    return rng.randint(10, 200)


def _attempts(texts: Mapping[str, str], kinds: list[str], rng: random.Random) -> list[Attempt]:
    return [Attempt(kind, texts[kind], _short(rng)) for kind in kinds]


def _mixed(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    return _attempts(texts, rng.sample(sorted(texts), GROUP_SIZE), rng)


def _right_kinds(texts: Mapping[str, str]) -> list[str]:
    return [kind for kind in sorted(texts) if kind.startswith("right")]


def _all_right(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    return _attempts(texts, _right_kinds(texts)[:GROUP_SIZE], rng)


def _all_wrong(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = [kind for kind in sorted(texts) if not kind.startswith("right")]
    return _attempts(texts, rng.sample(kinds, GROUP_SIZE), rng)


def _nothing_said(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["no answer", "no tags", "nothing", "unfinished thinking", "unfinished answer", "two answers"]
    return _attempts(texts, [*kinds, "no answer", "two equal answers"], rng)


def _all_right_long(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    lengths = [500, PENALTY_START, PENALTY_START + 1, 1700, 1900, 2047, MAX_TOKEN_LENGTH, 2100]
    kinds = _right_kinds(texts)[:GROUP_SIZE]
    return [Attempt(kind, texts[kind], length - 20) for kind, length in zip(kinds, lengths, strict=True)]


def _all_right_at_the_limit(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = _right_kinds(texts)[:GROUP_SIZE]
    return [Attempt(kind, texts[kind], MAX_TOKEN_LENGTH + number) for number, kind in enumerate(kinds)]


def _mixed_long(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["right", "right without thinking", "right with words around it", "wrong", "no answer", "two answers"]
    lengths = [PENALTY_START, 1700, 2028, 1800, 500, 2000]
    return [Attempt(kind, texts[kind], length) for kind, length in zip(kinds, lengths, strict=True)]


def _near(answers: Answers, rng: random.Random) -> list[Attempt]:
    found = near_misses(answers.right, answers.other)
    kinds = rng.sample(sorted(found), GROUP_SIZE)
    return [Attempt(kind, f"<think>Hm.</think><answer>{found[kind]}</answer>", _short(rng)) for kind in kinds]


def _unusual(first: int) -> Plan:
    def plan(answers: Answers, rng: random.Random) -> list[Attempt]:
        texts = unusual_texts(answers.right, answers.wrong)
        return _attempts(texts, list(texts)[first : first + GROUP_SIZE], rng)

    return plan


def _truncated(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["right", "right without thinking", "wrong", "unfinished thinking", "unfinished answer", "no answer"]
    return [
        Attempt(kind, texts[kind], 300 + number, finish_reason="length" if number % 2 else "stop")
        for number, kind in enumerate([*kinds, *kinds[:2]])
    ]


def _all_truncated(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["right", "right without thinking", "wrong", "unfinished thinking", "unfinished answer", "no answer"]
    return [Attempt(kind, texts[kind], 300, finish_reason="length") for kind in [*kinds, *kinds[:2]]]


def _some_short(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["right", "right without thinking", "wrong", "no answer", "right", "wrong", "nothing", "two answers"]
    lengths = [9, 30, 1, 40, 10, 11, 0, 50]
    return [Attempt(kind, texts[kind], length) for kind, length in zip(kinds, lengths, strict=True)]


def _all_short(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    kinds = ["right", "wrong", "no answer", "nothing"]
    return [Attempt(kind, texts[kind], number) for number, kind in enumerate([*kinds, *kinds])]


def _more_than_the_group_size(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    return _attempts(texts, rng.sample(sorted(texts), GROUP_SIZE + 3), rng)


def _fewer_than_the_group_size(answers: Answers, rng: random.Random) -> list[Attempt]:
    texts = ordinary_texts(answers.right, answers.wrong)
    return _attempts(texts, ["right", "wrong", "no answer"], rng)


PLANS: dict[str, Plan] = {
    "mixed": _mixed,
    "near misses": _near,
    "all right": _all_right,
    "all right and long": _all_right_long,
    "all wrong": _all_wrong,
    "unusual tags, first half": _unusual(0),
    "near misses again": _near,
    "unusual tags, second half": _unusual(GROUP_SIZE),
    "no usable answer": _nothing_said,
    "mixed and long": _mixed_long,
    "some truncated": _truncated,
    "some short": _some_short,
    "all right, at the limit": _all_right_at_the_limit,
    "more than the group size": _more_than_the_group_size,
    "near misses once more": _near,
    "all truncated": _all_truncated,
    "fewer than the group size": _fewer_than_the_group_size,
    "all short": _all_short,
}
"""By name. The groups take these plans by turns."""


# --- items


async def make_groups(count: int, seed: int, tasks: list[Task], ladders: Mapping[str, Ladder]) -> list[Group]:
    """`count` groups of items of all tasks by turns: first of the default config, then of a random level, and so on."""
    generator = ProcessGenerator(num_workers=1, timeout_s=5.0)
    await generator.start()
    try:
        plans = _plans_by_turns(seed)
        return [await _make_group(number, next(plans), seed, tasks, ladders, generator) for number in range(count)]
    finally:
        await generator.close()


def _plans_by_turns(seed: int) -> Iterator[str]:
    """Each plan once in each round, in a random order, so that each task meets different plans."""
    rng = random.Random(f"plans {seed}")
    while True:
        yield from rng.sample(list(PLANS), len(PLANS))


async def _make_group(
    number: int,
    plan: str,
    seed: int,
    tasks: list[Task],
    ladders: Mapping[str, Ladder],
    generator: ProcessGenerator,
) -> Group:
    task = tasks[number % len(tasks)].name
    rng = random.Random(f"{seed} {number}")
    item_seed = rng.randrange(MAX_SEED)
    turn = number // len(tasks)
    level = rng.randrange(len(ladders[task])) if turn % 2 else None
    try:
        config, entry, other = await _make_item(task, level, item_seed, ladders, generator)
    except GenerationError:
        level = None
        config, entry, other = await _make_item(task, level, item_seed, ladders, generator)
    right = None if task in SLOW_REFERENCE_ANSWERS else reference_answer(task, entry)
    if right is None:
        right = str(entry["answer"])
    answers = Answers(right, wrong="no idea", other=str(other["answer"]))
    return Group(number, plan, task, level, item_seed, config, entry, PLANS[plan](answers, rng))


async def _make_item(
    task: str, level: int | None, seed: int, ladders: Mapping[str, Ladder], generator: ProcessGenerator
) -> tuple[Mapping[str, Any], dict[str, Any], dict[str, Any]]:
    """The config, its item of this seed, and the item of the next seed."""
    config = config_of(task) if level is None else ladders[task].levels[level].config
    entry = await generator.generate(task, seed, config)
    other = await generator.generate(task, (seed + 1) % MAX_SEED, config)
    return config, entry, other
