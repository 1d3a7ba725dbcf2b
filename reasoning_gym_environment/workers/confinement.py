"""How a process locks itself in before it reads an answer, and what of that this machine offers.

    worker   dies with its parent, gains no privileges, reads library folders only
    child    all of that, and: no files, no system calls but those listed below, bounded memory and CPU

Layers are detected by trying them in a throw-away process, not by asking for version numbers. A child that
cannot put up a layer which the worker found must not go on: every function here raises OSError then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


RESULT_FD = 3
"""Where a child finds the pipe for its results; every higher descriptor is closed."""
WORKER_MAX_FDS = 128
CHILD_MEMORY_BYTES = 512 << 20
"""How much a child may allocate beyond what it inherited."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class Layers:
    """The kernel layers in use; `landlock` is the ABI version, 0 for none."""

    seccomp: bool = False
    landlock: int = 0
    limits: bool = False
    parent_death: bool = False

    @property
    def is_confined(self) -> bool:
        """Whether code in a child is cut off from files, sockets, processes and signals."""
        return self.seccomp

    def describe(self) -> str:
        """What holds and, by name, what does not."""
        landlock_name = f"Landlock ABI {self.landlock}"
        named = {
            "seccomp": self.seccomp,
            landlock_name if self.landlock else "Landlock": bool(self.landlock),
            "rlimits": self.limits,
            "parent-death signal": self.parent_death,
        }
        on = [name for name, active in named.items() if active]
        off = [name for name, active in named.items() if not active]
        return " + ".join(on or ["no kernel layer"]) + (f"; not active: {', '.join(off)}" if off else "")


def detect() -> Layers:
    """What this machine offers. Forks; call it while the process has one thread and no file rules yet."""
    gains_nothing = no_new_privileges()
    abi = landlock_abi() if gains_nothing else 0
    arch = current_arch() if gains_nothing else None
    return Layers(
        seccomp=arch is not None and _holds_in_a_child(lambda: _seccomp_blocks(arch)),
        landlock=abi if abi and _holds_in_a_child(lambda: _landlock_blocks(abi)) else 0,
        limits=True,
        parent_death=_LINUX,
    )


def no_new_privileges() -> bool:
    """Give up set-uid programs for good, which seccomp and Landlock require. False where unknown."""
    return _LINUX and _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that started this process ends. Exits at once if it has ended already."""
    if _LINUX and not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(errno.EPERM, "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)


def confine_worker(layers: Layers, folders: Iterable[str]) -> None:
    """Reading beneath `folders` only, few descriptors, and first in line when memory runs out."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = WORKER_MAX_FDS if hard == resource.RLIM_INFINITY else min(WORKER_MAX_FDS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if layers.landlock:
        allow_reading_only(layers.landlock, folders)


def volunteer_for_oom_kill() -> None:
    """Ask to be killed before the trainer when memory runs out; without /proc there is no such request."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


class MemoryMeter:
    """Reads how much memory this process uses, also after Landlock has closed /proc."""

    def __init__(self) -> None:
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:
            self._statm = None

    def address_space_bytes(self) -> int | None:
        """Bytes mapped now; None where /proc is missing, as on macOS."""
        return None if self._statm is None else self._pages(self._statm, 0)

    def resident_bytes(self) -> int:
        """Bytes of it in memory now; 0 where /proc is missing."""
        return 0 if self._statm is None else self._pages(self._statm, 1)

    @staticmethod
    def _pages(statm: int, column: int) -> int:
        return int(os.pread(statm, 128, 0).split()[column]) * resource.getpagesize()


class ChildConfinement:
    """Everything a child does to itself, prepared in the worker so that a fork costs little."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self._meter = MemoryMeter()
        self._worker = os.getpid()
        self._arch = current_arch() if layers.seccomp else None
        self._filter = build_filter(self._arch, RESULT_FD) if self._arch else []

    def enter(self, result_fd: int, cpu_seconds: int) -> None:
        """Lock this freshly forked child in for good; only RESULT_FD leads out. Raises OSError."""
        if self.layers.parent_death:
            die_with_parent(self._worker)
        mapped = self._meter.address_space_bytes()
        # Requests of later groups, with their right answers, arrive on a descriptor the worker holds.
        os.dup2(result_fd, RESULT_FD)
        os.closerange(RESULT_FD + 1, WORKER_MAX_FDS)
        if self.layers.landlock:
            deny_everything(self.layers.landlock)
        if self.layers.limits:
            _limit(mapped, cpu_seconds)
        if self._arch is not None:
            install_filter(self._filter, self._arch)


def _limit(mapped_bytes: int | None, cpu_seconds: int) -> None:
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0}
    limits[resource.RLIMIT_CPU] = cpu_seconds
    if mapped_bytes is not None:
        limits[resource.RLIMIT_AS] = mapped_bytes + CHILD_MEMORY_BYTES
    # The last one, because it forbids every further descriptor.
    limits[resource.RLIMIT_NOFILE] = 0
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bounded, bounded))


def _prctl(option: int, value: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(word) for word in (value, 0, 0, 0)]
    return int(libc.prctl(ctypes.c_int(option), *words)) == 0


def _holds_in_a_child(probe: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if probe() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _landlock_blocks(abi: int) -> bool:
    deny_everything(abi)
    return _open_root_fails(errno.EACCES)


def _seccomp_blocks(arch: Arch | None) -> bool:
    assert arch is not None
    install_filter(build_filter(arch, RESULT_FD), arch)
    return _open_root_fails(errno.ENOENT)


def _open_root_fails(expected: int) -> bool:
    try:
        os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        return error.errno == expected
    return False
