"""The script for SLURM, run with stand-ins for SLURM's commands: what it writes, starts, passes on and ends with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        tasks=1; options=("$@")
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
            show) [[ $3 == 'n[1-9]' ]] && seq -f n%g "$NODES" ;;
            *) echo "scontrol $*" >> "$SEEN/slurm" ;;
        esac""",
    "reasoning-gym-env": """
        trap 'echo closed >> "$SEEN/closed"; exit 143' TERM
        printf '%s\\n' "$@" > "$SEEN/.new-$SLURM_PROCID"
        mv "$SEEN/.new-$SLURM_PROCID" "$SEEN/environment-$SLURM_PROCID"
        """
    + WAITS,
    **dict.fromkeys(("run-api", "server"), WAITS),
}
TASKS = 6
"""With three nodes and two environments: run-api, two servers, the trainer, the environments."""


def once_all_run(command: str) -> str:
    """A trainer that does it when every task has started: stand-ins are not told to close before they listen."""
    there = f"-e $SEEN/environment-0 && -e $SEEN/environment-1 && $(wc -l < $SEEN/tasks) -ge {TASKS}"
    return f"'until [[ {there} ]]; do sleep 0.05; done; {command}'"


class Job:
    """The script in a folder of its own, submitted to the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = folder / "seen"
        self.run_dir = folder / "runs" / "77"
        self.seen.mkdir()
        commands = folder / ".venv" / "bin"
        commands.mkdir(parents=True)
        (commands / "activate").write_text(f'PATH="{commands}:$PATH"\n')
        for name, body in STAND_INS.items():
            path = commands / name
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)

    def edited(self, **values: str) -> Path:
        """The script as a person would edit it: `NAME=value`, in one line or quoted over several."""
        text = SCRIPT.read_text(encoding="utf-8")
        for name, value in {"INFERENCE": "'server'", **values}.items():
            text, count = re.subn(rf"^{name}=('[^']*'|\S+)", lambda _, s=f"{name}={value}": s, text, flags=re.MULTILINE)
            assert count == 1, f"{name} is not among the values to edit"
        path = self.folder / "my_run.sbatch"
        path.write_text(text)
        return path

    @contextmanager
    def running(self, *, nodes: int = 3, **values: str) -> Iterator[subprocess.Popen[str]]:
        environment = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-9]", "NODES": str(nodes)}
        environment |= {"PATH": f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}", "SEEN": str(self.seen)}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command, options = ["bash", str(self.edited(**values))], {"text": True, "start_new_session": True}
        process = subprocess.Popen(command, cwd=self.folder, env=environment, **streams, **options)
        try:
            yield process
        finally:
            # The script may have ended by itself; its group is there as long as one of its children is.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def wait_for_environments(self, count: int) -> list[list[str]]:
        """The arguments of each instance, in the order of SLURM_PROCID."""
        files = [self.seen / f"environment-{number}" for number in range(count)]
        wait_for(lambda: all(file.exists() for file in files), "the environments")
        return [file.read_text().splitlines() for file in files]

    def lines(self, name: str) -> list[str]:
        """What the stand-ins wrote to a file."""
        path = self.seen / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_every_step_is_on_its_nodes_and_the_real_command_line_takes_what_each_instance_is_started_with(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job.running(nodes=4, TRAINER=f"'{WAITS}'", TRAINER_NODES="2", ENVIRONMENTS="2"):
        started = job.wait_for_environments(2)
        for step in ("run-api", "inference", "trainer"):
            wait_for((job.seen / f"srun-{step}").exists, step)
    on_nodes = {"run-api": (1, 1, "n1"), "inference": (2, 2, "n3,n4"), "trainer": (2, 2, "n1,n2")}
    # In one srun: each of several would count its tasks from 0, and all instances would draw the same items.
    for step, (nodes, tasks, names) in {**on_nodes, "environments": (1, 2, "n1")}.items():
        assert {f"--nodes={nodes}", f"--ntasks={tasks}", f"--nodelist={names}"} <= set(job.lines(f"srun-{step}"))
    for number, arguments in enumerate(started):
        assert arguments[0] == "serve"
        config, resolved = parsed_command_line(arguments, monkeypatch)
        assert config.wandb_name == f"reasoning_gym_think_{number}"
        assert config.data_dumps_dir == str(job.run_dir / "data_dumps" / str(number))
        assert config.steps_per_eval == (25 if number == 0 else 0)
        assert config.instance_id is None, "SLURM_PROCID names the item stream"
        assert (config.rollout_server_url, config.tokenizer_name) == ("http://n1:8000", "Qwen/Qwen3-4B")
        assert (config.complexity_mode, config.min_batch_allocation, config.use_wandb) == ("curriculum", None, False)
        assert [server.base_url for server in resolved] == [f"http://n{n}:9001/v1" for n in (3, 4)]
        assert {(server.server_type, server.model_name) for server in resolved} == {("vllm", "Qwen/Qwen3-4B")}


def test_the_trainer_knows_all_addresses_and_the_job_ends_with_its_exit_code_after_the_environments(job: Job) -> None:
    addresses = "echo $ATROPOS_URL $INFERENCE_URLS $MASTER_ADDR > $SEEN/addresses"
    with job.running(TRAINER=once_all_run(f"{addresses}; exit 3"), ENVIRONMENTS="2") as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, output
    assert job.lines("addresses") == ["http://n1:8000 http://n2:9001,http://n3:9001 n1"]
    assert "trainer ended with exit code 3" in output
    assert (job.lines("slurm"), job.lines("closed")) == (["scancel --signal=TERM 77"], ["closed", "closed"])


@pytest.mark.parametrize(
    ("told", "slurm"),
    [("by its own clock", ["scancel --signal=TERM 77", "scontrol requeue 77"]), ("by scancel", [])],
)
def test_the_steps_are_told_to_close_once_shortly_before_the_time_is_up_or_by_slurm(
    job: Job, told: str, slurm: list[str]
) -> None:
    values = {"TRAINER": f"'{WAITS}'", "ENVIRONMENTS": "2", "REQUEUE_AT_TIME_LIMIT": "yes"}
    with job.running(**values) as process:
        job.wait_for_environments(2)
        tasks = wait_for(lambda: (pids := job.lines("tasks"))[TASKS - 1 :] and pids, "the tasks")
        process.send_signal(signal.SIGTERM if told == "by scancel" else signal.SIGUSR1)
        for pid in tasks if told == "by scancel" else ():
            os.kill(int(pid), signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143, output
    assert (job.lines("slurm"), job.lines("closed")) == (slurm, ["closed", "closed"])


def test_a_step_that_fails_ends_the_job_and_is_named(job: Job) -> None:
    with job.running(TRAINER=f"'{WAITS}'", INFERENCE="'false'") as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "inference ended with exit code 1" in output
