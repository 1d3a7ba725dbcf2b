"""Which system calls get through the filter, run by a small BPF machine, so that it is tested for both machines."""

from __future__ import annotations

import errno

import pytest

from reasoning_gym_environment.workers.confinement import (
    AARCH64,
    ALLOW,
    ERRNO,
    KILL_PROCESS,
    X86_64,
    Arch,
    build_filter,
)

pytestmark = pytest.mark.parametrize("arch", [pytest.param(X86_64, id="x86_64"), pytest.param(AARCH64, id="aarch64")])

# Numbers from the kernel's own tables, on x86-64 and arm64, so that a slip in the filter's cannot hide itself.
HARMLESS = (
    "read 0 63, write 1 64, close 3 57, munmap 11 215, brk 12 214, rt_sigreturn 15 139, madvise 28 233, futex 202 98, "
    "exit_group 231 94, getrandom 318 278, clock_gettime 228 113"
)
FORBIDDEN = (
    "socket 41 198, connect 42 203, sendto 44 206, clone 56 220, clone3 435 435, execve 59 221, execveat 322 281, "
    "kill 62 129, tgkill 234 131, ptrace 101 117, prctl 157 167, prlimit64 302 261, unlinkat 263 35, "
    "renameat2 316 276, pwrite64 18 68, writev 20 66, sendfile 40 71, dup 32 23, dup3 292 24, memfd_create 319 279, "
    "process_vm_writev 311 271, pidfd_open 434 434, io_uring_setup 425 425, bpf 321 280, userfaultfd 323 282, "
    "pkey_mprotect 329 288, shmget 29 194"
)
HIDDEN = "openat 257 56, openat2 437 437, newfstatat 262 79, statx 332 291, ioctl 16 29"


def verdict(arch: Arch, number: int, *args: int, audit: int | None = None) -> int:
    """What the filter returns for this system call."""
    words = {0: number & 0xFFFFFFFF, 4: arch.audit if audit is None else audit}
    for index in range(6):
        value = args[index] if index < len(args) else 0
        words[16 + 8 * index], words[20 + 8 * index] = value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF
    program, position, accumulator = build_filter(arch), 0, 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            accumulator = words[operand]
        else:
            tests = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            position += if_true if tests[code] else if_false


def numbers(arch: Arch, table: str) -> dict[str, int]:
    rows = (row.split() for row in table.split(","))
    return {name: int(on_x86 if arch is X86_64 else on_arm) for name, on_x86, on_arm in rows}


@pytest.mark.parametrize(
    ("table", "expected"),
    [(HARMLESS, ALLOW), (FORBIDDEN, KILL_PROCESS), (HIDDEN, ERRNO | errno.ENOENT)],
    ids=["computing is allowed", "reaching outside ends the process", "files seem not to exist"],
)
def test_each_system_call_gets_its_verdict(arch: Arch, table: str, expected: int) -> None:
    calls = numbers(arch, table)
    assert {name: verdict(arch, number) for name, number in calls.items()} == dict.fromkeys(calls, expected)


def test_every_unlisted_number_and_every_other_machine_ends_the_process(arch: Arch) -> None:
    listed = {*arch.harmless, *arch.hidden, arch.mmap, arch.mprotect}
    assert {verdict(arch, number) for number in range(600) if number not in listed} == {KILL_PROCESS}
    read = numbers(arch, HARMLESS)["read"]
    for audit in (0x40000003, 0x40000028, AARCH64.audit if arch is X86_64 else X86_64.audit):
        assert verdict(arch, read, audit=audit) == KILL_PROCESS
    assert verdict(arch, 0x40000000 | read) == KILL_PROCESS, "numbers of x32"


def test_memory_can_be_mapped_but_not_made_executable(arch: Arch) -> None:
    for number in (arch.mmap, arch.mprotect):
        assert verdict(arch, number, 0, 4096, 3) == ALLOW
        assert verdict(arch, number, 0, 4096, 7) == KILL_PROCESS
        assert verdict(arch, number, 0, 4096, 4) == KILL_PROCESS
