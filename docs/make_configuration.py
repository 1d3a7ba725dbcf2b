"""Writes docs/configuration.md from the settings themselves: python docs/make_configuration.py [--check]

Names, defaults and meanings (the docstrings) come from the config classes, groups from the comments in them. Atropos
describes its own settings shortly, and some of them mean something else here, so those meanings are below. `--check`
writes nothing and exits with 1 if the file is not what would be written; `tests/docs` does the same.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from atroposlib.envs.base import BaseEnvConfig

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.atropos.command_line import Server, start_values
from reasoning_gym_environment.settings import EvaluationSettings, SamplingSettings, TasksSettings

PAGE = Path(__file__).with_name("configuration.md")

ATROPOS = {
    "max_num_workers": "Groups in progress at once; -1: max_num_workers_per_node for each inference server.",
    "max_num_workers_per_node": "Groups in progress at once for each inference server.",
    "steps_per_eval": "Training steps between two evaluations during serve; 0: none.",
    "eval_handling": "What evaluation does to training: STOP_TRAIN, LIMIT_TRAIN or NONE.",
    "eval_limit_ratio": "Share of the workers that keep training under LIMIT_TRAIN.",
    "inference_weight": "Weight of this environment among those that share a trainer.",
    "batch_size": "Sequences in a training batch; the trainer's own number replaces it.",
    "max_batches_offpolicy": "Batches that may wait in the API's queue before generation pauses.",
    "tokenizer_name": "Tokenizer of the model: a hub name or a local folder; it needs a chat template. "
    "Servers of type openai need none (none).",
    "use_wandb": "Whether to log to wandb.",
    "wandb_name": "Name of the environment at the API and of the wandb run.",
    "num_rollouts_to_keep": "Groups shown in the table train/rollouts.",
    "num_rollouts_per_group_for_logging": "Rollouts of a group shown there; -1: all.",
    "ensure_scores_are_not_same": "Drop groups whose scores are all equal (process keeps them).",
    "data_path_to_save_groups": "JSONL file for every group; process always writes one.",
    "data_dir_to_save_evals": "Folder for evaluation results.",
    "min_items_sent_before_logging": "Groups that must have been sent before a step is logged.",
    "include_messages": "Send the conversation along with the tokens (process does).",
    "min_batch_allocation": "Share of every batch reserved for this environment.",
    "worker_timeout": "Seconds after which a group in progress is given up; -1: never.",
    "thinking_mode": "Ask a provider with separate reasoning to use it (openai servers).",
    "reasoning_effort": "How much of it: none, minimal, low, medium, high or xhigh.",
    "max_reasoning_tokens": "Or a limit in tokens, for providers that take one.",
}

UNUSED = ("max_eval_workers", "custom_thinking_prompt", "rolling_buffer_length", "health_check")
"""Settings of Atropos that are accepted and do nothing here."""

INTRODUCTION = """\
# Configuration

<!-- Written by `python docs/make_configuration.py`; do not edit. -->

Every setting can be a flag, `--env.NAME VALUE`, or stand in a YAML file under `env:`. Flags win over the file
(`--config my_run.yaml`), and the file over the defaults. A misspelt name is an error that names the nearest right one.
Ready files are in [`reasoning_gym_environment/configs/`](../reasoning_gym_environment/configs).
`reasoning-gym-env serve --help` prints what users set, and `--help-all` all of this.

*Class* is the default of `ReasoningGymEnvConfig`, mostly the original environment's. *Commands* is what `serve`,
`process` and `evaluate` start from instead (`config_init`), where that differs. What takes several names accepts a
YAML list or text with commas. What takes a mapping accepts a YAML mapping or JSON; `task_weights` also `name=number`
with commas. What may be without a value is unset by `none` on the command line, by `null` in YAML.
"""

COMMANDS = """\
## Where the commands differ

`process` and `evaluate` switch `use_wandb` on unless told otherwise. `process` starts with
{}.
"""

SERVERS = """\
## Inference servers

`--openai.NAME VALUE`, or in YAML under `openai:`. Several servers are a list there; each begins with the defaults.
Names and meanings are Atropos' own, `api_key_env` apart. `server_type` is `vllm`, `sglang`
or `trl`; `openai` serves `process` and `evaluate` only.

A key is best given as the name of an environment variable that holds it, `api_key_env`; an `openai` server without a
key gets that in `OPENAI_API_KEY`. `--openai.api_key` works too, but all users of the machine can read it in its list of
processes. No file that a run writes holds a key, wandb's included.
"""

HEAD = "| setting | class | commands | meaning |\n|---|---|---|---|\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/configuration.md from the settings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")
    options = parser.parse_args()
    text = page()
    if options.check:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The whole page."""
    config, servers = ReasoningGymEnv.config_init()
    fields = ReasoningGymEnvConfig.model_fields
    groups = [*ours(), ("Atropos' own", [name for name in BaseEnvConfig.model_fields if name not in UNUSED])]
    parts = [INTRODUCTION]
    for title, names in groups:
        rows = [row(name, fields[name], getattr(config, name), ATROPOS.get(name)) for name in names]
        parts.append(f"## {title}\n\n{HEAD}{''.join(rows)}")
    usual, process = (start_values(command, ReasoningGymEnv)["env"] for command in ("serve", "process"))
    changed = [f"`{name}` {shown(process[name])}" for name in usual if usual[name] != process[name]]
    parts.append(COMMANDS.format(", ".join(changed)))
    rows = [
        row(name, field, getattr(servers[0], name, None))
        for name, field in Server.model_fields.items()
        if name not in UNUSED
    ]
    unused = ", ".join(f"`{name}`" for name in UNUSED)
    parts.append(f"{SERVERS}\n{HEAD}{''.join(rows)}\nAtropos has these too; they change nothing here: {unused}.\n")
    return "\n".join(parts)


def ours() -> list[tuple[str, list[str]]]:
    """The settings that are not Atropos', under the comments that head them in `settings.py` and `config.py`."""
    groups: list[tuple[str, list[str]]] = []
    comment = ""
    own = ReasoningGymEnvConfig.model_fields.keys() - BaseEnvConfig.model_fields.keys()
    classes = (ReasoningGymEnvConfig, TasksSettings, SamplingSettings, EvaluationSettings)
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
    """One line of a table: the class's default, what the commands start from if that differs, the meaning."""
    default = field.get_default(call_default_factory=True)
    commands = "" if start == default else shown(start)
    text = " ".join((meaning or field.description or "").split()).replace("|", "\\|")
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
