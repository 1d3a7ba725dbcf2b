"""A GRPO trainer: batches from run-api, one step each, the new weights to vLLM.

    run-api /batch ── checked ──> advantages ──> clipped policy gradient ──> weights on disk ──> vLLM reloads them

The loss is the clipped surrogate of PPO (Schulman et al. 2017, eq. 7) with the group-relative advantages of GRPO (Shao
et al. 2024), clipped higher above than below and averaged over tokens (DAPO, Yu et al. 2025). After each step a line of
JSON is added to steps.jsonl. Weights, optimizer and step are saved every few steps and at the end: the same command
resumes there.

The training ends when vLLM has generated a number of tokens. These include the groups that never reach the trainer
because all their rewards are equal.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import policy
import torch

MASKED = -100
SAVE_EVERY = 10
CLIP_BELOW, CLIP_ABOVE = 0.2, 0.28
LARGEST_MEAN_GAP = 0.2
"""Mean distance between the server's log probabilities and ours. More means that other weights sampled."""


def call(url: str, body: Any = None) -> Any:
    """The JSON that a server answers. Raises urllib.error.URLError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        text = response.read()
    return json.loads(text) if text else None


class Group:
    """One checked group of a batch. Raises ValueError if the trainer cannot use the group."""

    def __init__(self, sent: dict[str, Any], tokenizer: Any, *, group_size: int, shuffle: random.Random | None) -> None:
        size = len(sent["tokens"])
        if size != group_size or any(
            len(sent[name] or []) != size for name in ("masks", "scores", "inference_logprobs")
        ):
            raise ValueError("the group is not whole")
        start = next(at for at, mask in enumerate(sent["masks"][0]) if mask != MASKED)
        self.prompt: list[int] = sent["tokens"][0][:start]
        self.completions: list[list[int]] = []
        self.sampled: list[float] = []
        for tokens, masks, logprobs in zip(sent["tokens"], sent["masks"], sent["inference_logprobs"], strict=True):
            if (
                tokens[:start] != self.prompt
                or masks != [MASKED] * start + tokens[start:]
                or len(logprobs) != len(tokens)
            ):
                raise ValueError("a mask does not mark exactly the completion")
            if not all(math.isfinite(logprob) and logprob <= 0.0 for logprob in logprobs[start:]):
                raise ValueError("a log probability is none")
            if not all(0 <= token < len(tokenizer) for token in tokens):
                raise ValueError("a token id is unknown")
            self.completions.append(tokens[start:])
            self.sampled += logprobs[start:]
        if sent.get("messages"):
            said = sent["messages"][0][-1]["content"]
            if tokenizer.decode(self.completions[0], skip_special_tokens=True).strip() != said.strip():
                raise ValueError("tokens do not decode to their message")
        self.rewards = [float(score) for score in sent["scores"]]
        rewards = list(self.rewards)
        if shuffle is not None:
            shuffle.shuffle(rewards)
        given = torch.tensor(rewards)
        advantages = (given - given.mean()) / (given.std() + 1e-4)
        for number, override in enumerate(sent.get("overrides") or []):
            if (override or {}).get("set_advantage_to_zero"):
                advantages[number] = 0.0
        lengths = torch.tensor([len(completion) for completion in self.completions])
        self.advantages = advantages.repeat_interleave(lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.sampled)


def learn(model: Any, groups: list[Group]) -> dict[str, float]:
    """Sum up the gradients of a batch; returns the distance to the server's log probabilities, and what was clipped."""
    total = sum(group.num_tokens for group in groups)
    gap = ratios = clipped = 0.0
    for group in groups:
        logprobs = policy.group_logprobs(model, group.prompt, group.completions)
        ratio = (logprobs - torch.tensor(group.sampled)).exp()
        limited = ratio.clamp(1 - CLIP_BELOW, 1 + CLIP_ABOVE)
        (-torch.minimum(ratio * group.advantages, limited * group.advantages).sum() / total).backward()
        with torch.no_grad():
            gap += (logprobs - torch.tensor(group.sampled)).abs().sum().item()
            ratios += ratio.sum().item()
            up, down = group.advantages > 0, group.advantages < 0
            clipped += ((ratio > 1 + CLIP_ABOVE) & up | (ratio < 1 - CLIP_BELOW) & down).sum().item()
    return {"gap": gap / total, "ratio": ratios / total, "clipped": clipped / total, "tokens": total}


def give_to_server(server: str, folder: Path) -> None:
    """Let vLLM load the weights in `folder`. Unfinished completions continue with the new weights."""
    call(f"{server}/pause?mode=keep", {})
    try:
        call(
            f"{server}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
        )
        call(f"{server}/reset_prefix_cache", {})
    finally:
        call(f"{server}/resume", {})


def tokens_of(server: str) -> int:
    """The number of tokens that vLLM has generated since it started."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    counts = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:generation_tokens_total")]
    return int(sum(counts))


def save_state(path: Path, optimizer: policy.Optimizer, step: int, generated: int) -> None:
    unfinished = path.with_suffix(".unfinished")
    torch.save({"optimizer": optimizer.state_dict(), "step": step, "generated": generated}, unfinished)
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="the model after its cold start")
    parser.add_argument("--out", type=Path, help="folder of this arm")
    parser.add_argument("--give", type=Path, metavar="FOLDER", help="only let vLLM read these weights")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so many, with the next whole step")
    parser.add_argument("--api", default="http://127.0.0.1:8200", help="run-api")
    parser.add_argument("--server", default="http://127.0.0.1:9811", help="vLLM")
    parser.add_argument("--until-tokens", type=int, default=400_000, help="end when so many tokens are generated")
    parser.add_argument("--rate", type=float, default=2e-5)
    parser.add_argument("--groups", type=int, default=8, help="groups a step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=384, help="tokens of a sequence, prompt included")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shuffle", type=int, default=None, metavar="SEED", help="permute the rewards of each group")
    options = parser.parse_args()
    if options.give is not None:
        give_to_server(options.server, options.give)
        return
    if options.model is None or options.out is None:
        parser.error("--model and --out are needed")
    end = time.monotonic() + 60 * options.minutes
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    model, tokenizer = policy.load(options.model)
    optimizer = policy.Optimizer(model, options.rate)
    state = options.out / "state.pt"
    step = 0
    generated = 0
    if state.exists():
        saved = torch.load(state, map_location="cpu")
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        generated = saved["generated"]
    # The server may have answered the questions of an evaluation before.
    generated_elsewhere = tokens_of(options.server) - generated
    call(f"{options.api}/register", {
        "wandb_group": "llm", "wandb_project": "llm", "batch_size": options.groups * options.group_size,
        "max_token_len": options.max_tokens, "checkpoint_dir": str((options.out / "checkpoints").resolve()),
        "save_checkpoint_interval": SAVE_EVERY, "starting_step": step, "num_steps": 1_000_000,
    })  # fmt: skip
    with (options.out / "steps.jsonl").open("a", encoding="utf-8") as log:
        while generated < options.until_tokens and time.monotonic() < end:
            asked = time.monotonic()
            while (batch := call(f"{options.api}/batch")["batch"]) is None:
                time.sleep(0.2)
            came = time.monotonic()
            shuffle = None if options.shuffle is None else random.Random(f"{options.shuffle} {step}")
            groups = [Group(posted, tokenizer, group_size=options.group_size, shuffle=shuffle) for posted in batch]
            figures = learn(model, groups)
            if figures["gap"] > LARGEST_MEAN_GAP:
                raise SystemExit(
                    f"The server's log probabilities are {figures['gap']:.2f} from ours: it has other weights."
                )
            norm = optimizer.step()
            step += 1
            learned = time.monotonic()
            folder = options.out / f"weights-{step % 2}"
            policy.save(model, tokenizer, folder)
            give_to_server(options.server, folder)
            rewards = [reward for group in groups for reward in group.rewards]
            generated = tokens_of(options.server) - generated_elsewhere
            line = {
                "step": step,
                "generated": generated,
                "reward": sum(rewards) / len(rewards),
                "groups": len(groups),
                "norm": norm,
                **figures,
                "wait_s": came - asked,
                "learn_s": learned - came,
                "sync_s": time.monotonic() - learned,
            }
            rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
            print(json.dumps(rounded), file=log, flush=True)
            print(json.dumps(rounded), flush=True)
            if step % SAVE_EVERY == 0:
                save_state(state, optimizer, step, generated)
    save_state(state, optimizer, step, generated)
    policy.save(model, tokenizer, options.out / f"step-{step}")


if __name__ == "__main__":
    main()
