"""Which commands use a setting. Their `--help` shows it, and `--help-all` shows all settings.

A setting says so where it is declared, `seed: Annotated[int, TRAINING] = 42`. Without such a mark, the `--help` of
every command shows it. The table INHERITED has the settings that only Atropos declares.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class ShownBy:
    """The commands whose `--help` shows a setting."""

    commands: tuple[str, ...]


ALL = ShownBy(("serve", "process", "evaluate"))
SERVE = ShownBy(("serve",))
PROCESS = ShownBy(("process",))
TRAINING = ShownBy(("serve", "process"))
EVALUATIONS = ShownBy(("serve", "evaluate"))
LIMITED = ShownBy(("process", "evaluate"))
RARELY_SET = ShownBy(())

INHERITED = {
    # The environment.
    "max_num_workers": RARELY_SET,
    "max_eval_workers": RARELY_SET,
    "max_num_workers_per_node": RARELY_SET,
    "steps_per_eval": SERVE,
    "eval_handling": SERVE,
    "eval_limit_ratio": RARELY_SET,
    "inference_weight": RARELY_SET,
    "batch_size": SERVE,
    "max_batches_offpolicy": RARELY_SET,
    "num_rollouts_to_keep": TRAINING,
    "num_rollouts_per_group_for_logging": TRAINING,
    "ensure_scores_are_not_same": RARELY_SET,
    "data_path_to_save_groups": PROCESS,
    "data_dir_to_save_evals": EVALUATIONS,
    "min_items_sent_before_logging": RARELY_SET,
    "include_messages": RARELY_SET,
    "min_batch_allocation": SERVE,
    "worker_timeout": RARELY_SET,
    "thinking_mode": RARELY_SET,
    "reasoning_effort": RARELY_SET,
    "max_reasoning_tokens": RARELY_SET,
    "custom_thinking_prompt": RARELY_SET,
    # An inference server.
    "rolling_buffer_length": RARELY_SET,
    "n_kwarg_is_ignored": RARELY_SET,
    "health_check": RARELY_SET,
}
"""The settings of Atropos that some `--help` does not show."""


def is_shown(name: str, field: FieldInfo, command: str) -> bool:
    """Whether the `--help` of this command shows the setting."""
    for mark in field.metadata:
        if isinstance(mark, ShownBy):
            return command in mark.commands
    return command in INHERITED.get(name, ALL).commands
