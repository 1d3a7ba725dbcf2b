"""Run one of the two environments through all steps, and write down its behaviour. compare.py starts this script.

    python observe.py original SCRIPT GROUPS RESULT     the original environment
    python observe.py strict - GROUPS RESULT            this project, with `verification: strict`
    python observe.py native - GROUPS RESULT            this project, with `verification: native`

The steps are the same for both environments:

    settings     fields, defaults, start values, and which values are refused
    scoring      `score` for each group of GROUPS, with the base scores behind it, and the dumps of failed groups
    sampling     `collect_trajectories` with a mock server: requests, groups, dumps, metrics, table
    evaluation   `evaluate` and `rollout_and_score_eval`: requests and scores
    curriculum   metrics after some groups with `complexity_mode: curriculum`
    tasks        the tasks that each mode trains on

GROUPS is a pickle of a list of Group. RESULT is a JSON file.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import wandb
from atroposlib.envs.base import APIServerConfig
from pydantic import ValidationError

from benchmarks.original.groups import GROUP_SIZE, MAX_TOKEN_LENGTH, Attempt, Group
from testing.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from testing.inference_server import Generation, GenerationRequest
from testing.mock_dialects import ThreadedMockServer

UNREACHABLE = "http://127.0.0.1:9/v1"
MASKED = -100
SAMPLED_GROUPS = 30
"""So many groups go through the mock server."""
CURRICULUM_GROUPS = 40
SYSTEM_MESSAGE = "Think inside <think> tags, and answer inside <answer> tags."
"""Both environments sample from the same prompt, so that their tokens can be compared."""
SAMPLED_TOKEN_LENGTH = 16_384
"""The limit of sequences from the mock server. A token of its tokenizer is one byte, so questions are long."""
NEVER_FITS = "x" * (2 * SAMPLED_TOKEN_LENGTH + 1)


# --- the two environments


class Side:
    """What the steps need of an environment. The subclasses say where the two environments differ."""

    def __init__(self, module: ModuleType, folder: Path) -> None:
        self.module = module
        self.folder = folder
        self.tokenizer_path = str(save_byte_tokenizer(folder / "tokenizer"))
        self.logged: list[dict[str, Any]] = []
        self._watch_metrics()

    def _watch_metrics(self) -> None:
        """Keep what an environment logs instead of sending it to wandb."""

        def keep(metrics: Mapping[str, Any], **_: Any) -> None:
            self.logged.append(dict(metrics))

        wandb.log = keep

    def make(self, name: str, base_url: str = UNREACHABLE, **settings: Any) -> Any:
        values = {
            "tokenizer_name": self.tokenizer_path,
            "group_size": GROUP_SIZE,
            "max_token_length": MAX_TOKEN_LENGTH,
            "dump_failed_rollouts": True,
            "num_rollouts_per_group_for_logging": -1,
            **self.own_settings(name),
            **settings,
        }
        server = APIServerConfig(
            server_type="vllm",
            base_url=base_url,
            model_name="mock",
            api_key="x",
            tokenizer_name=self.tokenizer_path,
            health_check=False,
        )
        env = self.module.ReasoningGymEnv(self.module.ReasoningGymEnvConfig(**values), [server], slurm=False)
        self.prepare(env, name)
        return env

    def dumps_folder(self, name: str) -> Path:
        return self.folder / f"dumps {name}"

    def own_settings(self, name: str) -> dict[str, Any]:
        """Settings that this environment needs in addition."""
        raise NotImplementedError

    def prepare(self, env: Any, name: str) -> None:
        """Whatever cannot be said by a setting."""

    async def set_up_for_scoring(self, env: Any) -> None:
        """Do as much of `setup` as `score` needs."""
        raise NotImplementedError

    def watch_scores(self, env: Any) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
        """Watch the scoring. The returned function describes the last group: one mapping for each of the given texts.

        The mappings have the base score, or None if the text was not scored. They also say why, where the environment
        knows it.
        """
        raise NotImplementedError

    async def finish_dumps(self, env: Any) -> None:
        """Write the groups that are still to be dumped."""
        raise NotImplementedError

    def check(self, config: Any) -> None:
        """Validate a config that has been made. Raises ValueError."""


class OriginalSide(Side):
    def own_settings(self, name: str) -> dict[str, Any]:
        return {}

    def prepare(self, env: Any, name: str) -> None:
        env.datadumps_dir = str(self.dumps_folder(name))

    async def set_up_for_scoring(self, env: Any) -> None:
        # Scoring reads this counter in log lines.
        env.iter = 0

    def watch_scores(self, env: Any) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
        scores: dict[str, float] = {}
        last_text = [""]
        extract, grade = env._extract_final_answer, env._score_answer_with_both_formats

        def extract_and_note(text: str) -> str | None:
            last_text[0] = text
            scores[text] = 0.0
            answer: str | None = extract(text)
            return answer

        def grade_and_note(answer: str, entry: dict[str, Any], dataset: Any) -> float:
            score: float = grade(answer, entry, dataset)
            scores[last_text[0]] = score
            return score

        env._extract_final_answer = extract_and_note
        env._score_answer_with_both_formats = grade_and_note

        def describe(texts: Sequence[str]) -> list[dict[str, Any]]:
            found = [{"base": scores.get(text)} for text in texts]
            scores.clear()
            return found

        return describe

    async def finish_dumps(self, env: Any) -> None:
        await env._save_rollouts_to_jsonl()
        await env._save_failed_rollouts_to_jsonl()

    def check(self, config: Any) -> None:
        config.validate_config()


class OwnSide(Side):
    def __init__(self, module: ModuleType, folder: Path, verification: str) -> None:
        super().__init__(module, folder)
        self._verification = verification

    def own_settings(self, name: str) -> dict[str, Any]:
        return {
            "verification": self._verification,
            "data_dumps_dir": str(self.dumps_folder(name)),
            "num_generation_workers": 1,
            "num_scoring_workers": 1,
        }

    async def set_up_for_scoring(self, env: Any) -> None:
        await env.setup()

    def watch_scores(self, env: Any) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
        groups: list[Any] = []
        observe = env.run.telemetry.observe

        def observe_and_note(group: Any) -> None:
            groups.append(group)
            observe(group)

        env.run.telemetry.observe = observe_and_note

        def describe(texts: Sequence[str]) -> list[dict[str, Any]]:
            if not groups:
                return [{"base": None} for _ in texts]
            group = groups.pop()
            return [_describe_rollout(rollout) for rollout in group.rollouts]

        return describe

    async def finish_dumps(self, env: Any) -> None:
        await env.run.telemetry.dumps.close()


def _describe_rollout(rollout: Any) -> dict[str, Any]:
    score = rollout.score
    return {
        "base": rollout.base_reward,
        "native": score.native,
        "outcome": score.outcome.value,
        "failure": score.failure.value if score.failure else None,
        "is_scored": score.outcome.is_scored,
        "mask_reason": rollout.mask_reason,
    }


# --- settings


REFUSED_OR_NOT: dict[str, dict[str, Any]] = {
    "rollout_save_score_threshold above 1": {"rollout_save_score_threshold": 1.5},
    "rollout_save_score_threshold below 0": {"rollout_save_score_threshold": -0.1},
    "rollout_save_score_threshold of 1": {"rollout_save_score_threshold": 1.0},
    "num_eval_samples_per_task of 0": {"num_eval_samples_per_task": 0},
    "num_eval_samples_per_task below 0": {"num_eval_samples_per_task": -1},
    "complexity_mode that does not exist": {"complexity_mode": "hardest"},
    "complexity_mode of curriculum": {"complexity_mode": "curriculum"},
    "complexity_mode of random": {"complexity_mode": "random"},
    "seed that is no number": {"seed": "one"},
    "misspelt name": {"dump_rollout": True},
}
"""Values that an environment may accept or refuse, by what they are."""


def observe_settings(side: Side) -> dict[str, Any]:
    config_class = side.module.ReasoningGymEnvConfig
    env_class = side.module.ReasoningGymEnv
    defaults = config_class()
    start_values, servers = env_class.config_init()
    return {
        "defaults": _plain_fields(defaults),
        "start values": _plain_fields(start_values),
        "server": _plain_fields(servers[0]),
        "servers": len(servers),
        "refused": {name: _is_refused(side, values) for name, values in REFUSED_OR_NOT.items()},
        "public names": {
            "ReasoningGymEnv": _public_names(env_class),
            "ReasoningGymEnvConfig": _public_names(config_class),
        },
        "name": env_class.name,
        "env_config_cls": env_class.env_config_cls.__name__,
        "arguments": _arguments(env_class),
    }


def _plain_fields(settings: Any) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def _is_refused(side: Side, values: Mapping[str, Any]) -> bool:
    # pydantic's ValidationError is a ValueError.
    try:
        side.check(side.module.ReasoningGymEnvConfig(**values))
    except (ValueError, ValidationError):
        return True
    return False


def _arguments(kind: type) -> dict[str, Any]:
    """The arguments of the constructor, with their defaults as text."""
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: _default_of(parameter) for parameter in parameters}


def _default_of(parameter: inspect.Parameter) -> str:
    return "required" if parameter.default is parameter.empty else repr(parameter.default)


def _public_names(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


# --- scoring


async def observe_scoring(side: Side, groups: Sequence[Group]) -> dict[str, Any]:
    env = side.make("scoring", num_eval_samples_per_task=_fewest_questions(side))
    await side.set_up_for_scoring(env)
    describe = side.watch_scores(env)
    results = []
    for group in groups:
        results.append(await _score_group(env, group, describe))
    await side.finish_dumps(env)
    found = {
        "groups": results,
        "dumps": _dumped(side.dumps_folder("scoring")),
        "empty list": await env.score([]),
        "variants": await _score_variants(side, env, groups),
    }
    await env.close()
    return found


def _fewest_questions(side: Side) -> int:
    """The original refuses 0."""
    return 0 if isinstance(side, OwnSide) else 1


async def _score_group(env: Any, group: Group, describe: Callable[[Sequence[str]], list[dict[str, Any]]]) -> Any:
    rollouts = _rollouts(group)
    given = {rollout["tokens"][0]: rollout for rollout in rollouts}
    texts = [attempt.text for attempt in group.attempts]
    before = len(env.percent_correct_buffer)
    result = await env.score(rollouts)
    return {
        "rollouts": describe(texts),
        "order": [rollout["tokens"][0] for rollout in rollouts],
        "result": None if result is None else _numbered(result, given),
        "percent_correct": sorted(env.percent_correct_buffer[before:]),
    }


def _rollouts(group: Group) -> list[dict[str, Any]]:
    """The group as `score` takes it. The prompt's tokens are the numbers of the completions."""
    from reasoning_gym_environment.tasks import reasoning_gym_source as library

    dataset = library.create_dataset(group.task, seed=group.seed, size=1, **group.config)
    return [_rollout(group, number, attempt, dataset) for number, attempt in enumerate(group.attempts)]


def _rollout(group: Group, number: int, attempt: Attempt, dataset: Any) -> dict[str, Any]:
    prompt = [number] * attempt.prompt_tokens
    completion = list(range(1000, 1000 + attempt.completion_tokens))
    messages = (
        {"role": "system", "content": f"group {group.number}"},
        {"role": "user", "content": group.entry["question"]},
        {"role": "assistant", "content": attempt.text},
    )
    return {
        "messages": messages,
        "rg_item": group.entry,
        "dataset_obj": dataset,
        "finish_reason": attempt.finish_reason,
        "tokens": prompt + completion,
        "masks": [MASKED] * len(prompt) + completion,
        "logprobs": [1.0] * len(prompt) + [-0.5] * len(completion),
    }


def _numbered(result: Mapping[str, Any], given: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """A scored group with its rollouts by number, which the first token of the prompt says."""
    rollouts = {}
    for position, tokens in enumerate(result["tokens"]):
        rollout = given[tokens[0]]
        logprobs = result["inference_logprobs"][position]
        mask = result["masks"][position]
        rollouts[tokens[0]] = {
            "score": result["scores"][position],
            "override": result["overrides"][position],
            "same tokens": tokens == rollout["tokens"],
            "same mask": mask == rollout["masks"],
            "same logprobs": logprobs == rollout["logprobs"],
        }
    return {"keys": sorted(result), "rollouts": rollouts}


async def _score_variants(side: Side, env: Any, groups: Sequence[Group]) -> dict[str, Any]:
    """What three settings change: masks, messages, and groups with equal scores."""
    truncated = next(group for group in groups if group.plan == "some truncated")
    env.config.mask_too_long_completions = False
    unmasked = await env.score(_rollouts(truncated))
    env.config.include_messages = True
    with_messages = await env.score(_rollouts(truncated))
    other = side.make("equal", num_eval_samples_per_task=_fewest_questions(side), ensure_scores_are_not_same=False)
    await side.set_up_for_scoring(other)
    silent = next(group for group in groups if group.plan == "no usable answer")
    equal = await other.score(_rollouts(silent))
    await other.close()
    return {
        "mask_too_long_completions off, overrides": unmasked["overrides"],
        "include_messages on, keys": sorted(with_messages),
        "ensure_scores_are_not_same off, equal scores": "not sent" if equal is None else "sent",
    }


def _dumped(folder: Path) -> list[dict[str, Any]]:
    """The lines of all dumps, each with the name of its file."""
    lines = []
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            lines.append({"file": path.name, "line": json.loads(text)})
    return lines


# --- sampling


class ScriptedServer(ThreadedMockServer):
    """Gives each question its completions by turns, and keeps the requests."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(self._reply, tokenizer)
        self.replies: dict[str, list[str]] = {}
        self.kept: list[GenerationRequest] = []

    def _reply(self, prompt: str) -> str:
        waiting = self.replies.get(question_of(prompt))
        return waiting.pop(0) if waiting else "<think>I know nothing.</think>"

    async def generate(self, asked: GenerationRequest) -> list[Generation]:
        if question_of(asked.prompt.text) in self.replies:
            self.kept.append(asked)
        return await super().generate(asked)

    def drain(self) -> list[dict[str, Any]]:
        requests = []
        for asked in self.kept:
            prompt_tokens = len(asked.prompt.token_ids)
            requests.append(
                {
                    "n": asked.n,
                    "temperature": asked.temperature,
                    "top_p": asked.top_p,
                    "tokens in all": prompt_tokens + (asked.max_tokens or 0),
                }
            )
        self.kept.clear()
        return requests


def question_of(prompt: str) -> str:
    return prompt.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0]


async def observe_sampling(side: Side, groups: Sequence[Group]) -> dict[str, Any]:
    """Groups from requests to dumps, metrics and the table."""
    chosen = _groups_to_sample(groups)
    with ScriptedServer(build_byte_tokenizer()) as server:
        env = side.make(
            "sampling",
            server.base_url,
            max_token_length=SAMPLED_TOKEN_LENGTH,
            dump_rollouts=True,
            num_rollouts_to_keep=len(chosen),
        )
        await env.setup()
        items = [await env.get_next_item() for _ in range(5)]
        found: dict[str, Any] = {"items": [_describe_item(item) for item in items]}
        found["groups"] = [await _sample_group(env, group, server) for group in chosen]
        found["requests"] = server.drain()
        found["files before the end"] = [line["file"] for line in _dumped(side.dumps_folder("sampling"))]
        await env.wandb_log({})
        found["metrics"] = _plain_metrics(side.logged.pop())
        await side.finish_dumps(env)
        found["dumps"] = _dumped(side.dumps_folder("sampling"))
        found["run"] = env.run_uuid
        found["attributes"] = _missing_attributes(env)
        found["prompt that does not fit"] = await _sample_too_long(env, chosen[0])
        found["evaluation"] = await _observe_evaluation(side, env, chosen, server)
        await env.close()
    return found


ATTRIBUTES = (
    "task_names",
    "test_items_with_scorers",
    "iter",
    "run_uuid",
    "datadumps_dir",
    "percent_correct_buffer",
    "eval_metrics",
    "rollouts_for_wandb",
)
"""What other code reads of an environment."""


def _missing_attributes(env: Any) -> list[str]:
    return [name for name in ATTRIBUTES if not hasattr(env, name)]


def _groups_to_sample(groups: Sequence[Group]) -> list[Group]:
    """Groups with short questions, and with completions for which both environments make the same tokens."""
    plans = ("mixed", "all right", "all wrong", "no usable answer", "near misses", "fewer than the group size")
    fits = [group for group in groups if len(group.entry["question"]) < SAMPLED_TOKEN_LENGTH // 8]
    return [group for group in fits if group.plan in plans and group.level is None][:SAMPLED_GROUPS]


def _texts_to_sample(group: Group) -> list[str]:
    """The texts that both environments must treat alike: at least ten tokens, and no empty answer."""
    texts = [attempt.text for attempt in group.attempts]
    return [text for text in texts if len(text) >= 10 and "<answer></answer>" not in text]


def _describe_item(item: Any) -> dict[str, Any]:
    messages, entry, dataset = item
    dicts = [dict(message) for message in messages]
    return {
        "length": len(item),
        "messages": type(messages).__name__,
        "can be hashed": isinstance(hash(messages), int),
        "roles": [message["role"] for message in dicts],
        "keys of a message": sorted(dicts[0]),
        "system": dicts[0]["content"],
        "user is the question": dicts[-1]["content"] == entry["question"],
        "keys of the entry": sorted(entry),
        "scores its own answer": _scores_its_own_answer(entry, dataset),
    }


def _scores_its_own_answer(entry: dict[str, Any], dataset: Any) -> bool:
    if entry["answer"] is None:
        return True
    return bool(dataset.score_answer(answer=entry["answer"], entry=entry) > 0.99)


def _as_item(group: Group) -> tuple[Any, dict[str, Any], Any]:
    from reasoning_gym_environment.tasks import reasoning_gym_source as library

    messages = (
        (("role", "system"), ("content", f"{SYSTEM_MESSAGE} Group {group.number}.")),
        (("role", "user"), ("content", group.entry["question"])),
    )
    dataset = library.create_dataset(group.task, seed=group.seed, size=1, **group.config)
    return messages, group.entry, dataset


async def _sample_group(env: Any, group: Group, server: ScriptedServer) -> dict[str, Any]:
    server.replies[group.entry["question"]] = _texts_to_sample(group)
    item = _as_item(group)
    result, backlog = await env.collect_trajectories(item)
    if result is not None:
        await env.handle_send_to_api(result, item, do_send_to_api=False)
    rollouts = []
    if result is not None:
        columns = (result["tokens"], result["masks"], result["inference_logprobs"], result["scores"])
        rollouts = sorted(list(row) for row in zip(*columns, strict=True))
    return {"number": group.number, "sent": result is not None, "rollouts": rollouts, "backlog": list(backlog)}


async def _sample_too_long(env: Any, group: Group) -> dict[str, Any]:
    _, entry, dataset = _as_item(group)
    messages = ((("role", "system"), ("content", SYSTEM_MESSAGE)), (("role", "user"), ("content", NEVER_FITS)))
    result, backlog = await env.collect_trajectories((messages, {**entry, "question": NEVER_FITS}, dataset))
    return {"sent": result is not None, "backlog": list(backlog)}


def _plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics as JSON. Of the table, its columns and its rows in order."""
    plain: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, wandb.Table):
            rows = sorted([text, round(score, 9), answer, task] for text, score, answer, task in value.data)
            plain[name] = {"columns": value.columns, "rows": rows}
        else:
            plain[name] = float(value)
    return plain


# --- evaluation


async def _observe_evaluation(side: Side, env: Any, groups: Sequence[Group], server: ScriptedServer) -> dict[str, Any]:
    server.drain()
    scores = []
    for group in groups:
        for text in _texts_to_sample(group)[:4]:
            server.replies[group.entry["question"]] = [text]
            _, entry, dataset = _as_item(group)
            score = await env.rollout_and_score_eval((entry, dataset))
            scores.append({"group": group.number, "task": group.task, "text": text, "score": score})
    one_by_one = server.drain()
    _, entry, dataset = _as_item(groups[0])
    too_long = await env.rollout_and_score_eval(({**entry, "question": NEVER_FITS}, dataset))
    test_items = list(env.test_items_with_scorers)
    _answer_every_other_question(test_items, server)
    await env.evaluate()
    requests = server.drain()
    await env.wandb_log({})
    metrics = side.logged.pop()
    _answer_every_other_question(test_items, server)
    expected = [await env.rollout_and_score_eval(test_item) for test_item in test_items]
    scored = [score for score in expected if score is not None]
    return {
        "scores": scores,
        "requests": one_by_one,
        "requests of evaluate": requests,
        "prompt that does not fit": too_long,
        "questions": len(test_items),
        "tasks": sorted({entry["metadata"]["source_dataset"] for entry, _ in test_items}),
        "metric": metrics["eval/percent_correct"],
        "metric is the mean": abs(metrics["eval/percent_correct"] - sum(scored) / len(scored)) < 1e-9,
        "metric after the next step": "eval/percent_correct" in await _next_metrics(side, env),
    }


def _answer_every_other_question(test_items: Sequence[Any], server: ScriptedServer) -> None:
    for number, (entry, _) in enumerate(test_items):
        answer = entry["answer"] if number % 2 else "no idea"
        server.replies[entry["question"].strip()] = [f"<think>Hm.</think><answer>{answer}</answer>"]
        server.replies[entry["question"]] = [f"<think>Hm.</think><answer>{answer}</answer>"]


async def _next_metrics(side: Side, env: Any) -> dict[str, Any]:
    await env.wandb_log({})
    return side.logged.pop()


# --- curriculum and tasks


async def observe_curriculum(side: Side) -> dict[str, Any]:
    env = side.make("curriculum", complexity_mode="curriculum", num_eval_samples_per_task=_fewest_questions(side))
    await env.setup()
    await env.wandb_log({})
    before = side.logged.pop()
    observed = set()
    for number in range(CURRICULUM_GROUPS):
        item = await env.get_next_item()
        if item is not None:
            observed.add(item[1]["metadata"]["source_dataset"])
            await env.score(_own_rollouts(item, is_right=number % 4 > 0))
    await env.wandb_log({})
    after = side.logged.pop()
    found = {
        "first metrics": _curriculum_metrics(before),
        "metrics": _curriculum_metrics(after),
        "keys of the statistics": sorted(env.get_curriculum_stats()),
        "tasks": sorted(env.task_names),
        "observed tasks": len(observed),
    }
    await env.close()
    return found


def _curriculum_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name.startswith("curriculum/")}


def _own_rollouts(item: Any, *, is_right: bool) -> list[dict[str, Any]]:
    """A group of two equal completions for an item that the environment has drawn."""
    messages, entry, dataset = item
    answer = entry["answer"] if is_right else "no idea"
    text = f"<think>Hm.</think><answer>{answer}</answer>"
    rollout = {
        "messages": (*(dict(message) for message in messages), {"role": "assistant", "content": text}),
        "rg_item": entry,
        "dataset_obj": dataset,
        "finish_reason": "stop",
        "tokens": list(range(40)),
        "masks": [MASKED] * 20 + list(range(20, 40)),
        "logprobs": [1.0] * 20 + [-0.5] * 20,
    }
    return [dict(rollout) for _ in range(GROUP_SIZE)]


async def observe_tasks(side: Side) -> dict[str, Any]:
    """The tasks of each mode, and what the statistics of the curriculum are without a curriculum."""
    found: dict[str, Any] = {}
    for mode in (None, "random"):
        env = side.make("tasks", complexity_mode=mode, num_eval_samples_per_task=_fewest_questions(side))
        await env.setup()
        found[str(mode)] = sorted(env.task_names)
        found[f"statistics, {mode}"] = sorted(env.get_curriculum_stats())
        await env.close()
    return found


# --- the process

STEPS = {
    "original": ("scoring", "sampling", "curriculum", "tasks"),
    "native": ("scoring", "sampling", "curriculum", "tasks"),
    "strict": ("scoring", "sampling"),
}
"""With `verification: native` nearly everything must be equal, so only that run goes through all steps."""


def load_original(script: Path) -> ModuleType:
    """The module has the name of this package, so it gets another name."""
    spec = importlib.util.spec_from_file_location("original_environment", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_side(kind: str, script: Path, folder: Path) -> Side:
    if kind == "original":
        return OriginalSide(load_original(script), folder)
    import reasoning_gym_environment

    return OwnSide(reasoning_gym_environment, folder, kind)


async def observe(side: Side, groups: Sequence[Group], steps: Sequence[str]) -> dict[str, Any]:
    available: dict[str, Callable[[], Awaitable[Any]]] = {
        "scoring": lambda: observe_scoring(side, groups),
        "sampling": lambda: observe_sampling(side, groups),
        "curriculum": lambda: observe_curriculum(side),
        "tasks": lambda: observe_tasks(side),
    }
    found: dict[str, Any] = {"settings": observe_settings(side)}
    for step in steps:
        began = time.monotonic()
        found[step] = await available[step]()
        print(f"{step}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    kind, script, groups_path, result_path = sys.argv[1:]
    groups = pickle.loads(Path(groups_path).read_bytes())
    # The original shuffles groups with the global generator.
    random.seed(0)
    folder = Path(result_path).parent / f"files of {kind}"
    folder.mkdir()
    side = make_side(kind, Path(script), folder)
    found = asyncio.run(observe(side, groups, STEPS[kind]))
    Path(result_path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
