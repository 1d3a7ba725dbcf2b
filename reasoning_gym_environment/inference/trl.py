"""TRL's vLLM server (`trl vllm-serve`) as a token server.

atroposlib's client for it decodes the token ids away and cannot train; this one keeps them. Older releases of
TRL reply with `completion_ids` alone, newer ones add `prompt_ids` and `logprobs`.
"""

from __future__ import annotations

import logging
from typing import Any

import aiohttp
from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig, ReasoningConfig
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from transformers import AutoTokenizer

logger = logging.getLogger(__name__)


class TrlTokenServer(TrlVllmServer):
    """Adds token ids to atroposlib's TRL client. A `/v1` at the end of `base_url` is ignored."""

    reports_logprobs = True

    def __init__(self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None) -> None:
        # Not the parent's constructor: it loads the tokenizer by the model's name and ignores tokenizer_name.
        APIServer.__init__(self, config, reasoning_config=reasoning_config)
        named = config.tokenizer_name != "none"
        self.tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_name if named else config.model_name)

    async def _tokens_and_logprobs_completion_wrapper(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
        """(prompt ids, and per completion: ids, logprobs, finish reason)."""
        prompt = str(kwargs["prompt"])
        bos = self.tokenizer.bos_token
        request = {
            # vLLM adds its own beginning-of-sequence token to a text prompt.
            "prompts": [prompt.removeprefix(bos) if bos else prompt],
            "n": kwargs.get("n", 1),
            "temperature": kwargs.get("temperature", 1.0),
            "top_p": kwargs.get("top_p", 1.0),
            "max_tokens": kwargs.get("max_tokens", 1024),
        }
        reply = await self._post(f"{server_root(self.config.base_url)}/generate/", request)
        completions: list[list[int]] = reply["completion_ids"]
        prompts = reply.get("prompt_ids")
        return (
            prompts[0] if prompts else list(kwargs["input_ids"]),
            completions,
            self._logprobs(reply, completions),
            ["stop" if self.tokenizer.eos_token_id in ids[-1:] else "length" for ids in completions],
        )

    async def _post(self, url: str, request: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self.config.timeout)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=request) as response,
        ):
            response.raise_for_status()
            reply: dict[str, Any] = await response.json()
            return reply

    def _logprobs(self, reply: dict[str, Any], completions: list[list[int]]) -> list[list[float]]:
        reported = reply.get("logprobs")
        if reported:
            return [[_first(value) for value in row] for row in reported]
        if self.reports_logprobs:
            logger.warning("The TRL server reports no logprobs: groups are sent without inference_logprobs.")
            self.reports_logprobs = False
        return [[] for _ in completions]


def server_root(base_url: str | None) -> str:
    """The address of the server itself: `base_url` without a slash or `/v1` at its end."""
    return str(base_url or "").rstrip("/").removesuffix("/v1").rstrip("/")


def _first(value: Any) -> float:
    """A logprob; newer servers wrap each in a list of the top k."""
    return float(value[0] if isinstance(value, list) else value)
