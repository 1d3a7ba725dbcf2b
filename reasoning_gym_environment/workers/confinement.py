"""How a process confines itself before it reads a request, and which kernel layers this machine offers.

    worker   dies with its parent, gains no privileges, reads library folders only, bounded memory
    child    the same, and: only the system calls listed below, less memory

Two of the layers are kernel filters that an ordinary user may install. A process and its children can never remove
them:

    seccomp    a BPF program decides which system calls a verifier may make. A verifier computes. It needs
               memory, clocks and the descriptors that are open, of which one leads outside: the pipe for its results.
               Everything else that reaches outside (files, sockets, processes, signals, new executable memory) ends
               the process. Opening a file only fails, because Python tries that on its own when an import misses.
    Landlock   a ruleset decides which files a worker may access. It denies every right that it handles and that
               no rule grants. The ABI version of the kernel determines which rights it can handle.

The worker does not trust version numbers: it tries each layer in a temporary process. If a child cannot install a layer
that the worker has found, the child must not continue: an OSError is final.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

RESULT_FD = 3
"""The descriptor of the pipe to which a child writes its results. Every higher descriptor is closed."""
WORKER_MAX_FDS = 128
WORKER_MEMORY_BYTES = 2 << 30
"""How much a worker may allocate beyond what it has mapped when it is ready for the first request."""
CHILD_MEMORY_BYTES = 512 << 20
"""How much a child may allocate beyond what it inherited."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_LINUX = sys.platform.startswith("linux")

# --- what this machine offers ---


@dataclass(frozen=True)
class Layers:
    """The kernel layers in use; `landlock` is the ABI version, 0 for none.

    With `seccomp`, code in a child is cut off from files, sockets, processes and signals.
    """

    seccomp: bool = False
    landlock: int = 0

    def describe(self) -> str:
        """The names of the active and of the inactive layers."""
        landlock = f"Landlock ABI {self.landlock}" if self.landlock else "Landlock"
        named = {"seccomp": self.seccomp, landlock: self.landlock > 0}
        on = [name for name, active in named.items() if active]
        off = [name for name, active in named.items() if not active]
        text = " + ".join(on or ["no kernel layer"])
        if off:
            text += f"; not active: {', '.join(off)}"
        return text


def detect() -> Layers:
    """The layers that this machine offers. Forks, so call it while the process has one thread and no file rules."""
    if not no_new_privileges():
        return Layers()
    arch = current_arch()
    if arch is not None:
        program = compiled(build_filter(arch))
        if not _hides_files(partial(install_filter, program, arch), errno.ENOENT):
            arch = None
    abi = landlock_abi()
    if abi and not _hides_files(partial(restrict, abi, []), errno.EACCES):
        abi = 0
    return Layers(seccomp=arch is not None, landlock=abi)


def _hides_files(lock: Callable[[], None], expected: int) -> bool:
    """Whether opening a folder fails with the error `expected` in a child that has called `lock`.

    Raises OSError if the child was killed, so that a lack of memory does not look like a lack of this layer.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            lock()
            code = 0 if _error_of_opening_root() == expected else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        raise OSError("a trial of the sandbox was killed")
    return code == 0


def _error_of_opening_root() -> int | None:
    try:
        os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        return error.errno
    return None


# --- how a worker and a child confine themselves ---


def no_new_privileges() -> bool:
    """Give up set-uid programs permanently, as seccomp and Landlock require. False if the system cannot do this."""
    return _LINUX and _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends. Exits if it has already ended."""
    if _LINUX and not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(errno.EPERM, "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)


def confine_worker(layers: Layers, memory: MemoryMeter, readable: Iterable[str], writable: Iterable[str] = ()) -> None:
    """Limit the memory and the descriptors of this process, and the files that it may open. Raises OSError.

    Both kinds of workers call this function before their first request. `readable` and `writable` are folders. The
    rules for files need Landlock.
    """
    limit(resource.RLIMIT_NOFILE, WORKER_MAX_FDS)
    limit(resource.RLIMIT_CORE, 0)
    if memory.mapped():
        limit(resource.RLIMIT_AS, memory.mapped() + WORKER_MEMORY_BYTES)
    if layers.landlock:
        restrict(layers.landlock, readable, writable)


def limit(kind: int, value: int) -> None:
    """Lower a limit of this process to `value` permanently, unless it is already lower."""
    hard = resource.getrlimit(kind)[1]
    bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bounded, bounded))


def volunteer_for_oom_kill() -> None:
    """Ask the kernel to kill this process before the trainer when memory runs out. Has no effect without /proc."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


class MemoryMeter:
    """Reads how much memory this process has mapped, even after Landlock has closed /proc."""

    def __init__(self) -> None:
        self._statm = -1
        # The file is missing on macOS.
        with contextlib.suppress(OSError):
            self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def mapped(self) -> int:
        """The number of bytes, or 0 if the system does not report it."""
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 128, 0).split()[0]) * resource.getpagesize()


class ChildConfinement:
    """Everything a child does to itself, prepared in the worker so that a fork costs little.

    The child has the rules of the worker for files as well.
    """

    def __init__(self, layers: Layers, memory: MemoryMeter) -> None:
        self._memory = memory
        self._worker = os.getpid()
        self._arch = current_arch() if layers.seccomp else None
        self._filter = compiled(build_filter(self._arch) if self._arch else [])

    def enter(self, result_fd: int) -> None:
        """Confine this new child permanently; only RESULT_FD leads outside. Raises OSError."""
        die_with_parent(self._worker)
        mapped = self._memory.mapped()
        # Requests of later groups, with their right answers, arrive on a descriptor the worker holds.
        os.dup2(result_fd, RESULT_FD)
        os.closerange(RESULT_FD + 1, WORKER_MAX_FDS)
        if mapped:
            limit(resource.RLIMIT_AS, mapped + CHILD_MEMORY_BYTES)
        if self._arch is not None:
            install_filter(self._filter, self._arch)


# --- seccomp ---

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, operand): the fields of `struct sock_filter`."""

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
KILL_PROCESS = 0x80000000

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_IF_BITS = 0x45
_RETURN = 0x06
_OFFSET_NUMBER = 0
_OFFSET_ARCH = 4
_OFFSET_ARGS = 16
_PROT_EXEC = 4
_SET_MODE_FILTER = 1


@dataclass(frozen=True)
class Arch:
    """A machine that the filter supports: its audit number and the numbers of the system calls used below."""

    audit: int
    seccomp: int
    mmap: int
    mprotect: int
    harmless: tuple[int, ...]
    hidden: tuple[int, ...]


# System calls and their numbers on x86-64 and arm64, which differ; arm64 lacks some.
_HARMLESS = (
    "read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, munmap 11 215, brk 12 214, rt_sigaction 13 134, "
    "rt_sigprocmask 14 135, rt_sigreturn 15 139, mremap 25 216, madvise 28 233, getpid 39 172, gettid 186 178, "
    "exit 60 93, exit_group 231 94, gettimeofday 96 169, futex 202 98, clock_gettime 228 113, "
    "clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, getrandom 318 278, sched_yield 24 124, "
    "restart_syscall 219 128, sigaltstack 131 132, getrusage 98 165, times 100 153"
)
"""Each call affects only this process, and the descriptors that it has."""
_HIDDEN = (
    "openat 257 56, openat2 437 437, newfstatat 262 79, statx 332 291, faccessat 269 48, faccessat2 439 439, "
    "readlinkat 267 78, getcwd 79 17, open 2, stat 4, lstat 6, access 21, readlink 89, "
    "ioctl 16 29"
)
"""Each call fails as if there were no such file. Python asks with `ioctl` whether a file is a terminal."""


def _numbers(calls: str, machine: int) -> tuple[int, ...]:
    rows = [call.split()[1:] for call in calls.split(",")]
    return tuple(int(row[machine]) for row in rows if machine < len(row))


X86_64 = Arch(0xC000003E, 317, 9, 10, _numbers(_HARMLESS, 0), _numbers(_HIDDEN, 0))
AARCH64 = Arch(0xC00000B7, 277, 222, 226, _numbers(_HARMLESS, 1), _numbers(_HIDDEN, 1))
_ARCHS = {"x86_64": X86_64, "aarch64": AARCH64}


def current_arch() -> Arch | None:
    """This machine, or None if the filter does not support it: not Linux, or another processor."""
    return _ARCHS.get(platform.machine()) if _LINUX else None


def build_filter(arch: Arch) -> list[Instruction]:
    """The program for `arch`. A call that is not listed ends the process, as does a call of another architecture."""
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, arch.audit),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    for number in arch.harmless:
        program += _if_equal(number, (_RETURN, 0, 0, ALLOW))
    for number in arch.hidden:
        program += _if_equal(number, (_RETURN, 0, 0, ERRNO | errno.ENOENT))
    for number in (arch.mmap, arch.mprotect):
        program += _if_equal(number, *_NO_NEW_CODE)
    return [*program, (_RETURN, 0, 0, KILL_PROCESS)]


def compiled(program: list[Instruction]) -> _SockFprog:
    """`program` as the kernel reads it. Build it before a fork, so that the child has it."""
    size = len(program)
    return _SockFprog(size, (_SockFilter * size)(*[_SockFilter(*step) for step in program]))


def install_filter(program: _SockFprog, arch: Arch) -> None:
    """Bind this process to a compiled program permanently. Needs no_new_privs. Raises OSError if refused."""
    _syscall(arch.seccomp, _SET_MODE_FILTER, 0, ctypes.byref(program))


class _SockFilter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _SockFprog(ctypes.Structure):
    _fields_ = (
        ("len", ctypes.c_ushort),
        ("filter", ctypes.POINTER(_SockFilter)),
    )


def _if_equal(number: int, *rule: Instruction) -> list[Instruction]:
    """Run `rule`, which must return, for system call `number`, and skip it for every other system call."""
    return [(_JUMP_EQUAL, 0, len(rule), number), *rule]


_NO_NEW_CODE: list[Instruction] = [
    (_LOAD, 0, 0, _OFFSET_ARGS + 2 * 8),  # the requested protection
    (_JUMP_IF_BITS, 0, 1, _PROT_EXEC),
    (_RETURN, 0, 0, KILL_PROCESS),
    (_RETURN, 0, 0, ALLOW),
]


# --- Landlock ---

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Executing files, reading files, and listing folders."""
_FS_ABI_1 = (1 << 13) - 1
_FS_ADDED = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""The file right that each ABI version added: moving files between folders, truncating, device ioctls."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64),)


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (
        ("allowed", ctypes.c_uint64),
        ("parent_fd", ctypes.c_int32),
    )


def landlock_abi() -> int:
    """The kernel's Landlock ABI, or 0 if Landlock is missing, disabled or not permitted."""
    try:
        return _syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG) if _LINUX else 0
    except OSError:
        return 0


def restrict(abi: int, readable: Iterable[str], writable: Iterable[str] = ()) -> None:
    """Let this process open files in these folders only. Open descriptors keep working. Raises OSError.

    It may read and execute the files in the folders `readable`, and do anything in the folders `writable`. A folder
    that does not exist, or that this user may not open, is skipped.
    """
    attr = _RulesetAttr(fs=_FS_ABI_1)
    for since, right in _FS_ADDED.items():
        if abi >= since:
            attr.fs |= right
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.sizeof(attr), 0)
    try:
        for folder in readable:
            _allow_beneath(ruleset, folder, _READ)
        for folder in writable:
            _allow_beneath(ruleset, folder, attr.fs)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_beneath(ruleset: int, folder: str, rights: int) -> None:
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        beneath = _PathBeneathAttr(allowed=rights, parent_fd=descriptor)
        _syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(descriptor)


# --- calls of the C library ---


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (number, *arguments)]
    result = int(_libc().syscall(*words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {errno.errorcode.get(code, code)}")
    return result


def _prctl(option: int, value: int) -> bool:
    words = [ctypes.c_ulong(word) for word in (value, 0, 0, 0)]
    return int(_libc().prctl(ctypes.c_int(option), *words)) == 0
