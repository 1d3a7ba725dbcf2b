"""The shipped script on a real SLURM with three nodes, all of them on this machine: `make test-slurm`.

Root's rights, and Debian's `slurm-wlm` and `munge`, are needed: without them these tests fail and say so. Stand-ins
serve for the inference server and the trainer; SLURM, run-api and the environments are real. A test edits the
script as a user does, in the two blocks at its top.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..support import wait_for
from .cluster import GPUS_PER_NODE, NODES, Cluster, missing_requirement, slurm_cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "reasoning_gym_environment" / "configs" / "slurm.sbatch"
BATCHES = 3
"""So many are awaited of each start."""

FOREVER = 10_000
"""A trainer of so many steps ends only when it is told to."""


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
        """What the script itself has written, at all of its starts."""
        return "".join(path.read_text() for path in self.folder.glob(f"*-{self.number}.log"))

    def step_log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def batches(self) -> list[dict[str, Any]]:
        """The batches that the trainer has taken, at all of its starts."""
        path = self.run_dir / "trainer" / "batches.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def dumped(self, instance: int) -> list[dict[str, Any]]:
        """The groups in an instance's dumps. Fails if a line is not complete."""
        paths = sorted((self.run_dir / "data_dumps" / str(instance)).glob("*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for the condition. Fails at once, with the logs, if the job has ended."""

        def is_so_or_has_ended() -> bool:
            return bool(condition()) or self.has_ended()

        try:
            wait_for(is_so_or_has_ended, what)
            assert condition(), f"the job ended before {what}"
        except AssertionError:
            self.show()
            raise

    def wait_until_ended(self) -> dict[str, str]:
        """What SLURM says of the job, once its last process has ended."""
        wait_for(self.has_ended, f"job {self.number} to end")
        wait_for(lambda: self.cluster.idle_nodes() == len(NODES), "the nodes to be idle again")
        return self.cluster.describe(self.number)

    def has_ended(self) -> bool:
        return self.cluster.state(self.number) not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED"}

    def wait_for_batches(self, instances: set[int], after: int = 0) -> None:
        """Wait for BATCHES more than `after`, with groups of all these instances (run-api's numbers)."""

        def have_come() -> bool:
            batches = self.batches()[after:]
            return len(batches) >= BATCHES and instances <= {i for batch in batches for i in batch["instances"]}

        self.wait(have_come, f"batches of the instances {instances}")

    def show(self) -> None:
        """Print all logs, which pytest shows if the test fails."""
        print(self.log())  # noqa: T201
        for path in sorted((self.run_dir / "logs").glob("*.log")):
            print(f"--- {path.name}\n{path.read_text('utf-8', 'replace')[-3000:]}")  # noqa: T201


Submit = Callable[..., Job]


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path, tokenizer_dir: Path) -> Iterator[Submit]:
    """`submit(is_exclusive=True, steps=3, ENVIRONMENTS=2)`: a job that has been submitted, and ends with the test."""
    jobs = []

    def begin(*, is_exclusive: bool, steps: int = FOREVER, exit_code: int = 0, **values: Any) -> Job:
        python = f"cd {shlex.quote(str(ROOT))}; exec {shlex.quote(sys.executable)} -m"
        edited: dict[str, Any] = {
            "VENV": f'"{sys.prefix}"',
            "MODEL": f'"{tokenizer_dir}"',
            "INFERENCE": f"""'bash -c "{python} tests.slurm.inference_server $SLURMD_NODENAME $INFERENCE_PORT $MODEL"'""",
            "TRAINER": f"""'{python} tests.slurm.trainer "$RUN_DIR/trainer" {steps} {exit_code}'""",
            **values,
        }
        script = tmp_path / "my_run.sbatch"
        script.write_text(edit(SCRIPT.read_text("utf-8"), edited, is_exclusive), "utf-8")
        job = Job(cluster, tmp_path, cluster.submit(script))
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        cluster.run("scancel", job.number)
        job.wait_until_ended()


def edit(text: str, values: dict[str, Any], is_exclusive: bool) -> str:
    """The script with other values in its second block, and without `--exclusive` in its first if it is unwanted."""
    for name, value in values.items():
        text, count = re.subn(
            rf"^{name}=('[^']*'|\S+)", lambda _, line=f"{name}={value}": line, text, flags=re.MULTILINE
        )
        assert count == 1, f"{name} is not among the values to edit"
    settings = "  include_tasks: chain_sum\n  num_eval_samples_per_task: 2\n"
    text, count = re.subn(r"^  group_size: 8\n", f"  group_size: 4\n{settings}", text, flags=re.MULTILINE)
    assert count == 1, "group_size is not among the settings to edit"
    if not is_exclusive:
        text, count = re.subn(r"^#SBATCH --exclusive\n", "", text, flags=re.MULTILINE)
        assert count == 1, "--exclusive is not among the options to edit"
    return text


def item_indices(groups: list[dict[str, Any]]) -> list[int]:
    return [group["index"] for group in groups]


def assert_closed_cleanly(job: Job, instances: int) -> None:
    """Each instance has said that it is done, and the cluster has no process of the job."""
    for instance in range(instances):
        log = job.step_log(f"environments-{instance}")
        assert "Traceback" not in log, log[-3000:]
    assert job.cluster.processes_of_jobs() == {}


def test_an_exclusive_job_trains_and_ends_as_its_trainer_does(submit: Submit) -> None:
    job = submit(is_exclusive=True, steps=BATCHES, exit_code=3)
    job.wait(job.has_ended, "the trainer to end")
    described = job.wait_until_ended()
    job.show()
    assert (described["JobState"], described["ExitCode"]) == ("FAILED", "3:0")
    assert "trainer ended with exit code 3" in job.log()
    batches = job.batches()
    assert [batch["step"] for batch in batches] == list(range(BATCHES))
    promised = {
        "ATROPOS_URL": "http://n1:8000",
        "INFERENCE_URLS": "http://n2:9001,http://n3:9001",
        "MASTER_ADDR": "n1",
        "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in range(GPUS_PER_NODE)),
        "SLURM_PROCID": "0",
    }
    assert promised.items() <= batches[0].items()
    assert_closed_cleanly(job, 1)


def test_instances_share_a_node_without_exclusive_resume_when_requeued_and_close_on_scancel(submit: Submit) -> None:
    job = submit(is_exclusive=False, ENVIRONMENTS=2)
    job.wait_for_batches({0, 1})
    job.cluster.run("scontrol", "requeue", job.number)
    job.wait(lambda: int(job.cluster.describe(job.number)["Restarts"]) == 1, "the job to be queued again")
    job.show()
    print(job.cluster.describe(job.number), job.cluster.processes_of_jobs())
    before = [item_indices(job.dumped(instance)) for instance in (0, 1)]
    print(before)
    job.wait_for_batches({0, 1}, after=len(job.batches()))
    job.show()
    job.cluster.run("scancel", job.number)
    described = job.wait_until_ended()
    assert described["JobState"] == "CANCELLED"
    assert_closed_cleanly(job, 2)
    job.show()
    print([item_indices(job.dumped(instance)) for instance in (0, 1)])
    assert False
