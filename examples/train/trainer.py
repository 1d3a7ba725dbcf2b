"""The trainer: it takes batches from run-api, makes one GRPO step with each, and gives vLLM the new weights.

    run-api /batch ──> checked groups ──> advantages ──> clipped policy gradient ──> weights on disk ──> vLLM

The loss is the clipped surrogate of PPO (Schulman et al. 2017, eq. 7) with the group-relative advantages of GRPO (Shao
et al. 2024). As in DAPO (Yu et al. 2025), the upper limit of the ratio is higher than the lower one, and the loss is
averaged over all tokens of a batch.

The trainer runs on a GPU if torch sees one, and on the processor otherwise. `steps.jsonl` gets one line for each step.
The same command resumes at the last saved step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MASKED = -100
"""The mask of prompt tokens in a group of Atropos."""

SAVE_EVERY = 10
"""Steps between two saved states of the trainer."""

CLIP_BELOW = 0.2
CLIP_ABOVE = 0.28

LARGEST_MEAN_GAP = 0.2
"""Mean distance between the server's log probabilities and ours. A larger one means that other weights sampled."""

MOST_TOKENS = 4096
"""Tokens of one forward pass. More need more memory: each token has one logit for each entry of the vocabulary."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
"""Most processors have no instructions for bfloat16: there, a step in bfloat16 takes ten times as long."""


# --- a group of run-api


@dataclass
class Group:
    """One prompt with its completions, as token ids."""

    prompt: list[int]
    completions: list[list[int]]
    sampled: list[list[float]]
    """The server's log probability of each token of each completion."""

    rewards: list[float]
    has_advantage: list[bool]
    """False for a completion that the environment masked, such as one that was cut off."""

    @property
    def num_tokens(self) -> int:
        return sum(len(completion) for completion in self.completions)

    def advantages(self, shuffle: random.Random | None) -> list[float]:
        """One advantage for each completion. `shuffle` permutes the rewards, so that nothing can be learned."""
        rewards = list(self.rewards)
        if shuffle is not None:
            shuffle.shuffle(rewards)
        values = torch.tensor(rewards)
        normalised = (values - values.mean()) / (values.std() + 1e-4)
        return [value if counts else 0.0 for value, counts in zip(normalised.tolist(), self.has_advantage, strict=True)]


def checked_group(sent: dict[str, Any], vocabulary: int) -> Group:
    """A group as run-api sends it. Raises ValueError with the reason if a trainer cannot use the group."""
    size = len(sent["tokens"])
    lists = [sent["masks"], sent["scores"], sent["inference_logprobs"]]
    if any(len(values or []) != size for values in lists):
        raise ValueError("its lists have different lengths")
    start = next(position for position, mask in enumerate(sent["masks"][0]) if mask != MASKED)
    prompt = sent["tokens"][0][:start]
    completions = []
    sampled = []
    for tokens, masks, logprobs in zip(sent["tokens"], sent["masks"], sent["inference_logprobs"], strict=True):
        if tokens[:start] != prompt:
            raise ValueError("its completions have different prompts")
        if masks != [MASKED] * start + tokens[start:]:
            raise ValueError("a mask does not mark exactly the completion")
        if len(logprobs) != len(tokens) or not all(math.isfinite(logprob) for logprob in logprobs):
            raise ValueError("a log probability is missing or not finite")
        if not all(0 <= token < vocabulary for token in tokens):
            raise ValueError("a token id is not in the vocabulary")
        completions.append(tokens[start:])
        sampled.append(logprobs[start:])
    overrides = sent.get("overrides") or [None] * size
    has_advantage = [not (override or {}).get("set_advantage_to_zero") for override in overrides]
    return Group(prompt, completions, sampled, [float(score) for score in sent["scores"]], has_advantage)


# --- the model


def load(folder: str | Path) -> tuple[Any, Any]:
    """The model in DTYPE, on DEVICE, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE).to(DEVICE)
    if DEVICE == "cuda":
        model.gradient_checkpointing_enable()
        model.train()
    return model, AutoTokenizer.from_pretrained(folder)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the weights and the tokenizer to a folder that vLLM can read."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def group_logprobs(model: Any, prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log probabilities of all tokens of all completions, in order: shape (sum of the completions' lengths,).

    The group is computed as one sequence, `prompt | completion 1 | completion 2 | ...`, in which each completion sees
    the prompt and itself, at the positions that it would have alone. So the prompt is computed once.
    """
    ids = list(prompt)
    positions = list(range(len(prompt)))
    owners = [0] * len(prompt)
    predicting = []
    for number, completion in enumerate(completions, start=1):
        # The token before each token predicts it: for the first token of a completion, the last one of the prompt.
        predicting.append(len(prompt) - 1)
        predicting.extend(range(len(ids), len(ids) + len(completion) - 1))
        ids.extend(completion)
        positions.extend(range(len(prompt), len(prompt) + len(completion)))
        owners.extend([number] * len(completion))
    owner = torch.tensor(owners, device=DEVICE)
    visible = ((owner[:, None] == owner[None, :]) | (owner[None, :] == 0)).tril()
    mask = torch.zeros(visible.shape, dtype=model.dtype, device=DEVICE)
    mask.masked_fill_(~visible, torch.finfo(model.dtype).min)
    output = model(
        input_ids=torch.tensor([ids], device=DEVICE),
        position_ids=torch.tensor([positions], device=DEVICE),
        attention_mask=mask[None, None],
        logits_to_keep=torch.tensor(predicting, device=DEVICE),
        use_cache=False,
    )
    targets = torch.tensor([token for completion in completions for token in completion], device=DEVICE)
    return torch.log_softmax(output.logits[0].float(), -1).gather(-1, targets[:, None])[:, 0]


class Optimizer:
    """AdamW on float32 copies of the weights, because bfloat16 would round most small steps away."""

    def __init__(self, model: Any, rate: float) -> None:
        self._weights = list(model.parameters())
        self._copies = [weight.detach().float().clone().requires_grad_() for weight in self._weights]
        self.adam = torch.optim.AdamW(self._copies, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, max_norm: float = 1.0) -> float:
        """One step along the gradients that were summed up since the last. Returns their norm before it is clipped."""
        for copy, weight in zip(self._copies, self._weights, strict=True):
            copy.grad = weight.grad.float()
            weight.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(self._copies, max_norm))
        self.adam.step()
        self._write_back()
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"copies": [copy.detach() for copy in self._copies], "adam": self.adam.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for copy, saved in zip(self._copies, state["copies"], strict=True):
            copy.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self._write_back()

    @torch.no_grad()
    def _write_back(self) -> None:
        for copy, weight in zip(self._copies, self._weights, strict=True):
            weight.copy_(copy)
            copy.grad = None


# --- one step


def passes(group: Group) -> Iterator[list[int]]:
    """The numbers of the completions that are computed together, so that a pass has at most MOST_TOKENS tokens."""
    together: list[int] = []
    length = len(group.prompt)
    for number, completion in enumerate(group.completions):
        if together and length + len(completion) > MOST_TOKENS:
            yield together
            together = []
            length = len(group.prompt)
        together.append(number)
        length += len(completion)
    yield together


def learn(model: Any, groups: Sequence[Group], shuffle: random.Random | None) -> dict[str, float]:
    """Sum up the gradients of a batch.

    Returns the mean distance to the server's log probabilities (`gap`), the mean ratio of the probabilities, the share
    of tokens that was clipped, and the number of tokens.
    """
    total = sum(group.num_tokens for group in groups)
    gap = 0.0
    ratios = 0.0
    clipped = 0.0
    for group in groups:
        advantages = group.advantages(shuffle)
        for numbers in passes(group):
            completions = [group.completions[number] for number in numbers]
            logprobs = group_logprobs(model, group.prompt, completions)
            sampled = torch.tensor([value for number in numbers for value in group.sampled[number]], device=DEVICE)
            lengths = torch.tensor([len(completion) for completion in completions], device=DEVICE)
            values = torch.tensor([advantages[number] for number in numbers], device=DEVICE)
            advantage = values.repeat_interleave(lengths)
            ratio = (logprobs - sampled).exp()
            limited = ratio.clamp(1 - CLIP_BELOW, 1 + CLIP_ABOVE)
            objective = torch.minimum(ratio * advantage, limited * advantage).sum() / total
            (-objective).backward()
            gap += (logprobs - sampled).abs().sum().item()
            ratios += ratio.sum().item()
            is_above = (ratio > 1 + CLIP_ABOVE) & (advantage > 0)
            is_below = (ratio < 1 - CLIP_BELOW) & (advantage < 0)
            clipped += (is_above | is_below).sum().item()
    return {"gap": gap / total, "ratio": ratios / total, "clipped": clipped / total, "tokens": total}


# --- run-api and vLLM


def call(url: str, body: Any = None) -> Any:
    """The JSON that a server answers; `body` makes the call a POST. Raises urllib.error.URLError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        text = response.read()
    return json.loads(text) if text else None


def next_batch(api: str) -> list[dict[str, Any]]:
    """Wait for the next batch of run-api, which has the number of sequences that the trainer registered."""
    while True:
        batch = call(f"{api}/batch")["batch"]
        if batch is not None:
            return list(batch)
        time.sleep(0.2)


def give_to_server(server: str, folder: Path) -> None:
    """Let vLLM load the weights in `folder`. Unfinished completions continue with the new weights."""
    reload_weights = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
    call(f"{server}/pause?mode=keep", {})
    try:
        call(f"{server}/collective_rpc", reload_weights)
        call(f"{server}/reset_prefix_cache", {})
    finally:
        call(f"{server}/resume", {})


# --- the training


def publish(model: Any, tokenizer: Any, options: argparse.Namespace, step: int) -> None:
    """Write the weights and give them to vLLM. Two folders take turns, because vLLM may still read the last one."""
    folder = options.out / f"weights-{step % 2}"
    save(model, tokenizer, folder)
    give_to_server(options.server, folder)


def steps_log(path: Path, step: int) -> Path:
    """The file of the steps, without the lines after `step`, which are made again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return path


def train(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    model, tokenizer = load(options.model)
    optimizer = Optimizer(model, options.rate)
    state = options.out / "state.pt"
    step = 0
    if state.exists():
        saved = torch.load(state, map_location="cpu")
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        publish(model, tokenizer, options, step)
    registration = {
        "wandb_group": "train",
        "wandb_project": "train",
        "batch_size": options.groups * options.group_size,
        "max_token_len": options.max_tokens,
        "checkpoint_dir": str((options.out / "checkpoints").resolve()),
        "save_checkpoint_interval": SAVE_EVERY,
        "starting_step": step,
        "num_steps": options.steps,
    }
    call(f"{options.api}/register", registration)
    with steps_log(options.out / "steps.jsonl", step).open("a", encoding="utf-8") as log:
        while step < options.steps:
            asked_at = time.monotonic()
            batch = next_batch(options.api)
            came_at = time.monotonic()
            groups = [checked_group(sent, len(tokenizer)) for sent in batch]
            shuffle = random.Random(step) if options.shuffle_rewards else None
            figures = learn(model, groups, shuffle)
            if figures["gap"] > LARGEST_MEAN_GAP:
                raise SystemExit(
                    f"The server's log probabilities differ from the trainer's by {figures['gap']:.2f} on average: "
                    "the server sampled with other weights, or with another temperature."
                )
            figures["norm"] = optimizer.step()
            step += 1
            learned_at = time.monotonic()
            publish(model, tokenizer, options, step)
            rewards = [reward for group in groups for reward in group.rewards]
            line = {
                "step": step,
                "reward": sum(rewards) / len(rewards),
                **figures,
                "wait_s": came_at - asked_at,
                "learn_s": learned_at - came_at,
                "weights_s": time.monotonic() - learned_at,
            }
            rounded = {name: round(value, 4) for name, value in line.items()}
            print(json.dumps(rounded), file=log, flush=True)
            if step % SAVE_EVERY == 0 or step == options.steps:
                unfinished = state.with_suffix(".unfinished")
                torch.save({"optimizer": optimizer.state_dict(), "step": step}, unfinished)
                unfinished.replace(state)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model on the groups of run-api.")
    parser.add_argument("--model", required=True, help="folder or name of the model before training")
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, state and steps.jsonl")
    parser.add_argument("--api", required=True, help="URL of run-api")
    parser.add_argument("--server", required=True, help="URL of vLLM")
    parser.add_argument("--steps", type=int, required=True, help="end after this step")
    parser.add_argument("--rate", type=float, required=True, help="learning rate")
    parser.add_argument("--groups", type=int, required=True, help="groups of a step")
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True, help="tokens of a sequence, prompt included")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on the processor")
    parser.add_argument("--shuffle-rewards", action="store_true", help="permute the rewards within each group")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
