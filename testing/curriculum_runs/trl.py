"""TRL's rollout loop of its asynchronous GRPO trainer (version 1.16), with replies of the student instead of vLLM's."""

from __future__ import annotations

import queue
import sys
import threading
from collections import Counter
from multiprocessing import Event, Value
from pathlib import Path
from typing import Any

from accelerate.state import PartialState
from transformers import AutoTokenizer
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from reasoning_gym_environment import Rows
from reasoning_gym_environment.integrations import trl
from reasoning_gym_environment.integrations.trl import RowRewards
from testing import level_student

MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo" / "tiny_model"

IN_FLIGHT = 4
"""Prompts that the loop has open at the same time."""


class Loop(_AsyncRolloutLoop):  # type: ignore[misc]
    """The loop, without the network."""

    asked: dict[str, dict[str, Any]]
    """The rows by their question."""
    turns: Counter[str]

    async def _post(self, path: str, payload: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        prompt = self.tokenizer.decode(payload["prompt"])
        [question] = [question for question in self.asked if question.strip() in prompt]
        row = self.asked[question]
        reward = level_student.rewards(row["task"], row["level"], row["index"])[self.turns[question]]
        self.turns[question] += 1
        text = level_student.completion(row["answer"], reward)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}}]}


def run(path: str, groups: int, start: int = 0) -> list[Any]:
    """Train on the rows from `start`; returns the samples."""
    PartialState()
    asked: dict[str, dict[str, Any]] = {}
    row_of = trl.hf_row

    def seen(item: Any) -> dict[str, Any]:
        row = row_of(item)
        # A question may repeat.
        asked.pop(row["question"], None)
        turns.pop(row["question"], None)
        asked[row["question"]] = row
        return row

    turns: Counter[str] = Counter()
    trl.hf_row = seen
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    # TRL knows how to read the replies of some chat templates only.
    tokenizer.chat_template = qwen3_chat_template
    samples: queue.Queue[Any] = queue.Queue()
    loop = Loop(
        model_name="none",
        dataset=trl.dataset(Rows(path)),
        reward_funcs=[RowRewards()],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        rollout_buffer=samples,
        model_version_value=Value("i", 0),
        heartbeat_value=Value("d", 0.0),
        failed_event=Event(),
        exception_info_queue=queue.Queue(),
        metrics_queue=queue.Queue(),
        num_generations=level_student.GROUP_SIZE,
        max_inflight_tasks=IN_FLIGHT * level_student.GROUP_SIZE,
        dataset_start_index=start,
    )
    loop.asked = asked
    loop.turns = turns
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    received = [samples.get(timeout=300) for _ in range(groups * level_student.GROUP_SIZE)]
    loop._loop.call_soon_threadsafe(loop._stop_event.set)
    thread.join()
    trl.hf_row = row_of
    return received


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
