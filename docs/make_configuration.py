"""Write docs/configuration.md and data/names.json from the settings: python docs/make_configuration.py [--check]

Names, defaults and descriptions (the docstrings) come from the config classes, and the headings from the comments in
them. This script has descriptions of the settings that only Atropos declares, because some of them have another effect
here; `--help` prints them too. The package reads the names of its settings and of reasoning-gym's tasks from
data/names.json, because their classes take seconds to import. `--check` only compares the files with the settings, and
exits with 1 if they differ. `tests/docs` compares too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

from atroposlib.envs.base import BaseEnvConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.atropos.command_line import settings_of, start_values
from reasoning_gym_environment.atropos.flags import Setting
from reasoning_gym_environment.settings.components import EvaluationSettings, SamplingSettings, TasksSettings
from reasoning_gym_environment.settings.environment import Server
from reasoning_gym_environment.tasks import reasoning_gym_source
from reasoning_gym_environment.tasks.catalog import categories_in_registry
from reasoning_gym_environment.tasks.measured_data import DATA

PAGE = Path(__file__).with_name("configuration.md")
NAMES = DATA / "names.json"

ATROPOS = {
    "max_num_workers": "Groups in progress for all servers. With -1, max_num_workers_per_node for each server. There "
    "can be more with min_batch_allocation.",
    "max_num_workers_per_node": "Groups in progress for each inference server.",
    "steps_per_eval": "Training steps between two evaluations of serve. With 0, serve does not evaluate.",
    "eval_handling": "Effect of an evaluation on training: STOP_TRAIN, LIMIT_TRAIN or NONE.",
    "eval_limit_ratio": "With LIMIT_TRAIN: the share of the workers that continue training during an evaluation.",
    "batch_size": "Sequences in a training batch. The number that the trainer registers replaces this value.",
    "max_batches_offpolicy": "Batches that may wait in the queue of run-api before this environment pauses.",
    "tokenizer_name": "Tokenizer of the model: a hub name or a local folder. It needs a chat template. With servers of "
    "type openai, use none.",
    "use_wandb": "Whether to log to wandb.",
    "wandb_name": "Name of the environment at run-api, and of the wandb run.",
    "num_rollouts_to_keep": "Groups in the table train/rollouts.",
    "num_rollouts_per_group_for_logging": "Rollouts of each group in the table train/rollouts. With -1, all of them.",
    "ensure_scores_are_not_same": "Whether to drop groups whose scores are all equal. process keeps them.",
    "data_path_to_save_groups": "JSONL file for the groups that serve sends. process always writes such a file.",
    "data_dir_to_save_evals": "Folder for evaluation results.",
    "min_items_sent_before_logging": "Log a step only after this many groups were sent.",
    "include_messages": "Whether to send the conversation with the tokens. process does.",
    "min_batch_allocation": "Share of every batch that is reserved for this environment. Groups for this share start "
    "even if max_num_workers groups are in progress.",
    "worker_timeout": "Training requests that have no answer after this number of seconds fail. With -1, never.",
    "thinking_mode": "Whether to request reasoning from a provider that separates it from the answer (openai servers).",
    "reasoning_effort": "Effort of such reasoning: none, minimal, low, medium, high or xhigh.",
    "max_reasoning_tokens": "Limit of such reasoning in tokens, for providers that support one.",
}

SERVER = {
    "model_name": "The name under which the server has the model.",
    "server_type": "Type of the server: vllm, sglang or openai.",
    "tokenizer_name": "Tokenizer of the server's model. With none, the tokenizer is env.tokenizer_name.",
    "api_key": "API key of the server. Prefer api_key_env.",
    "base_url": "Address of the server. It usually ends in /v1.",
    "num_max_requests_at_once": "Largest number of training requests in progress at the same time.",
    "num_requests_for_eval": "Largest number of evaluation requests in progress at the same time.",
    "n_kwarg_is_ignored": "Whether the server makes a single completion for each request, whatever `n` says. "
    "The first request usually finds this out.",
}

UNUSED = ("max_eval_workers", "custom_thinking_prompt", "rolling_buffer_length", "health_check")
"""Settings of Atropos that are accepted and have no effect here."""

INTRODUCTION = """\
# Configuration

<!-- Written by `python docs/make_configuration.py`; do not edit. -->

Set a setting with a flag, `--env.NAME VALUE`, or in a YAML file under `env:`. Flags override the file
(`--config my_run.yaml`), and the file overrides the defaults. A misspelt name is an error that suggests the nearest
name. [`reasoning_gym_environment/configs/`](../reasoning_gym_environment/configs) has complete files.
`reasoning-gym-env serve --help` prints all settings.

The column *class* has the defaults of `ReasoningGymEnvConfig`, which are mostly the defaults of the original
environment. The column *commands* has the value that `serve`, `process` and `evaluate` start with, if it differs. Lists
can be written as YAML lists or as text with commas, and mappings as YAML or as JSON. To leave a setting
without a value, write `none` on the command line or `null` in YAML.
"""

COMMANDS = """\
## Where the commands differ

`process` and `evaluate` turn `use_wandb` on by default. `process` starts with
{}.
"""

SERVERS = """\
## Inference servers

Set these with `--openai.NAME VALUE`, or in YAML under `openai:`. For several servers, write a list in YAML; each entry
starts with the defaults. Except for `api_key_env`, the names are the names of Atropos. `server_type` is `vllm`
or `sglang`. The type `openai` works with `process` and `evaluate` only.

For an API key, set `api_key_env` to the name of an environment variable that holds the key. Without this setting,
`openai` servers use the variable `OPENAI_API_KEY`. The flag `--openai.api_key` works too, but all users of the machine
can read it in the list of processes. The files of a run, including the files of wandb, never contain a key.
"""

HEAD = "| setting | class | commands | meaning |\n|---|---|---|---|\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/configuration.md and data/names.json from the settings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    options = parser.parse_args()
    expected = {PAGE: page(), NAMES: names()}
    if options.check:
        return int(any(text != path.read_text(encoding="utf-8") for path, text in expected.items()))
    for path, text in expected.items():
        path.write_text(text, encoding="utf-8")
    return 0


def names() -> str:
    """Return the names of tasks and settings as JSON."""
    document = {
        "source": "written by docs/make_configuration.py",
        "reasoning_gym_version": reasoning_gym_source.load().version,
        "tasks": dict(sorted(categories_in_registry().items())),
        "settings": [asdict(described(setting)) for setting in settings_of(ReasoningGymEnv)],
    }
    return json.dumps(document, indent=1) + "\n"


def described(setting: Setting) -> Setting:
    """Return the setting with the description of this script, if it has one."""
    section, _, name = setting.name.rpartition(".")
    here = SERVER if section == "openai" else ATROPOS
    description = "It has no effect here." if name in UNUSED else here.get(name, setting.description)
    return replace(setting, description=description)


def page() -> str:
    """Return the whole page."""
    config, servers = ReasoningGymEnv.config_init()
    fields = ReasoningGymEnvConfig.model_fields
    groups = [*ours(), ("Settings of Atropos", [name for name in BaseEnvConfig.model_fields if name not in UNUSED])]
    parts = [INTRODUCTION]
    for title, names in groups:
        rows = [row(name, fields[name], getattr(config, name), ATROPOS.get(name)) for name in names]
        parts.append(f"## {title}\n\n{HEAD}{''.join(rows)}")
    usual, process = (start_values(command, ReasoningGymEnv)["env"] for command in ("serve", "process"))
    changed = [f"`{name}` {shown(process[name])}" for name in usual if usual[name] != process[name]]
    parts.append(COMMANDS.format(", ".join(changed)))
    rows = [
        row(name, field, getattr(servers[0], name, None), SERVER.get(name))
        for name, field in Server.model_fields.items()
        if name not in UNUSED
    ]
    unused = ", ".join(f"`{name}`" for name in UNUSED)
    parts.append(f"{SERVERS}\n{HEAD}{''.join(rows)}")
    parts.append(f"Atropos also has these settings, which have no effect here: {unused}.\n")
    return "\n".join(parts)


def ours() -> list[tuple[str, list[str]]]:
    """Return our own settings by heading. The headings are the comments in these classes."""
    groups: list[tuple[str, list[str]]] = []
    comment = ""
    own = ReasoningGymEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys()
    classes = (TasksSettings, SamplingSettings, EvaluationSettings, ReasoningGymEnvConfig)
    for line in "".join(map(inspect.getsource, classes)).splitlines():
        if found := re.match(r"    # (.+?)\.?$", line):
            comment = found[1]
        elif (found := re.match(r"    (\w+): .* = ", line)) and found[1] in own:
            if comment or not groups:
                groups.append((comment or "Settings", []))
            groups[-1][1].append(found[1])
            comment = ""
    return groups


def row(name: str, field: Any, start: Any, meaning: str | None = None) -> str:
    """Return one line of a table: name, default of the class, start value of the commands if it differs, meaning."""
    default = field.get_default(call_default_factory=True)
    commands = "" if start == default else shown(start)
    text = " ".join((meaning or field.description or "").split()).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{name}` | {shown(default)} | {commands} | {text} |\n"


def shown(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return "none"
    if isinstance(value, (list, dict, str)) and not value:
        return "empty"
    return f"`{','.join(map(str, value)) if isinstance(value, list) else value}`"


if __name__ == "__main__":
    sys.exit(main())
