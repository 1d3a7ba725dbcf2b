"""The settings of one of Atropos' commands, put together as Atropos will, and checked before it starts any work."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.server_manager import ServerManagerConfig
from atroposlib.utils.cli import extract_namespace, get_double_dash_flags, merge_dicts

from ..errors import EnvironmentSetupError
from ..report.group_page import place_of_page
from ..utils.paths import check_file, check_folder

if TYPE_CHECKING:
    from ..config import ReasoningGymEnvConfig


logger = logging.getLogger(__name__)

RESULTS = ("metrics.json", "samples.jsonl")
ENV = f"{ENV_NAMESPACE}{NAMESPACE_SEP}"
OPENAI = f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}"


def start_values(command: str, environment: Any) -> dict[str, Any]:
    """What a command of this environment class starts from: setting (`env.seed`, `openai.base_url`) -> value."""
    config, servers = environment.config_init()
    values = {f"{ENV}{name}": value for name, value in config.model_dump().items()}
    values |= {f"{OPENAI}{name}": value for name, value in servers[0].model_dump().items()}
    if command == "process":
        # As Atropos has it.
        values[f"{ENV}ensure_scores_are_not_same"] = False
        values[f"{ENV}include_messages"] = True
        values[f"{ENV}data_path_to_save_groups"] = f"data/{environment.name}.jsonl"
    return values


def merged_config(command: str, environment: Any, file: Mapping[str, Any]) -> ReasoningGymEnvConfig:
    """The settings under which the command will run: what it starts from, the YAML file's, the flags'."""
    config: ReasoningGymEnvConfig = environment.env_config_cls(
        **merge_dicts(
            extract_namespace(start_values(command, environment), ENV),
            file.get(ENV_NAMESPACE, {}),
            extract_namespace(get_double_dash_flags(), ENV),
        )
    )
    return config


def check_servers(file: Mapping[str, Any]) -> None:
    """Raise EnvironmentSetupError for servers that cannot be reached as they are described, here and by anyone."""
    flags = get_double_dash_flags()
    named = file.get(OPENAI_NAMESPACE, {})
    for server in [*(named if isinstance(named, list) else [named]), extract_namespace(flags, OPENAI)]:
        address = server.get("base_url")
        if address and not str(address).startswith(("http://", "https://")):
            raise EnvironmentSetupError(
                f"openai.base_url: expected an address such as http://localhost:9004/v1, got {address!r}."
            )
    slurm = ServerManagerConfig(slurm=flags.get("slurm", file.get("slurm", False))).slurm
    if slurm and "SLURM_JOB_NODELIST" not in os.environ:
        raise EnvironmentSetupError(
            "slurm is on, but this is no SLURM job (SLURM_JOB_NODELIST is not set): start it with sbatch or srun, or "
            "name the servers with openai.base_url."
        )


def check_settings(command: str, config: ReasoningGymEnvConfig) -> None:
    """Raise EnvironmentSetupError for settings that are valid, but not with this command or on this machine."""
    if command == "process" and config.total_steps < 1:
        raise EnvironmentSetupError(
            f"env.total_steps is the number of groups to write: process needs at least 1, got {config.total_steps}."
        )
    _check_outputs(config, has_page=command == "process" and config.include_messages)
    if command == "evaluate" and config.data_dir_to_save_evals is not None:
        _warn_of_earlier_results(Path(config.data_dir_to_save_evals))


def _check_outputs(config: ReasoningGymEnvConfig, *, has_page: bool) -> None:
    if (groups := config.data_path_to_save_groups) is not None:
        # Atropos makes its folder, and takes another name for a file that is there.
        check_folder("The folder of env.data_path_to_save_groups", Path(groups).parent)
        check_file("env.data_path_to_save_groups", groups)
        if has_page:
            place_of_page(Path(groups))
    if config.data_dir_to_save_evals is not None:
        check_folder("env.data_dir_to_save_evals", config.data_dir_to_save_evals)
    if config.dump_rollouts or config.dump_failed_rollouts:
        check_folder("env.data_dumps_dir", config.data_dumps_dir)


def _warn_of_earlier_results(folder: Path) -> None:
    if any((folder / name).exists() for name in RESULTS):
        logger.warning("%s holds the results of an earlier evaluation: they will be replaced.", folder)
