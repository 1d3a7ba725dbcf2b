"""Which files a process may touch: Landlock, the kernel's sandbox for ordinary users.

A ruleset names rights; whatever it handles and no rule grants is denied, for this process and its children,
for good. What a kernel can handle is told by its ABI version, 0 where there is no Landlock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable

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


def abi_version() -> int:
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
