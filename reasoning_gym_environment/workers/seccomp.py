"""Which system calls a verifier may make: a seccomp filter, written as a BPF program.

A verifier computes; it needs memory, clocks and one file descriptor to write its result to. Everything
that reaches outside (files, sockets, processes, signals, new executable memory) ends the process. Opening
a file only fails, because Python tries that on its own when an import misses.

The filter depends on the machine: system calls are numbered differently on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from dataclasses import dataclass

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
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(arch.seccomp), ctypes.c_long(_SET_MODE_FILTER), ctypes.c_long(0))
    if libc.syscall(*arguments, ctypes.byref(prog)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {errno.errorcode.get(code, code)}")


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
