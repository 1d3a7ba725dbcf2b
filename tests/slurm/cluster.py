"""A real SLURM with three nodes on this machine, for as long as a test needs it.

    with slurm_cluster(folder) as cluster:
        job = cluster.submit(script)
        wait_for(lambda: cluster.state(job) == "COMPLETED", "the job")

`slurmctld`, `munged` and one `slurmd` for each node have their own configuration, ports, sockets and state in the
folder. They run in a separate mount namespace and a separate process namespace. So the machine's own SLURM and hosts
file are not touched, and no process outlives the block, even if the test is killed.

The nodes are n1 to n3, at 127.0.0.11 to 127.0.0.13. The names resolve inside the jobs only. Each node claims
four processors and eight GPUs, which are stand-ins: SLURM hands them out, and nothing can compute on them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testing.support import child_environment, free_port, wait_for

NODES = {"n1": "127.0.0.11", "n2": "127.0.0.12", "n3": "127.0.0.13"}
CPUS_PER_NODE = 4
GPUS_PER_NODE = 8
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "unshare")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# The machine has fewer processors than its nodes claim, and no control groups that SLURM could use.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
# A loaded machine needs time to close its programs before SLURM kills them.
KillWait=300
GresTypes=gpu
# Jobs share nodes unless they are exclusive, as on most clusters.
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
"""
NODE = (
    "NodeName={name} NodeHostname={hostname} NodeAddr={address} Port={port} CPUs={cpus} RealMemory=8000 Gres=gpu:{gpus}"
)
PARTITION = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"


def missing_requirement() -> str | None:
    """One sentence that names the step which the user must take before a cluster can start; None if there is none."""
    if os.geteuid() != 0:
        return "Only root can start a SLURM for a test: run `make test-slurm` as root."
    missing = [program for program in PROGRAMS if shutil.which(program, path=_search_path()) is None]
    if missing:
        names = ", ".join(missing)
        return f"The test needs a real SLURM, and {names} not found: run `apt-get install -y slurm-wlm munge` first."
    return None


@dataclass(frozen=True)
class Cluster:
    """A running cluster, whose configuration and logs are in `folder`."""

    folder: Path

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """The output of one of SLURM's commands. Raises CalledProcessError if it fails; its error output is shown."""
        environment = _environment(self.folder)
        done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def submit(self, script: Path) -> str:
        """The number of the new job, which is submitted from the script's folder."""
        return self.run("sbatch", "--parsable", script.name, cwd=script.parent)

    def describe(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`, by name."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").split()
        return dict(word.split("=", maxsplit=1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        return self.describe(job)["JobState"]

    def idle_nodes(self) -> int:
        return int(self.run("sinfo", "--noheader", "--states=idle", "--format=%D") or 0)


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose nodes are all idle. `folder` is empty, and holds the daemons' logs afterwards.

    Raises RuntimeError if something is missing, or if SLURM does not start.
    """
    if missing := missing_requirement():
        raise RuntimeError(missing)
    _write_configuration(folder)
    script = Path(__file__).with_name("start_cluster.sh")
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*namespaces, "bash", str(script), str(folder), *NODES]
    log = folder / "start_cluster.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=_environment(folder), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield _when_idle(process, folder, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _when_idle(process: subprocess.Popen[bytes], folder: Path, log: Path) -> Cluster:
    def are_idle() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"SLURM did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")
        try:
            return Cluster(folder).idle_nodes() == len(NODES)
        except subprocess.CalledProcessError:
            # The controller does not answer yet.
            return False

    wait_for(are_idle, f"SLURM's nodes to be idle; the daemons' logs are in {folder}")
    return Cluster(folder)


def _write_configuration(folder: Path) -> None:
    hostname = socket.gethostname().partition(".")[0]
    lines = [CONFIGURATION.format(folder=folder, hostname=hostname, port=free_port())]
    for name, address in NODES.items():
        sizes = {"cpus": CPUS_PER_NODE, "gpus": GPUS_PER_NODE}
        lines.append(NODE.format(name=name, hostname=hostname, address=address, port=free_port(), **sizes))
    (folder / "slurm.conf").write_text("\n".join([*lines, PARTITION, ""]))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")
    names = {"localhost": "127.0.0.1", hostname: "127.0.0.1", **NODES}
    (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in names.items()))
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))


def _environment(folder: Path) -> dict[str, str]:
    return child_environment(SLURM_CONF=str(folder / "slurm.conf"), PATH=_search_path())


def _search_path() -> str:
    """Root's path lacks the folder of the daemons after `su`."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
