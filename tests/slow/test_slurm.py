"""The script for SLURM, run with stand-ins for SLURM's commands: what it writes, starts, passes on and ends with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ..support import PATIENCE_S, parsed_command_line, wait_for

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "reasoning_gym_environment" / "configs" / "slurm.sbatch"

WAITS = "while true; do sleep 0.05; done"
STAND_INS = {
    # Starts the command once for each task and, as srun does, answers SIGTERM by killing them.
    "srun": """
        pids=(); trap 'kill -KILL "${pids[@]}"; exit 137' TERM
        options=("$@")
        for option in "$@"; do
            case $option in --*) shift ;; *) break ;; esac
            case $option in --ntasks=*) tasks=${option#*=} ;; --job-name=*) name=${option#*=} ;; esac
        done
        printf '%s\\n' "${options[@]}" > "$SEEN/srun-$name"
        for (( task = 0; task < tasks; task++ )); do
            SLURM_PROCID=$task "$@" & pids+=($!); echo $! >> "$SEEN/tasks"
        done
        code=0
        for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
        exit $code""",
    "scancel": """
        echo "scancel $*" >> "$SEEN/slurm"
        while read -r pid; do kill -TERM "$pid" 2> /dev/null; done < "$SEEN/tasks"
        true""",
    "scontrol": """
        case $1 in
            show) [[ $3 == 'n[1-4]' ]] && seq -f n%g 4 ;;
            *) echo "scontrol $*" >> "$SEEN/slurm" ;;
        esac""",
    "reasoning-gym-env": f"""
        trap 'echo closed >> "$SEEN/closed"; exit 143' TERM
        printf '%s\\n' "$@" > "$SEEN/environment-$SLURM_PROCID"
        echo >> "$SEEN/environments"
        {WAITS}""",
    **dict.fromkeys(("run-api", "server"), WAITS),
}
EDITED = {"INFERENCE": "server", "TRAINER_NODES": "2", "ENVIRONMENTS": "2", "REQUEUE_AT_TIME_LIMIT": "yes"}
TASKS = 7
"""run-api, and two each of servers, trainers and environments."""

ALL_RUN = (
    f"until (( $(cat $SEEN/environments | wc -l) == 2 && $(wc -l < $SEEN/tasks) == {TASKS} )); do sleep 0.05; done"
)
"""Stand-ins that are told to close before they listen would not."""

Submit = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """`submit(TRAINER=...)`: the script as a person would edit it, begun on four nodes, and ended with the test."""
    commands, begun = tmp_path / ".venv" / "bin", []
    (tmp_path / "seen").mkdir()
    commands.mkdir(parents=True)
    (commands / "activate").write_text(f'PATH="{commands}:$PATH"\n')
    for name, body in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)

    def begin(**values: str) -> subprocess.Popen[str]:
        text = SCRIPT.read_text(encoding="utf-8")
        for name, value in {**EDITED, **values}.items():
            line = f"{name}='{value}'"
            text, count = re.subn(rf"^{name}=('[^']*'|\S+)", lambda _, s=line: s, text, flags=re.MULTILINE)
            assert count == 1, f"{name} is not among the values to edit"
        environment = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-4]", "SEEN": str(tmp_path / "seen")}
        environment["PATH"] = f"{commands}:{os.environ['PATH']}"
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=tmp_path, env=environment, start_new_session=True, **streams
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        # The script may have ended by itself; its group is there as long as one of its children is.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def seen(folder: Path, name: str) -> list[str]:
    """What the stand-ins wrote to a file."""
    path = folder / "seen" / name
    return path.read_text().splitlines() if path.exists() else []


def test_every_step_is_on_its_nodes_with_its_arguments_and_the_job_ends_as_the_trainer_does(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = submit(TRAINER=f"{ALL_RUN}; echo $ATROPOS_URL $INFERENCE_URLS $MASTER_ADDR > $SEEN/addresses; exit 3")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3 and "trainer ended with exit code 3" in output, output
    assert seen(tmp_path, "addresses") == ["http://n1:8000 http://n3:9001,http://n4:9001 n1"]
    assert (seen(tmp_path, "slurm"), seen(tmp_path, "closed")) == (["scancel --signal=TERM 77"], ["closed", "closed"])
    on_nodes = {"run-api": (1, 1, "n1"), "inference": (2, 2, "n3,n4"), "trainer": (2, 2, "n1,n2")}
    # In one srun: each of several would count its tasks from 0, and all instances would draw the same items.
    for step, (nodes, tasks, names) in {**on_nodes, "environments": (1, 2, "n1")}.items():
        assert {f"--nodes={nodes}", f"--ntasks={tasks}", f"--nodelist={names}"} <= set(seen(tmp_path, f"srun-{step}"))
    for number in (0, 1):
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


@pytest.mark.parametrize(
    ("told", "slurm"), [("by its own clock", ["scancel --signal=TERM 77", "scontrol requeue 77"]), ("by scancel", [])]
)
def test_the_steps_are_told_to_close_once_shortly_before_the_time_is_up_or_by_slurm(
    submit: Submit, tmp_path: Path, told: str, slurm: list[str]
) -> None:
    process = submit(TRAINER=f"{ALL_RUN}; touch $SEEN/all-run; {WAITS}")
    wait_for((tmp_path / "seen" / "all-run").exists, "the tasks")
    process.send_signal(signal.SIGTERM if told == "by scancel" else signal.SIGUSR1)
    for pid in seen(tmp_path, "tasks") if told == "by scancel" else ():
        os.kill(int(pid), signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, output
    assert (seen(tmp_path, "slurm"), seen(tmp_path, "closed")) == (slurm, ["closed", "closed"])


def test_a_step_that_fails_ends_the_job_and_is_named(submit: Submit) -> None:
    process = submit(TRAINER=WAITS, INFERENCE="false")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "inference ended with exit code 1" in output) == (1, True), output
