"""Each layer by itself, in a process of its own; and how layers are named."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
HEAD = f"""
import sys, os, errno
sys.path.insert(0, {ROOT!r})
import resource, socket, signal
from reasoning_gym_environment.workers import confinement
from reasoning_gym_environment.workers.confinement import ChildConfinement, Layers, MemoryMeter
layers = confinement.detect()
def attempt(action):
    try:
        action()
        return "done"
    except BaseException as error:
        return errno.errorcode.get(getattr(error, "errno", None), type(error).__name__)
"""
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the layers are Linux's")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=60)


def output(code: str) -> str:
    result = run(code)
    return result.stdout.strip() or result.stderr


@pytest.fixture(scope="module")
def landlock() -> int:
    """The ABI here, for tests of what it does."""
    abi = int(output("print(layers.landlock)"))
    if not abi:
        pytest.skip("no Landlock here")
    return abi


def test_a_worker_reads_and_writes_in_its_folders_alone_and_has_bounded_memory(landlock: int, tmp_path: Path) -> None:
    for folder in ("inside", "own"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("text")
    (tmp_path / "outside").write_text("text")
    code = f"""
inside, own = {str(tmp_path / "inside")!r}, {str(tmp_path / "own")!r}
confinement.confine_worker(layers, MemoryMeter(), [inside, '/no/such/folder'], [own])
print(attempt(lambda: open(inside + '/file')), attempt(lambda: open(inside + '/file', 'w')))
print(attempt(lambda: open(own + '/file', 'w')), attempt(lambda: os.mkdir(own + '/new')))
print(attempt(lambda: open({str(tmp_path / "outside")!r})), attempt(lambda: bytearray(3 << 30)))
"""
    assert output(code).split() == ["done", "EACCES", "done", "done", "EACCES", "MemoryError"]


def test_a_folder_that_the_user_may_not_enter_is_skipped(landlock: int, tmp_path: Path) -> None:
    (tmp_path / "private" / "library").mkdir(parents=True)
    (tmp_path / "private").chmod(0)
    code = f"""
if os.getuid() == 0:
    os.setuid(65534)
print(attempt(lambda: confinement.confine_worker(layers, MemoryMeter(), [{str(tmp_path / "private" / "library")!r}])))
"""
    assert output(code) == "done"


def test_the_memory_of_a_child_is_bounded_without_the_other_layers() -> None:
    code = """
child = ChildConfinement(Layers(), MemoryMeter())
child._worker = os.getppid()
child.enter(os.pipe()[1])
print(attempt(lambda: bytearray(1 << 30)))
"""
    assert output(code) == "MemoryError"


def test_a_busy_child_ends_with_its_parent_and_one_whose_parent_has_gone_at_once() -> None:
    hangs = """
worker = os.getpid()
read, write = os.pipe()
if not os.fork():
    confinement.die_with_parent(worker)
    os.write(write, b"x")
    while True: pass
os.read(read, 1)
os.kill(worker, signal.SIGKILL)
"""
    assert run(hangs).returncode == -signal.SIGKILL, "the child holds the output, which is read to its end"
    assert run("confinement.die_with_parent(1 + os.getppid()); print('alive')").stdout == ""
    assert run("confinement.die_with_parent(os.getppid()); print('alive')").stdout == "alive\n"
