"""The script for SLURM with stand-ins for SLURM's commands: what it starts where, with which arguments and settings.

`make test-slurm` runs the script on a real SLURM, and shows how a job is requeued and how it closes. These tests need
no SLURM, and show what three nodes with real programs do not: several trainer nodes, and a step that fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testing.support import PATIENCE_S, parsed_command_line

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "configs" / "slurm.sbatch"

WAITS = "while true; do sleep 0.05; done"
STAND_INS = {
    # Starts the command once for each task. A step's name serves as its number.
    "srun": """
        options=("$@")
        for option in "$@"; do
            case $option in --*) shift ;; *) break ;; esac
            case $option in --ntasks=*) tasks=${option#*=} ;; --job-name=*) name=${option#*=} ;; esac
        done
        printf '%s\\n' "${options[@]}" > "$SEEN/srun-$name"
        pids=()
        for (( task = 0; task < tasks; task++ )); do
            SLURM_PROCID=$task "$@" &
            pids+=($!)
            echo "$!" >> "$SEEN/tasks-$name"
        done
        code=0
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        exit $code""",
    "squeue": "for name in run-api inference trainer environments batch; do echo 77.$name $name; done",
    "scancel": """
        echo "scancel $*" >> "$SEEN/slurm"
        case $2 in 77) files=("$SEEN"/tasks-*) ;; *) files=("$SEEN/tasks-${2#77.}") ;; esac
        cat "${files[@]}" | while read -r pid; do kill -TERM "$pid" 2> /dev/null; done
        true""",
    "scontrol": "[[ $* == 'show hostnames n[1-4]' ]] && seq -f n%g 4",
    "reasoning-gym-env": f"""
        trap 'echo closed >> "$SEEN/closed"; exit 143' TERM
        printf '%s\\n' "$@" > "$SEEN/environment-$SLURM_PROCID"
        echo serve >> "$SEEN/environments"
        {WAITS}""",
    "run-api": WAITS,
    "vllm": f"""
        printf '%s\\n' "$@" > "$SEEN/server-$SLURM_PROCID"
        {WAITS}""",
}
EDITED = {"TRAINER_NODES": "2", "ENVIRONMENTS": "2"}

ALL_RUN = "until (( $(cat $SEEN/environments $SEEN/server-* 2> /dev/null | grep -c serve) == 4 )); do sleep 0.05; done"
"""A trainer waits for this, because an environment that gets a signal before it listens does not close."""

Submit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """`submit(TRAINER=...)`: the script as a person would edit it, started on four nodes, and ended with the test."""
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    seen_folder = tmp_path / "seen"
    seen_folder.mkdir()
    (commands / "activate").write_text(f'PATH="{commands}:$PATH"\n')
    for name, body in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    started = []

    def start(**values: str) -> subprocess.Popen[str]:
        text = SCRIPT.read_text(encoding="utf-8")
        for name, value in {**EDITED, **values}.items():
            line = f"{name}='{value}'"
            text, count = re.subn(rf"^{name}=('[^']*'|\S+)", lambda _, s=line: s, text, flags=re.MULTILINE)
            assert count == 1, f"{name} is not among the values to edit"
        environment = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-4]", "SEEN": str(seen_folder)}
        environment["PATH"] = f"{commands}:{os.environ['PATH']}"
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            **streams,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # The script may have ended by itself; its group is there as long as one of its children is.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def seen(folder: Path, name: str) -> list[str]:
    """The lines that the stand-ins wrote to a file."""
    path = folder / "seen" / name
    return path.read_text().splitlines() if path.exists() else []


def test_every_step_is_on_its_nodes_with_its_arguments_and_the_job_ends_as_the_trainer_does(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = "$ATROPOS_URL $INFERENCE_URLS $MASTER_ADDR"
    process = submit(TRAINER=f"{ALL_RUN}; echo {addresses} > $SEEN/addresses; exit 3")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, output
    assert "trainer ended with exit code 3" in output
    assert seen(tmp_path, "addresses") == ["http://n1:8000 http://n3:9001,http://n4:9001 n1"]
    # The environments close first.
    assert seen(tmp_path, "slurm") == ["scancel --signal=TERM 77.environments", "scancel --signal=TERM 77"]
    assert seen(tmp_path, "closed") == ["closed", "closed"]
    on_nodes = {"run-api": (1, 1, "n1"), "inference": (2, 2, "n3,n4"), "trainer": (2, 2, "n1,n2")}
    # In one srun: each of several would count its tasks from 0, and all instances would draw the same items.
    for step, (nodes, tasks, names) in {**on_nodes, "environments": (1, 2, "n1")}.items():
        assert {f"--nodes={nodes}", f"--ntasks={tasks}", f"--nodelist={names}"} <= set(seen(tmp_path, f"srun-{step}"))
    server = ["serve", "Qwen/Qwen3-4B", "--host", "0.0.0.0", "--port", "9001", "--tensor-parallel-size", "8"]
    for number in (0, 1):
        assert seen(tmp_path, f"server-{number}")[: len(server)] == server
        command, *arguments = seen(tmp_path, f"environment-{number}")
        config, servers = parsed_command_line([command, *arguments], monkeypatch)
        assert (command, config.wandb_name) == ("serve", f"reasoning_gym_think_{number}")
        assert config.data_dumps_dir == str(tmp_path / "runs" / "77" / "data_dumps" / str(number))
        assert config.steps_per_eval == (25 if number == 0 else 0)
        assert config.instance_id is None, "SLURM_PROCID names the item stream"
        assert (config.rollout_server_url, config.tokenizer_name) == ("http://n1:8000", "Qwen/Qwen3-4B")
        assert (config.complexity_mode, config.min_batch_allocation, config.use_wandb) == ("curriculum", None, False)
        assert [server.base_url for server in servers] == [f"http://n{n}:9001/v1" for n in (3, 4)]
        assert {(server.server_type, server.model_name) for server in servers} == {("vllm", "Qwen/Qwen3-4B")}


def test_a_step_that_fails_ends_the_job_and_is_named(submit: Submit) -> None:
    process = submit(TRAINER=WAITS, INFERENCE="false")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "inference ended with exit code 1" in output
