"""Make the tiny model that the demo starts from: tokenizer and weights.

    questions of TASKS ──> phrases that many questions contain ──> tokenizer: bytes, tags, phrases
    questions, answers (most of them wrong) ──> supervised training ──> weights

    python -m examples.demo.warm_start            # levels 0 to 2, into examples/demo: a quarter of an hour
    python -m examples.demo.warm_start --levels default --out somewhere

A phrase that every question of a task contains is a single token, so a prompt is hardly longer than its varying part.
Each letter and digit is a token too, so that the model can spell words. Half of the training answers are wrong, and in
a second stage four of five, most of them by a digit or a letter. So the model learns the form of answers completely,
but the tasks only partly, and reinforcement learning can improve it. Two runs give slightly different models, because
items of isomorphic_strings depend on Python's hash seed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import re
import string
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from examples.demo.model import (
    BASE,
    EMBEDDING,
    EPS,
    SIZES,
    Adam,
    Shape,
    Transformer,
    stored_views,
    views,
)
from reasoning_gym_environment.inference.chat_tokenizer import ChatTokenizer
from reasoning_gym_environment.inference.prompts import as_dicts, build_messages, system_prompt
from reasoning_gym_environment.tasks import reasoning_gym_source as library
from reasoning_gym_environment.tasks.catalog import config_of
from reasoning_gym_environment.tasks.difficulty_ladder import build_ladder

OUT = Path(__file__).resolve().parent / "tiny_model"

TASKS = {
    "base_conversion": 100, "basic_arithmetic": 300, "chain_sum": 400, "coin_flip": 100, "count_bits": 100,
    "count_primes": 100, "family_relationships": 400, "fraction_simplification": 100, "gcd": 400,
    "isomorphic_strings": 100, "leg_counting": 500, "letter_counting": 400, "products": 400, "simple_equations": 300,
    "spell_backward": 700, "syllogism": 100,
}  # fmt: skip
"""Questions of each level in an epoch: few where the model is to learn the form of the answer and no more."""

LEVELS = (0, 1, 2)
STAGES = ((1.0, 2e-3, 0.5), (0.25, 7e-4, 0.8))
"""Share of the epochs, highest rate, share of wrong answers: first learn how, then seldom say so."""

CLOSED = (("Yes", "No"), ("True", "False"))
MAX_SEQUENCE = 160
THOUGHT = "Let me work it out."
EXTRA_PHRASES = (system_prompt, THOUGHT, "<think>", "</think>", "<answer>", "</answer>")
SPECIAL = ("<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPELLED = frozenset({"spell_backward", "letter_counting"})
"""Tasks in which single words vary. Only text that nearly every question contains becomes a phrase."""


# --- questions


def items(task: str, level: int | None, seed: int, count: int) -> list[dict[str, Any]]:
    """`count` items; level None are the defaults."""
    config = config_of(task) if level is None else dict(build_ladder(task).levels[level].config)
    config = {name: value for name, value in config.items() if name not in ("seed", "size")}
    dataset = library.create_dataset(task, seed=seed, size=count, **config)
    return [dataset[index] for index in range(count)]


def levels_of(task: str, levels: Sequence[int] | None) -> list[int | None]:
    return [None] if levels is None else [level for level in levels if level < len(build_ladder(task))]


# --- tokenizer


def phrases(texts: Sequence[str], share: float, shortest: int = 3) -> set[str]:
    """The longest runs of words and signs that at least this share of the texts contains."""
    found: set[str] = set()
    needed = max(2, round(share * len(texts)))
    for text in texts[:60]:
        parts = re.findall(r"[A-Za-z]+|\d|\s+|[^A-Za-z\d\s]", text)
        start = 0
        while start < len(parts):
            stop = start
            while stop < len(parts) and not parts[stop].isdigit():
                if sum("".join(parts[start : stop + 1]) in other for other in texts) < needed:
                    break
                stop += 1
            run = "".join(parts[start:stop])
            if len(run) >= shortest and re.search("[A-Za-z]{2}", run):
                found.add(run)
            start = max(stop, start + 1)
    return found


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, the tags, and the phrases of all tasks."""
    counted: Counter[str] = Counter()
    for task in TASKS:
        texts = [
            entry["question"] for level in (None, *levels_of(task, (0, 1, 2, 3))) for entry in items(task, level, 7, 60)
        ]
        counted.update(phrases(texts, 0.15 if task in SPELLED else 0.04))
    ordered = sorted(counted, key=lambda phrase: (-len(phrase), phrase))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    core.add_tokens([AddedToken(text, normalized=False) for text in (*EXTRA_PHRASES, *ordered)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=SPECIAL[0],
        pad_token=SPECIAL[1],
        model_max_length=1 << 30,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


# --- supervised training


def near_miss(answer: str, others: Sequence[str], rng: random.Random) -> str:
    """A wrong answer that looks like `answer`, or one of `others`, for example if `answer` is hard to change."""
    places = [at for at, sign in enumerate(answer) if sign.isalnum()]
    if rng.random() < 0.3 or not places or answer.istitle() or any(answer in known for known in CLOSED):
        return rng.choice(others)
    at = rng.choice(places)
    kind = string.digits if answer[at].isdigit() else string.ascii_lowercase
    if not answer[at].isdigit() and at + 1 < len(answer) and rng.random() < 0.5:
        return answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
    return answer[:at] + rng.choice(kind) + answer[at + 1 :]


def examples(tokenizer: Any, levels: Sequence[int] | None, seed: int, wrong: float) -> list[tuple[list[int], int]]:
    """(tokens of prompt and completion, where the completion begins), shuffled."""
    rng, made = random.Random(seed), []
    chat = ChatTokenizer(tokenizer, "of the tiny model")
    for task, each in TASKS.items():
        for level in levels_of(task, levels):
            entries = items(task, level, seed, each)
            known = [str(entry["answer"]) for entry in entries]
            for entry in entries:
                told = str(entry["answer"])
                if rng.random() < wrong:
                    told = near_miss(told, known, rng)
                prompt = chat.render(as_dicts(build_messages(entry["question"]))).tokens
                reply = f"<think>{THOUGHT}</think><answer>{told}</answer>{tokenizer.eos_token}"
                tokens = prompt + tokenizer.encode(reply, add_special_tokens=False)
                if len(tokens) <= MAX_SEQUENCE:
                    made.append((tokens, len(prompt)))
    rng.shuffle(made)
    return made


def batches(made: list[tuple[list[int], int]], size: int, rng: random.Random) -> Iterator[list[tuple[list[int], int]]]:
    """Batches of sequences of like length, in random order."""
    ordered = sorted(made, key=lambda example: len(example[0]) + rng.random() * 4)
    cut = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    rng.shuffle(cut)
    yield from cut


def train(
    model: Transformer, tokenizer: Any, levels: Sequence[int] | None, *, epochs: int, rate: float, wrong: float
) -> None:
    """Cross entropy on the completions; each epoch has new questions; the rate falls to a tenth."""
    adam, rng, began = Adam(model.shape.size, rate=0.0, betas=(0.9, 0.98)), random.Random(1), time.monotonic()
    with multiprocessing.Pool(1) as pool:

        def prepare(epoch: int) -> Any:
            return pool.apply_async(examples, (tokenizer, levels, 1000 + epoch, wrong))

        following = prepare(0)
        for epoch in range(epochs):
            made = following.get()
            if epoch + 1 < epochs:
                following = prepare(epoch + 1)
            losses: list[float] = []
            for number, batch in enumerate(batches(made, 64, rng)):
                done = (epoch + number * 64 / len(made)) / epochs
                adam.rate = rate * min(1.0, done * 50 + 0.02) * (1.0 - 0.9 * done)
                sequences = [sequence for sequence, _ in batch]
                starts = [start for _, start in batch]
                count = sum(len(q) - s for q, s in batch)

                def slopes(logprobs: list[Any], count: int = count, losses: list[float] = losses) -> list[Any]:
                    losses.append(-float(np.concatenate(logprobs).mean()))
                    return [np.full_like(values, -1.0 / count) for values in logprobs]

                adam.step(model.flat, model.gradient(sequences, starts, slopes))
            print(
                f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.3f}, {time.monotonic() - began:.0f} s", flush=True
            )


def new_model(shape: Shape, seed: int) -> Transformer:
    """A model with random weights."""
    rng = np.random.default_rng(seed)
    flat = np.empty(shape.size, np.float32)
    for name, view in views(shape, flat).items():
        # What a block adds to its input starts small, so that depth does not change the scale.
        block = math.sqrt(2 * shape.layers) if name.endswith(("out", "down")) else 1
        scale = 0.05 if name == "embedding" else view.shape[0] ** -0.5 / block
        view[...] = rng.normal(0.0, scale, view.shape)
    return Transformer(shape, flat)


def save_model(model: Transformer, folder: Path, *, end: int, pad: int) -> None:
    """Write a checkpoint of Hugging Face's Arcee architecture, which is this model's: trainers and servers load it too.

    `end` and `pad` are the ids of the tokenizer's tokens of these names.
    """
    shape = model.shape
    tokens = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": pad}
    config = {
        "architectures": ["ArceeForCausalLM"],
        "model_type": "arcee",
        **{name: getattr(shape, field) for field, name in SIZES.items()},
        "intermediate_size": 4 * shape.width,
        "num_key_value_heads": shape.heads,
        "hidden_act": "relu2",
        "rms_norm_eps": EPS,
        "rope_theta": BASE,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        **tokens,
    }
    for name, values in (("config.json", config), ("generation_config.json", tokens)):
        Path(folder, name).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    stored = stored_views(model.weights, shape)
    arrays = {name: np.ascontiguousarray(matrix if name == EMBEDDING else matrix.T) for name, matrix in stored.items()}
    layers = [f"model.layers.{n}.{at}" for n in range(shape.layers) for at in ("input", "post_attention")]
    norms = [*(f"{layer}_layernorm.weight" for layer in layers), "model.norm.weight"]
    gains = {name: np.ones(shape.width, np.float32) for name in norms}
    file = Path(folder, "model.safetensors")
    save_file({**arrays, **gains}, file, metadata={"format": "pt"})
    # safetensors makes files that only their owner can read.
    file.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write (default: the demo's)")
    parser.add_argument(
        "--levels", choices=["0-2", "default"], default="0-2", help="what the training questions are of"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--tokenizer", type=Path, help="use this tokenizer, instead of making one")
    options = parser.parse_args()
    library.load()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = (
        PreTrainedTokenizerFast.from_pretrained(options.tokenizer) if options.tokenizer else build_tokenizer()
    )
    if not options.tokenizer:
        tokenizer.save_pretrained(options.out)
    levels = LEVELS if options.levels == "0-2" else None
    model = new_model(Shape(vocabulary=len(tokenizer)), seed=0)
    print(json.dumps({"vocabulary": len(tokenizer), "weights": model.shape.size}), flush=True)
    for share, rate, wrong in STAGES:
        train(model, tokenizer, levels, epochs=max(1, round(share * options.epochs)), rate=rate, wrong=wrong)
        save_model(model, options.out, end=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)


if __name__ == "__main__":
    main()
