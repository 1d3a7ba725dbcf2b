"""Names of the original environment, of Atropos and of its trainers that have no effect here, and what to use instead.

A subclass that was written for the original may override such a method, or read such an attribute. Overriding one is a
warning at the start, because it would be ignored in silence. Reading one is an AttributeError that names the remedy.
A setting without effect is a warning.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_REWRITE_COMPLETIONS = "override score(), and rewrite the last message of each rollout before super().score()"
_OWN_REWARDS = "override score(), and change the scores of what super().score() returns"
_CHOICE_OF_TASKS = "set include_tasks, exclude_tasks or task_modules"
_DIFFICULTY = "set task_overrides or complexity_mode, or register a curriculum with reasoning-gym (task_modules)"
_LEVELS = "set complexity_mode and curriculum_target_accuracy; get_curriculum_stats() shows the levels"
_DUMPS = "override handle_send_to_api() or postprocess_histories(), which see each group"
_LOOP = "`serve` has its own loop; override get_next_item(), collect_trajectories() or handle_send_to_api()"
_API = "the client of run-api is in trainer/run_api.py; override handle_send_to_api()"

METHODS = {
    # of the original environment
    "_extract_final_answer": _REWRITE_COMPLETIONS,
    "_score_answer_with_both_formats": _OWN_REWARDS,
    "_get_task_names": _CHOICE_OF_TASKS,
    "_validate_discovered_tasks": _CHOICE_OF_TASKS,
    "_initialize_complexity_mapping": _DIFFICULTY,
    "_get_complexity_params_for_task": _DIFFICULTY,
    "_create_dataset_with_complexity": _DIFFICULTY,
    "_get_task_complexity_level": _LEVELS,
    "_update_task_performance": _LEVELS,
    "_adjust_task_complexity": _LEVELS,
    "_save_failed_group_for_debugging": _DUMPS,
    "_save_rollouts_to_jsonl": _DUMPS,
    "_save_failed_rollouts_to_jsonl": _DUMPS,
    # of Atropos' BaseEnv
    "collect_trajectory": "override collect_trajectories()",
    "add_train_workers": _LOOP,
    "handle_env": _LOOP,
    "env_step_checks": _LOOP,
    "get_status": _API,
    "register_env": _API,
    "get_server_info": _API,
    "_register_env": _API,
    "_send_scored_data_to_api": _API,
}
"""Methods that nothing here calls."""

ATTRIBUTES = {
    "task_complexity_levels": _LEVELS,
    "task_performance_history": _LEVELS,
    "task_curricula": _LEVELS,
    "task_group_counts": _LEVELS,
    "rollouts_to_save_buffer": _DUMPS,
    "failed_rollouts_to_save_buffer": _DUMPS,
    "processed_item_count": _DUMPS,
    "failed_processed_item_count": _DUMPS,
    "save_file_batch_num": _DUMPS,
    "failed_save_file_batch_num": _DUMPS,
}
"""Attributes of the original environment that do not exist here."""

SETTINGS_WITHOUT_EFFECT = {
    # Flags of Atropos' commands.
    "max_n_completions": "the first request to a server shows how many completions it returns per request",
    "proxy_url": "requests go directly to the servers under openai",
    # Configs of tinker-atropos.
    "tinker": "only the trainer reads this section; its inference server needs openai.server_type sglang",
    "openai.weight": "the server with the most free places gets the next request; limit a server with "
    "openai.num_max_requests_at_once",
    # Teacher distillation, which other environments inherit.
    "teacher": "this environment has no teacher model",
    "env.teacher_enabled": "this environment has no teacher model",
    "env.teacher_top_k": "this environment has no teacher model",
    # Published configs of other environments.
    "env.start_tok_length": "use env.max_token_length",
    "openai.max_tokens": "use env.max_token_length",
    "openai.temperature": "use env.train_temperature and env.eval_temperature",
    "openai.top_p": "use env.train_top_p",
}
"""Names that published configs and scripts contain, with an explanation for the user. Atropos ignores them silently in
a file. Here they cause a warning instead of an error, so that the file of a trainer also works for the environment.

A name belongs here only if ignoring it sends no request elsewhere: the sections `server` and `server_configs` of some
environments name inference servers, so they stay errors.
"""


def warn_of_unused_overrides(cls: type, ours: type) -> None:
    """Warn of each method of METHODS that the environment class `cls` overrides. `ours` is its base class here."""
    for name, remedy in METHODS.items():
        if getattr(cls, name, None) is not getattr(ours, name, None):
            logger.warning(
                "%s.%s() is not used: this package does not call it. Instead: %s.",
                cls.__name__,
                name,
                remedy,
            )


def remedy_of(name: str) -> str | None:
    """The replacement of a method or attribute of the original environment, or None for another name."""
    return METHODS.get(name) or ATTRIBUTES.get(name)
