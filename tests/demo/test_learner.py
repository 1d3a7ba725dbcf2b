"""The learner finds each fault that a batch can have."""

from __future__ import annotations

import copy
from typing import Any

from examples.demo.learner import Learner
from reasoning_gym_environment.records import MASKED
from testing.inference_server import GenerationRequest, GivenPrompt

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]

Batch = dict[str, Any]


async def sampled(learner: Learner) -> Batch:
    """A group as run-api hands it out."""
    text = learner.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    prompt = learner.tokenizer.encode(text)
    request = GenerationRequest(GivenPrompt(text, prompt), 4, 20)
    made = await learner.generate(request)
    return {
        "tokens": [prompt + one.token_ids for one in made],
        "masks": [[MASKED] * len(prompt) + one.token_ids for one in made],
        "inference_logprobs": [[1.0] * len(prompt) + one.logprobs for one in made],
        "messages": [[*MESSAGES, {"role": "assistant", "content": one.text}] for one in made],
        "scores": [1.0, 0.0, 0.0, 1.0],
    }


async def test_each_fault_of_a_batch_is_found() -> None:
    async with Learner(group_size=4, seed=1, rate=1e-5) as learner:
        group = await sampled(learner)
        not_whole, mask, logprob, message, token = (copy.deepcopy(group) for _ in range(5))
        for name in group:
            del not_whole[name][2]
        mask["masks"][1] = [MASKED, *mask["masks"][1][:-1]]
        logprob["inference_logprobs"][3][-1] += 1e-3
        message["messages"][0][-1]["content"] = "I never said that."
        for name in ("tokens", "masks"):
            token[name][0][-2] += 1
        await learner.train([group, not_whole, mask, logprob, message, token])
    assert learner.checks.faults.keys() == {
        "a group is not whole",
        "a mask does not mark exactly the completion",
        "a log probability differs by more than 0.0001 from the sampled one",
        "tokens do not decode to their messages",
        "the learner did not sample a sequence, or no longer remembers it",
    }
    assert "1x a group is not whole" in learner.checks.describe()
