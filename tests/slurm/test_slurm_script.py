"""The shipped script on a real SLURM with three nodes, all of them on this machine: `make test-slurm`.

Root's rights, and Debian's `slurm-wlm` and `munge`, are needed: without them these tests fail and say so. Stand-ins
serve for the inference server and the trainer; SLURM, run-api and the environments are real. A test edits the
script as a user does, in the two blocks at its top.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.support import wait_for

from .cluster import NODES, Cluster, missing_requirement, slurm_cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "reasoning_gym_environment" / "configs" / "slurm.sbatch"
BATCHES = 6
"""The tests wait for this number of batches from each start: for some checkpoints of each instance."""

SETTLE_S = 3.0
"""A job has ended if its state still says so after this time."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if missing := missing_requirement():
        pytest.fail(missing, pytrace=False)
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@dataclass
class Job:
    """A submitted copy of the script."""

    cluster: Cluster
    folder: Path
    number: str

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / self.number

    def log(self) -> str:
        """The output of the script itself, from all starts of the job."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{self.number}.log"))

    def step_log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def batches(self) -> int:
        """The number of batches that the trainer has taken, in all starts of the job."""
        path = self.run_dir / "trainer" / "batches.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for the condition. Fails, with the logs, as soon as the job has ended without it."""

        def is_so_or_has_ended() -> bool:
            if condition():
                return True
            if not self.has_ended():
                return False
            # A job that is being queued again passes through other states.
            time.sleep(SETTLE_S)
            return self.has_ended()

        try:
            wait_for(is_so_or_has_ended, what)
            assert condition(), f"the job ended before {what}"
        except AssertionError:
            self.show()
            raise

    def wait_until_ended(self) -> dict[str, str]:
        """Wait until the job and all its processes have ended. Returns SLURM's description of the job."""
        wait_for(self.has_ended, f"job {self.number} to end")
        wait_for(lambda: self.cluster.idle_nodes() == len(NODES), "the nodes to be idle again")
        return self.cluster.describe(self.number)

    def has_ended(self) -> bool:
        return self.cluster.state(self.number) not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"}

    def wait_until_requeued(self, restarts: int) -> None:
        """Wait until the job is pending again, and its last process has ended."""

        def is_requeued() -> bool:
            described = self.cluster.describe(self.number)
            return (int(described["Restarts"]), described["JobState"]) == (restarts, "PENDING")

        self.wait(is_requeued, "the job to be queued again")
        wait_for(lambda: self.cluster.idle_nodes() == len(NODES), "the nodes to be idle again")

    def start_now(self) -> None:
        """Do without the two minutes for which SLURM holds a requeued job back."""
        self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now")

    def set_remaining_minutes(self, minutes: int) -> None:
        """Move the time limit of the running job to so many minutes from now, or up to one minute more."""
        elapsed = self.cluster.run("squeue", "--noheader", f"--jobs={self.number}", "--format=%M")
        *hours, past_minutes, _seconds = elapsed.split(":")
        assert not hours, "a job of these tests takes minutes"
        limit = int(past_minutes) + 1 + minutes
        self.cluster.run("scontrol", "update", f"JobId={self.number}", f"TimeLimit={limit}")

    def wait_for_batches(self, after: int = 0) -> None:
        """Wait for BATCHES batches, not counting the first `after` batches."""
        self.wait(lambda: self.batches() >= after + BATCHES, "batches")

    def show(self) -> None:
        """Print all logs, which pytest shows if the test fails."""
        print(self.log())  # noqa: T201
        for path in sorted((self.run_dir / "logs").glob("*.log")):
            print(f"--- {path.name}\n{path.read_text('utf-8', 'replace')[-3000:]}")  # noqa: T201


Submit = Callable[..., Job]


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path, tokenizer_dir: Path) -> Iterator[Submit]:
    """`submit(ENVIRONMENTS=2)`: a job that has been submitted, and ends with the test."""
    jobs = []

    def begin(**values: Any) -> Job:
        python = f"cd {shlex.quote(str(ROOT))}; exec {shlex.quote(sys.executable)} -m"
        server = f"{python} tests.slurm.inference_server $SLURMD_NODENAME $INFERENCE_PORT $MODEL"
        trainer = f'{python} tests.slurm.trainer "$RUN_DIR/trainer"'
        edited: dict[str, Any] = {
            "VENV": f'"{sys.prefix}"',
            "MODEL": f'"{tokenizer_dir}"',
            "INFERENCE": f"'bash -c \"{server}\"'",
            "TRAINER": f"'{trainer}'",
            **values,
        }
        script = tmp_path / "my_run.sbatch"
        script.write_text(edit(SCRIPT.read_text("utf-8"), edited), "utf-8")
        job = Job(cluster, tmp_path, cluster.submit(script))
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        cluster.run("scancel", job.number)
        job.wait_until_ended()


def edit(text: str, values: dict[str, Any]) -> str:
    """The script with other values in its second block, and without `--exclusive` in its first."""
    for name, value in values.items():
        text, count = re.subn(
            rf"^{name}=('[^']*'|\S+)", lambda _, line=f"{name}={value}": line, text, flags=re.MULTILINE
        )
        assert count == 1, f"{name} is not among the values to edit"
    settings = "  include_tasks: chain_sum\n  num_eval_samples_per_task: 2\n"
    text, count = re.subn(r"^  group_size: 8\n", f"  group_size: 4\n{settings}", text, flags=re.MULTILINE)
    assert count == 1, "group_size is not among the settings to edit"
    text, count = re.subn(r"^#SBATCH --exclusive\n", "", text, flags=re.MULTILINE)
    assert count == 1, "--exclusive is not among the options to edit"
    return text


# --- what is seen of an environment


def first_index_after_resume(log: str) -> int:
    """The index at which the last start has resumed the item stream. Fails if the last start has not resumed."""
    last_start = log.rpartition("Registered with the trajectory API")[2]
    assert "Resumed from" in last_start, log[-5000:]
    found = re.search(r"The next item is (\d+) of stream", last_start)
    assert found, log[-5000:]
    return int(found[1])


def assert_closed(log: str, times: int) -> None:
    """The environment has closed itself so many times, and no worker was lost on the way."""
    assert log.count("Closed after SIGTERM.") == times, log[-5000:]
    assert "Traceback" not in log, log[-5000:]
    assert " died of " not in log, log[-5000:]


def assert_closed_in_order(job: Job, times: int) -> None:
    """The environment closed while run-api could still take its groups and its sign-off."""
    assert_closed(job.step_log("environments-0"), times)
    assert "could not be sent" not in job.step_log("environments-0")
    assert job.step_log("run-api-0").count('/disconnect-env HTTP/1.1" 200') == times


# --- the tests


def test_a_job_closes_in_order_before_its_time_limit_or_on_request(submit: Submit) -> None:
    job = submit(REQUEUE_AT_TIME_LIMIT="yes")
    job.wait_for_batches()
    job.set_remaining_minutes(3)
    job.wait_until_requeued(restarts=1)
    assert "SIGUSR1: closing" in job.log()
    assert "queueing the job again" in job.log()
    assert_closed_in_order(job, times=1)

    batches = job.batches()
    job.start_now()
    job.wait_for_batches(after=batches)
    assert first_index_after_resume(job.step_log("environments-0")) > 0
    job.cluster.run("scancel", "--batch", "--signal=USR2", job.number)
    described = job.wait_until_ended()
    assert (described["Restarts"], described["ExitCode"]) == ("1", "143:0")
    assert_closed_in_order(job, times=2)
