"""Before anything runs: one clear line about what is missing, instead of a traceback per rollout."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import wandb
from atroposlib.envs import base
from atroposlib.envs.base import APIServerConfig, ServerBaseline
from atroposlib.envs.server_handling import sglang_server, vllm_server
from transformers import AutoTokenizer

from ..errors import (
    EnvironmentSetupError,
    InferenceError,
    RequestRefusedError,
    UnreadableReplyError,
)
from ..inference.chat_tokenizer import EstimatedTokens, Prompt
from ..inference.client import InferenceClient
from ..inference.prompts import Prompts, RequestParameters
from ..inference.servers import NO_SERVER_IN_TESTING, ServerAdapter
from ..records import MIN_COMPLETION_TOKENS
from ..settings.environment import PLACEHOLDER, ReasoningGymEnvConfig
from ..utils.logs import stderr_handler
from ..utils.resilience import RETRY_S, Outage, with_deadline

logger = logging.getLogger(__name__)

ServerConfigs: TypeAlias = ServerBaseline | Sequence[APIServerConfig]

PROBE_TIMEOUT_S = 10.0
"""The command starts without an answer to the first request after this time, because a completion may take minutes."""
FIRST_QUESTION = "State the final answer to the following arithmetic problem: 1 + 1 ="
LFS_POINTER = b"version https://git-lfs"
"""How a file begins that Git LFS puts in the place of a large file."""

MOST_OPEN_FILES = 65_536
"""Enough for some ten thousand requests in flight."""


READ_AT_CONSTRUCTION = (
    "group_size",
    "batch_size",
    "total_steps",
    "max_token_length",
    "seed",
    "tokenizer_name",
    "system_prompt",
    "answer_format",
    "chat_template",
    "chat_template_kwargs",
    "limit_tokens",
    "max_num_workers",
)
"""Settings that the constructor of the environment reads."""


def warn_of_late_settings(before: ReasoningGymEnvConfig, config: ReasoningGymEnvConfig) -> None:
    """Log the settings that a subclass has changed too late. `before` has the values that were read."""
    for name in READ_AT_CONSTRUCTION:
        value = getattr(before, name)
        if getattr(config, name) != value:
            logger.warning(
                "env.%s was changed after the constructor of ReasoningGymEnv had read it, so the run still uses %s. "
                "Change it in config_init(), or before super().__init__().",
                name,
                value,
            )


def prepare_servers(servers: ServerConfigs, tokenizer_name: str) -> ServerConfigs:
    """Server settings ready for use: with the environment's tokenizer and a placeholder key where they have none.

    Raises EnvironmentSetupError for mixed server types, as Atropos would treat all of them as the first, and for the
    type `trl`.
    """
    each = _each(servers)
    types = sorted({server.server_type for server in each})
    if len(types) != 1:
        raise EnvironmentSetupError(
            f"All inference servers must have one server_type, got {', '.join(types) or 'no server at all'}."
        )
    if types == ["trl"]:
        raise EnvironmentSetupError(
            "openai.server_type trl is the server of TRL before 1.11, which is not supported. Newer releases of "
            "`trl vllm-serve` start a vLLM server: set openai.server_type to vllm."
        )
    completed = [_complete(server, tokenizer_name) for server in each]
    return completed[0] if isinstance(servers, ServerBaseline) else completed


def _each(servers: ServerConfigs) -> Sequence[Any]:
    return [servers] if isinstance(servers, ServerBaseline) else servers


def _complete(server: Any, tokenizer_name: str) -> Any:
    values: dict[str, Any] = {}
    if server.tokenizer_name == "none":
        values["tokenizer_name"] = tokenizer_name
    if isinstance(server, APIServerConfig) and server.api_key in (
        None,
        "",
        PLACEHOLDER,
    ):
        # The client refuses an empty key, local servers ignore it, and a provider answers 401 to a wrong one.
        from_environment = os.environ.get("OPENAI_API_KEY", "").strip() if server.server_type == "openai" else None
        values["api_key"] = from_environment or PLACEHOLDER
    return server.model_copy(update=values)


@contextlib.contextmanager
def tokenizers_loaded_once(servers: ServerConfigs) -> Iterator[None]:
    """Within, Atropos' base class and its clients, one for each server, share one tokenizer, loaded by `_tokenizer`.

    Atropos loads a tokenizer for itself and for every server, and ends where a tokenizer is not needed and does not
    load. Only Atropos' own modules are affected: other code of this process may load tokenizers meanwhile.
    """
    is_needed = _each(servers)[0].server_type != "openai"
    loader = SimpleNamespace(from_pretrained=functools.cache(functools.partial(_tokenizer, is_needed=is_needed)))
    with contextlib.ExitStack() as stack:
        for module in (base, sglang_server, vllm_server):
            stack.callback(setattr, module, "AutoTokenizer", module.AutoTokenizer)
            setattr(module, "AutoTokenizer", loader)  # noqa: B010
        yield


def _tokenizer(name: str, *, is_needed: bool) -> Any:
    """The tokenizer of this name; where none is needed and it is "none", or does not load, tokens are estimated."""
    problem = "There is no tokenizer."
    if is_needed or name.lower() != "none":
        hint = "" if Path(name).is_dir() else " (An unreachable hub is tried for a minute, unless HF_HUB_OFFLINE=1.)"
        logger.info("Loading the tokenizer %s.%s", name, hint)
        # The hub client and tokenizer files of all ages raise any exception here.
        try:
            return AutoTokenizer.from_pretrained(name)
        except Exception as error:
            reason = _pointer_in(Path(name)) or (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            problem = (
                f"Cannot load the tokenizer {name!r}: set env.tokenizer_name (or openai.tokenizer_name for one server) "
                f"to a hub name that this machine can reach or to a local folder ({reason})."
            )
            if is_needed:
                raise EnvironmentSetupError(problem) from error
    logger.warning(
        "%s Tokens are estimated, as somewhat more than a model has: completions get less of env.max_token_length.",
        problem,
    )
    return EstimatedTokens()


def _pointer_in(folder: Path) -> str:
    """A sentence about a file of a tokenizer that Git LFS has not fetched, or ""."""
    for path in sorted(folder.glob("*.json")) + sorted(folder.glob("*.model")):
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{path.name} is the pointer of Git LFS to a file that is not here: run `git lfs pull`"
    return ""


def refuse_testing(inference: InferenceClient) -> None:
    """Raise EnvironmentSetupError if a test harness replaces the servers, before anything is requested or opened."""
    if any(type(adapter) is ServerAdapter for adapter in inference.adapters):
        raise EnvironmentSetupError(NO_SERVER_IN_TESTING)


async def check_serve(config: ReasoningGymEnvConfig, inference: InferenceClient) -> None:
    """Refuse settings that cannot train, then wait for an inference server.

    Raises EnvironmentSetupError.
    """
    if config.group_size == 1 and config.ensure_scores_are_not_same:
        raise EnvironmentSetupError(
            "No group of one completion is sent: set env.group_size to 2 or env.ensure_scores_are_not_same to False."
        )
    if not inference.has_tokens:
        raise EnvironmentSetupError(
            "serve needs token ids, which the chat API does not give: set openai.server_type to vllm (a stock "
            "`vllm serve` will do) or sglang."
        )
    _turn_wandb_off_without_login(config)
    await _wait_until_reachable(inference.adapters)


async def check_first_request(
    config: ReasoningGymEnvConfig,
    servers: Sequence[ServerAdapter],
    prompts: Prompts,
    *,
    evaluates: bool = False,
) -> None:
    """Send a short request with the same parameters as the later requests to each server.

    Raises EnvironmentSetupError if a server refuses it. The run itself handles all other failures.
    """
    prompt = prompts.of_question(FIRST_QUESTION)
    if evaluates:
        room = prompts.room_for_evaluation(len(prompt.tokens)) or MIN_COMPLETION_TOKENS
        parameters = RequestParameters(1, room, config.eval_temperature, split="eval")
    else:
        room = prompts.room_for_training(len(prompt.tokens)) or MIN_COMPLETION_TOKENS
        parameters = RequestParameters(config.group_size, room, **config.train_sampling)
    await asyncio.gather(*(_ask_once(server, prompt, parameters) for server in servers))


async def check_offline_use(
    config: ReasoningGymEnvConfig,
    inference: InferenceClient,
    prompts: Prompts,
    *,
    evaluates: bool = False,
) -> None:
    """For process and evaluate: a server must be reachable now, and accept the shape of the requests that will follow.

    Raises EnvironmentSetupError.
    """
    adapters = inference.adapters
    _turn_wandb_off_without_login(config)
    problems = await asyncio.gather(*map(_probe, adapters))
    if problems and all(problems):
        raise EnvironmentSetupError(
            f"The inference server is not reachable: {str(problems[0]).rstrip('.')}. Start it, or set openai.base_url."
        )
    reachable = [adapter for adapter, problem in zip(adapters, problems, strict=True) if problem is None]
    await check_first_request(config, reachable, prompts, evaluates=evaluates)


def set_log_levels(config: ReasoningGymEnvConfig) -> None:
    """Let `debug_logging` and `suppress_base_env_logs` decide what the log shows.

    If the program has configured no handler yet, the lines of this package appear on stderr.
    """
    package = logging.getLogger(__package__.partition(".")[0])
    if not package.hasHandlers():
        package.addHandler(stderr_handler())
    package.setLevel(logging.DEBUG if config.debug_logging else logging.INFO)
    atropos = logging.WARNING if config.suppress_base_env_logs else logging.INFO
    logging.getLogger(base.__name__).setLevel(atropos)
    # A line for each request of an OpenAI client would bury all others.
    clients = logging.NOTSET if config.debug_logging else logging.WARNING
    for client in ("httpx", "httpx2", "openai"):
        logging.getLogger(client).setLevel(clients)


def raise_open_file_limit() -> None:
    """Let this process open as many files as it may: each request and each worker needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


# --- is a server there?


async def _ask_once(server: ServerAdapter, prompt: Prompt, parameters: RequestParameters) -> None:
    """Make the first request, so that a wrong key, address, model or limit is one line now and not a run of failures.

    The run itself handles failures that may pass, such as a busy server. Raises EnvironmentSetupError if the server
    refuses the request.
    """
    try:
        await with_deadline(PROBE_TIMEOUT_S, server.probe(prompt, parameters))
    except TimeoutError:
        logger.info(
            "%s takes more than %.0f s for its first completions.",
            server.address,
            PROBE_TIMEOUT_S,
        )
    except RequestRefusedError as error:
        raise EnvironmentSetupError(error.advice) from error
    except UnreadableReplyError as error:
        raise EnvironmentSetupError(f"{error}.") from error
    except InferenceError as error:
        logger.warning("No completions at first: %s.", str(error).rstrip("."))


async def _probe(server: ServerAdapter) -> str | None:
    return await server.why_unreachable(PROBE_TIMEOUT_S)


async def _wait_until_reachable(servers: Sequence[ServerAdapter]) -> None:
    """Return when one of the servers answers. Log the wait immediately, and then every minute."""
    outage = Outage(logger, "The inference server", first_delay_s=RETRY_S, max_delay_s=RETRY_S)
    while servers and all(problems := await asyncio.gather(*map(_probe, servers))):  # noqa: ASYNC110
        await asyncio.sleep(outage.failed(str(problems[0]), "waiting; start it, or set openai.base_url"))
    outage.over()


def _turn_wandb_off_without_login(config: ReasoningGymEnvConfig) -> None:
    mode = os.environ.get("WANDB_MODE", "online").lower()
    if config.use_wandb and mode == "online" and not wandb.api.api_key:
        config.use_wandb = False
        logger.warning(
            "wandb has no API key, so this run is not logged there. Run `wandb login`, or set WANDB_MODE=offline, to "
            "change that."
        )


def begin_wandb_run(config: ReasoningGymEnvConfig) -> None:
    """Begin a wandb run, if wandb is on. `process` and `evaluate` have no trajectory API that names their run."""
    if config.use_wandb:
        name = f"{config.wandb_name or 'reasoning_gym'}-{datetime.now():%Y-%m-%d}-{uuid.uuid4().hex[:6]}"
        wandb.init(name=name, config=config.model_dump())
