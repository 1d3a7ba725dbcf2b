"""Before anything runs: one clear line about what is missing, instead of a traceback per rollout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeAlias

import aiohttp
import openai
import wandb
from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, ServerBaseline
from atroposlib.envs.server_handling import sglang_server, vllm_server
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from transformers import AutoTokenizer

from ..errors import EnvironmentSetupError
from ..inference import dialects
from ..inference.dialects import Dialect, Refusal, TrlTokenServer, said_in, server_root
from ..inference.prompts import EstimatedTokens, Prompt, Sampling, TokenBudget, build_messages, check_tokenizer, render
from ..records import MIN_COMPLETION_TOKENS
from ..utils.aio import within

logger = logging.getLogger(__name__)

ServerConfigs: TypeAlias = ServerBaseline | Sequence[APIServerConfig]

PROBE_TIMEOUT_S = 10.0
NOT_LET_IN = (401, 403)
FIRST_QUESTION = "State the final answer to the following arithmetic problem: 1 + 1 ="
PLACEHOLDER = "x"
"""The key of the default settings, which is none."""

SLOW_LOAD_S = 5.0
SLOW_LOAD = (
    "Still loading the tokenizer %s: a hub that cannot be reached is tried for most of a minute. (HF_HUB_OFFLINE=1: "
    "at once what this machine has.)"
)
"""For the hub's client, which would have a line for each of a dozen attempts, is kept quiet."""

RETRY_S = 2.0
REMIND_S = 60.0


def prepare_servers(servers: ServerConfigs, tokenizer_name: str) -> ServerConfigs:
    """Server settings ready for use: with the environment's tokenizer and a placeholder key where they have none.

    Raises EnvironmentSetupError for mixed server types, as Atropos would treat all of them as the first, and for
    servers that may not be asked.
    """
    each = _each(servers)
    for server in each:
        for name in ("num_max_requests_at_once", "num_requests_for_eval"):
            if getattr(server, name) < 1:
                raise EnvironmentSetupError(f"openai.{name} must be at least 1, got {getattr(server, name)}.")
    types = sorted({server.server_type for server in each})
    if len(types) != 1:
        raise EnvironmentSetupError(
            f"All inference servers must have one server_type, got {', '.join(types) or 'no server at all'}."
        )
    completed = [_complete(server, tokenizer_name) for server in each]
    return completed[0] if isinstance(servers, ServerBaseline) else completed


def _each(servers: ServerConfigs) -> Sequence[Any]:
    return [servers] if isinstance(servers, ServerBaseline) else servers


def _complete(server: Any, tokenizer_name: str) -> Any:
    values: dict[str, Any] = {}
    if server.tokenizer_name == "none":
        values["tokenizer_name"] = tokenizer_name
    if isinstance(server, APIServerConfig) and server.api_key in (None, "", PLACEHOLDER):
        # The client refuses an empty key, local servers ignore it, and a provider answers 401 to a wrong one.
        from_environment = os.environ.get("OPENAI_API_KEY") if server.server_type == "openai" else None
        values["api_key"] = from_environment or PLACEHOLDER
    if isinstance(server, APIServerConfig) and server.server_type == "openai":
        # Atropos' check is a completion every second, which a provider bills; and while it fails, for a wrong key as
        # well, its client waits without a word. Requests that fail tell the same, with their reason.
        values["health_check"] = False
    return server.model_copy(update=values)


def server_class(servers: ServerConfigs) -> type | None:
    """The client class to use in place of Atropos' own, or None."""
    return TrlTokenServer if _each(servers)[0].server_type == "trl" else None


def load_tokenizers(config: BaseEnvConfig, servers: ServerConfigs) -> dict[str, Any]:
    """The environment's tokenizer and those of the servers, by name: each is loaded once, a wrong name gives one line.

    Servers of type openai need none: where it cannot be had, or is "none", tokens are estimated, with a line.
    """
    each = _each(servers)
    is_optional = each[0].server_type == "openai" and not _may_train_from_text()
    found: dict[str, Any] = {}
    if not is_optional:
        names = {server.tokenizer_name for server in each} - {config.tokenizer_name}
        found = {name: _tokenizer(name, "openai.tokenizer_name") for name in names}
    elif config.tokenizer_name.lower() == "none":
        logger.warning("Without a tokenizer %s.", ESTIMATED)
        return {config.tokenizer_name: EstimatedTokens()}
    try:
        return {**found, config.tokenizer_name: _tokenizer(config.tokenizer_name, "env.tokenizer_name")}
    except EnvironmentSetupError as error:
        if not is_optional:
            raise
        logger.warning("%s Without it %s.", error, ESTIMATED)
        return {config.tokenizer_name: EstimatedTokens()}


ESTIMATED = (
    "tokens are estimated, as somewhat more than a model has: completions get less of env.max_token_length, and the "
    "ids of tokens that are written mean nothing"
)


def _tokenizer(name: str, setting: str) -> Any:
    logger.info("Loading the tokenizer %s.", name)
    waiting = threading.Timer(SLOW_LOAD_S, logger.info, (SLOW_LOAD, name))
    waiting.daemon = True
    waiting.start()
    # The hub client and tokenizer files of all ages raise whatever they like here.
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise EnvironmentSetupError(
            f"Cannot load the tokenizer {name!r}: set {setting} to a hub name that this machine can reach or to a "
            f"local folder ({reason.splitlines()[0][:160]})."
        ) from error
    finally:
        waiting.cancel()


@contextlib.contextmanager
def given_tokenizers(tokenizers: Mapping[str, Any]) -> Iterator[None]:
    """Within, Atropos' base class and its clients, one for each server, get these in place of loading them again."""
    modules: tuple[Any, ...] = (base, vllm_server, sglang_server, dialects)
    before = [module.AutoTokenizer for module in modules]
    for module in modules:
        module.AutoTokenizer = SimpleNamespace(from_pretrained=tokenizers.__getitem__)
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            module.AutoTokenizer = own


def _may_train_from_text() -> bool:
    return os.environ.get("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "").lower() in ("1", "true", "yes")


FirstRequest: TypeAlias = tuple[Prompt, Sampling]


def first_request(config: Any, tokenizer: Any, *, evaluates: bool = False) -> FirstRequest:
    """A request of the shape of those that will follow, with a short question: what is refused then is refused now."""
    check_tokenizer(tokenizer, config.tokenizer_name)
    prompt = render(tokenizer, build_messages(FIRST_QUESTION))
    budget = TokenBudget(config.max_token_length, config.max_token_length, lambda: 0)
    if evaluates:
        room = budget.of_evaluation(len(prompt.tokens))
        return prompt, Sampling(1, room or MIN_COMPLETION_TOKENS, config.eval_temperature, split="eval")
    room = budget.of_completion(len(prompt.tokens))
    sampling = (config.group_size, room or MIN_COMPLETION_TOKENS, config.train_temperature, config.train_top_p)
    return prompt, Sampling(*sampling)


async def check_serve(config: BaseEnvConfig, server: Any) -> None:
    """Refuse what cannot train; then wait for the trajectory API and an inference server, saying so."""
    if config.group_size == 1 and config.ensure_scores_are_not_same:
        raise EnvironmentSetupError(
            "A group of one completion has nothing to compare, so none would ever be sent: set env.group_size to 2 or "
            "more, or env.ensure_scores_are_not_same to False."
        )
    if isinstance(server.servers[0], OpenAIServer):
        if not _may_train_from_text():
            raise EnvironmentSetupError(
                "serve needs token ids, which openai servers do not give: set openai.server_type to vllm, sglang "
                "or trl. (ATROPOS_ALLOW_DUMMY_MANAGED_SERVER=1 serves without logprobs, for tests only.)"
            )
        logger.warning("Serving from an openai server: tokens are re-tokenized text and there are no logprobs.")
    _check_wandb(config)
    await _wait_until_reachable([f"{config.rollout_server_url}/"], "The trajectory API", "start it with `run-api`")
    await _wait_until_reachable(_probe_urls(server), "The inference server", "start it, or set openai.base_url")


async def check_first_request(server: Any, first: FirstRequest) -> None:
    """For serve: raise EnvironmentSetupError for what a server refuses; what may pass is left to the run."""
    await asyncio.gather(*(_ask_once(client, *first, is_served=True) for client in server.servers))


async def check_offline_use(config: BaseEnvConfig, server: Any, first: FirstRequest) -> None:
    """For process and evaluate: an inference server must be there now, and take what it will be asked."""
    _check_wandb(config)
    problems = await asyncio.gather(*(_problem(client, first) for client in server.servers))
    if problems and all(problems):
        raise EnvironmentSetupError(
            f"The inference server is not reachable: {problems[0]}. Start it, or set openai.base_url."
        )


# --- is a server there?


async def _problem(client: Any, first: FirstRequest) -> str | None:
    """Why this server is not there, in one line; None if it is, or cannot be asked."""
    if not isinstance(client, OpenAIServer) and (url := _probe_url(client)) and (problem := await _probe(url)):
        return problem
    return await _ask_once(client, *first)


async def _ask_once(client: Any, prompt: Prompt, sampling: Sampling, *, is_served: bool = False) -> str | None:
    """Make the first request, so that a wrong key, address, model or limit is one line now and not a run of failures.

    What may pass (a busy server, one that fails; for serve, which waits for servers, one that says so with status 200)
    is left to the run. Raises EnvironmentSetupError for what is refused.
    """
    request = {name: value for name, value in sampling.as_request().items() if name != "split"}
    address, model = client.config.base_url, client.config.model_name
    sends = getattr(client, "openai", None)
    if sends is not None:
        client.openai = sends.with_options(max_retries=0)
    try:
        asking = Dialect.of(client).try_out(prompt.messages, prompt.text, prompt.tokens, request)
        reply = await within(PROBE_TIMEOUT_S, asking)
    except (asyncio.TimeoutError, openai.APITimeoutError):
        logger.info("%s takes more than %.0f s for its first completions.", address, PROBE_TIMEOUT_S)
    except openai.APIConnectionError as error:
        return f"{address}: {error.__cause__ or error}"
    # Clients of four kinds of server raise their own errors; what is no refusal may pass.
    except Exception as error:
        status = getattr(error, "status_code", None) or getattr(error, "status", None)
        if status in NOT_LET_IN:
            text = error.response.text if isinstance(error, openai.APIStatusError) else str(error)
            raise EnvironmentSetupError(Refusal(status, said_in(text)[0]).advice(address, model)) from error
        logger.warning("%s gave no completions at first (%s: %s).", address, type(error).__name__, str(error)[:200])
    else:
        if isinstance(reply, Refusal) and reply.pause_s is None:
            if not (is_served and reply.may_pass):
                raise EnvironmentSetupError(reply.advice(address, model))
            logger.warning("%s gave no completions at first (%s).", address, reply.sentence)
    finally:
        if sends is not None:
            client.openai = sends
    return None


def _probe_urls(server: Any) -> list[str]:
    """The address to ask at each server. Servers without one (the provider's default) are not asked."""
    return [url for client in server.servers if (url := _probe_url(client))]


def _probe_url(client: Any) -> str:
    base = str(getattr(getattr(client, "config", None), "base_url", None) or "").rstrip("/")
    if base and isinstance(client, OpenAIServer):
        return f"{base}/models"
    return base and f"{server_root(base)}/health{'/' if isinstance(client, TrlVllmServer) else ''}"


async def _probe(url: str) -> str | None:
    """None if something answers at `url`, else one line why not. Any answer below 500 is an answer."""
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return f"{url} answers {response.status}" if response.status >= 500 else None
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
        return f"{url}: {str(error) or type(error).__name__}"


async def _wait_until_reachable(urls: list[str], who: str, remedy: str) -> None:
    """Return once one of `urls` answers; say at once, and every minute, what is being waited for."""
    start, reminded = time.monotonic(), 0.0
    while urls:
        problems = [await _probe(url) for url in urls]
        if not all(problems):
            if reminded:
                logger.info("%s is there now, after %.0f s.", who, time.monotonic() - start)
            return
        if not reminded or time.monotonic() - reminded > REMIND_S:
            logger.warning("%s is not reachable (%s): waiting; %s.", who, problems[0], remedy)
            reminded = time.monotonic()
        await asyncio.sleep(RETRY_S)


def _check_wandb(config: BaseEnvConfig) -> None:
    mode = os.environ.get("WANDB_MODE", "online").lower()
    if config.use_wandb and mode == "online" and not wandb.api.api_key:
        raise EnvironmentSetupError(
            "use_wandb is on but there is no wandb API key: run `wandb login`, set WANDB_MODE=offline, "
            "or pass --env.use_wandb False."
        )


def is_wandb_away(error: Exception) -> bool:
    """Whether wandb could not be reached in time, as it says itself; what it refuses it says at once."""
    return isinstance(error, wandb.errors.CommError) and "timed out" in str(error).lower()


def keep_wandb_offline(error: Exception) -> None:
    """The runs that this process begins from now on are on disk only."""
    wandb.setup(settings=wandb.Settings(mode="offline"))
    logger.warning(
        "wandb is away (%s): the metrics of this process are kept in wandb/offline-run-*, `wandb sync` sends them.",
        str(error).partition("\n")[0],
    )


@contextlib.contextmanager
def wandb_run(config: BaseEnvConfig, name: str) -> Iterator[None]:
    """A wandb run of its own, if wandb is on, for the commands that have no trajectory API to name one."""
    if config.use_wandb:
        suffix = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=6))
        wandb.init(name=f"{config.wandb_name or name}-{datetime.now():%Y-%m-%d}-{suffix}", config=config.model_dump())
    yield


async def finish_wandb() -> None:
    """Send what wandb still has, if there is a run; it may be much."""
    if wandb.run is not None:
        await asyncio.to_thread(wandb.finish)
