"""The kernel's two filters for ordinary users: seccomp, for system calls, and Landlock, for files.

Both hold for this process and its children, for good. Neither is taken on trust: confinement.py tries them out.

**seccomp** says which system calls a verifier may make, written as a BPF program. A verifier computes; it needs
memory, clocks and one file descriptor to write its result to. Everything that reaches outside (files, sockets,
processes, signals, new executable memory) ends the process. Opening a file only fails, because Python tries that
on its own when an import misses. System calls are numbered differently on x86-64 and arm64.

**Landlock** says which files a process may touch. A ruleset names rights; whatever it handles and no rule grants is
denied. What a kernel can handle is told by its ABI version, 0 where there is no Landlock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass

# --- seccomp ---

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, operand): the fields of `struct sock_filter`."""

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
KILL_PROCESS = 0x80000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_PROT_EXEC = 4
_X32_BIT = 0x40000000
_SET_MODE_FILTER = 1


@dataclass(frozen=True)
class Arch:
    """A machine the filter knows: its audit number and the numbers of the system calls used below."""

    audit: int
    seccomp: int
    write: int
    mmap: int
    mprotect: int
    ioctl: int
    harmless: tuple[int, ...]
    paths: tuple[int, ...]
    has_x32: bool = False


# Order of `harmless`: read close fstat lseek munmap brk rt_sigaction rt_sigprocmask rt_sigreturn mremap
# madvise getpid gettid exit exit_group gettimeofday futex clock_gettime clock_getres clock_nanosleep
# nanosleep getrandom sched_yield restart_syscall sigaltstack getrusage times. Each reaches only this
# process. Order of `paths`: openat openat2 newfstatat statx faccessat faccessat2 readlinkat getcwd, and
# on x86-64 the older open stat lstat access readlink.
X86_64 = Arch(
    audit=0xC000003E,
    seccomp=317,
    write=1,
    mmap=9,
    mprotect=10,
    ioctl=16,
    harmless=(
        *(0, 3, 5, 8, 11, 12, 13, 14, 15, 25, 28, 39, 186, 60, 231, 96, 202, 228, 229, 230, 35),
        *(318, 24, 219, 131, 98, 100),
    ),
    paths=(257, 437, 262, 332, 269, 439, 267, 79, 2, 4, 6, 21, 89),
    has_x32=True,
)
AARCH64 = Arch(
    audit=0xC00000B7,
    seccomp=277,
    write=64,
    mmap=222,
    mprotect=226,
    ioctl=29,
    harmless=(
        *(63, 57, 80, 62, 215, 214, 134, 135, 139, 216, 233, 172, 178, 93, 94, 169, 98, 113, 114, 115, 101),
        *(278, 124, 128, 132, 165, 153),
    ),
    paths=(56, 437, 79, 291, 48, 439, 78, 17),
)
_ARCHS = {"x86_64": X86_64, "amd64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


def current_arch() -> Arch | None:
    """This machine, or None where the filter does not apply: not Linux, another machine, 32-bit Python."""
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return None
    return _ARCHS.get(platform.machine().lower())


def build_filter(arch: Arch, result_fd: int) -> list[Instruction]:
    """The program for `arch`. Writing is allowed to `result_fd`, 1 and 2 only."""
    program: list[Instruction] = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        *_unless_equal(arch.audit, KILL_PROCESS),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if arch.has_x32:
        program += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL_PROCESS)]
    for number in arch.harmless:
        program += _if_equal(number, ALLOW)
    for number in arch.paths:
        program += _if_equal(number, ERRNO | errno.ENOENT)
    program += _if_equal(arch.ioctl, ERRNO | errno.ENOTTY)
    program += _section(arch.write, _write_rule(result_fd))
    for number in (arch.mmap, arch.mprotect):
        program += _section(number, _no_new_code_rule())
    return [*program, (_RETURN, 0, 0, KILL_PROCESS)]


def install_filter(program: list[Instruction], arch: Arch) -> None:
    """Bind this process to `program` for good. Needs no_new_privs. Raises OSError if refused."""
    instructions = (_SockFilter * len(program))(*[_SockFilter(*step) for step in program])
    prog = _SockFprog(len(program), instructions)
    _syscall(arch.seccomp, _SET_MODE_FILTER, 0, ctypes.byref(prog))


class _SockFilter(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_SockFilter)))


def _if_equal(value: int, action: int) -> list[Instruction]:
    return [(_JUMP_EQUAL, 0, 1, value), (_RETURN, 0, 0, action)]


def _unless_equal(value: int, action: int) -> list[Instruction]:
    return [(_JUMP_EQUAL, 1, 0, value), (_RETURN, 0, 0, action)]


def _section(number: int, rule: list[Instruction]) -> list[Instruction]:
    """Run `rule`, which must return, for system call `number`; skip it for the others."""
    return [(_JUMP_EQUAL, 0, len(rule), number), *rule]


def _write_rule(result_fd: int) -> list[Instruction]:
    # A descriptor is an int: the kernel ignores the upper half of the register, and so do we.
    rule: list[Instruction] = [(_LOAD, 0, 0, _OFFSET_ARGS)]
    for descriptor in (result_fd, 1, 2):
        rule += _if_equal(descriptor, ALLOW)
    return [*rule, (_RETURN, 0, 0, KILL_PROCESS)]


def _no_new_code_rule() -> list[Instruction]:
    protection = _OFFSET_ARGS + 2 * 8
    return [
        (_LOAD, 0, 0, protection),
        (_JUMP_IF_BITS, 0, 1, _PROT_EXEC),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_RETURN, 0, 0, ALLOW),
    ]


# --- Landlock ---

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_FS_ABI_1 = (1 << 13) - 1
_FS_ADDED = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""ABI -> the file right it brought: moving files between folders, truncating, device ioctls."""
_NET_SINCE, _NET_ALL = 4, 3
_SCOPE_SINCE, _SCOPE_ALL = 6, 3


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_abi() -> int:
    """The kernel's Landlock ABI: 0 where it is missing, disabled or not permitted."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return max(_syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG), 0)
    except OSError:
        return 0


def deny_everything(abi: int) -> None:
    """No file, no TCP port, no process outside. Open descriptors keep working. Raises OSError."""
    _restrict(abi, readable=())


def allow_reading_only(abi: int, folders: Iterable[str]) -> None:
    """Reading and executing beneath `folders`, nothing else; those that do not exist are skipped.

    Networking and signals are left as they are: this is for a worker, which talks to its parent.
    """
    _restrict(abi, readable=folders, files_only=True)


def _restrict(abi: int, readable: Iterable[str], files_only: bool = False) -> None:
    handled = _FS_ABI_1
    for since, right in _FS_ADDED.items():
        handled |= right if abi >= since else 0
    attr = _RulesetAttr(fs=handled)
    if not files_only:
        attr.net = _NET_ALL if abi >= _NET_SINCE else 0
        attr.scoped = _SCOPE_ALL if abi >= _SCOPE_SINCE else 0
    # An older kernel refuses a structure larger than the one it knows.
    size = 24 if abi >= _SCOPE_SINCE else 16 if abi >= _NET_SINCE else 8
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attr), size, 0)
    try:
        for folder in readable:
            _allow_beneath(ruleset, folder)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_beneath(ruleset: int, folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        beneath = _PathBeneathAttr(allowed=_EXECUTE | _READ_FILE | _READ_DIR, parent_fd=descriptor)
        _syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(descriptor)


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {errno.errorcode.get(code, code)}")
    return result
