"""The model as a policy: log probabilities of completions, and an optimizer that small steps are not lost in.

A group is one prompt with several completions. It is computed as one sequence,

    prompt | completion 1 | completion 2 | ...

in which each completion sees the prompt and itself, at the positions that it would have alone. So the prompt is
computed once for its group. The log probabilities equal those for separate sequences, up to the rounding of bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(folder: str | Path) -> tuple[Any, Any]:
    """The model, in bfloat16, and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), AutoTokenizer.from_pretrained(folder)


def save(model: Any, tokenizer: Any, folder: str | Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def group_logprobs(model: Any, prompt: Sequence[int], completions: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log probabilities of all tokens of all completions, in order: shape (sum of the completions' lengths,)."""
    ids, positions, owners, predicting = list(prompt), list(range(len(prompt))), [0] * len(prompt), []
    for number, completion in enumerate(completions, start=1):
        # The token before predicts the token: the prompt's last one for the first of each completion.
        predicting += [len(prompt) - 1, *range(len(ids), len(ids) + len(completion) - 1)]
        ids += completion
        positions += range(len(prompt), len(prompt) + len(completion))
        owners += [number] * len(completion)
    owner = torch.tensor(owners)
    visible = ((owner[:, None] == owner[None, :]) | (owner[None, :] == 0)).tril()
    mask = torch.zeros(visible.shape, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
    output = model(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        attention_mask=mask[None, None],
        logits_to_keep=torch.tensor(predicting),
        use_cache=False,
    )
    targets = torch.tensor([token for completion in completions for token in completion])
    return torch.log_softmax(output.logits[0].float(), -1).gather(-1, targets[:, None])[:, 0]


class Optimizer:
    """AdamW on float32 copies of the weights: bfloat16 would round most small steps away."""

    def __init__(self, model: Any, rate: float, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        self._weights = list(model.parameters())
        self._copies = [weight.detach().float().clone().requires_grad_() for weight in self._weights]
        self.adam = torch.optim.AdamW(self._copies, lr=rate, betas=betas, weight_decay=0.0, foreach=False)

    def set_rate(self, rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate

    def step(self, max_norm: float = 1.0) -> float:
        """One step along the gradients that were summed up since the last; returns their norm before it is clipped."""
        for copy, weight in zip(self._copies, self._weights, strict=True):
            copy.grad, weight.grad = weight.grad.float(), None
        norm = float(torch.nn.utils.clip_grad_norm_(self._copies, max_norm, foreach=False))
        self.adam.step()
        self._write_back()
        return norm

    @torch.no_grad()
    def _write_back(self) -> None:
        for copy, weight in zip(self._copies, self._weights, strict=True):
            weight.copy_(copy)
            copy.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"copies": [copy.detach() for copy in self._copies], "adam": self.adam.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for copy, saved in zip(self._copies, state["copies"], strict=True):
            copy.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        self._write_back()
