"""The kernel's layers alone: the verifier of `attack_task.py` executes the answer, with no guard between.

Every attack sits between a right and a wrong answer. It must end with the status named here, its
neighbours must get their score, and so must the next group. What leaves the child can only be seen in
`Verdict.detail`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from reasoning_gym_environment.records import Status, Verdict
from reasoning_gym_environment.workers.grader import SandboxGrader

from ..hostile_answers import ATTACK_TASK, ENTRY, RIGHT, SECRET
from ..process_table import linux_only

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel layers are Linux's"),
]
Attack = Callable[[str], Awaitable[Verdict]]
FORGED_RECORD = """
from reasoning_gym_environment.workers.protocol import *
from reasoning_gym_environment.records import Verdict
import os
os.write(3, pack_record(<index>, Verdict(1.0, bare=1.0)))
"""

KILLED = {
    "shell": "import os; os.system('touch <marker>')",
    "subprocess": "import _posixsubprocess, os; os.posix_spawn('/bin/touch', ['touch', '<marker>'], {})",
    "exec": "import os; os.execv('/bin/touch', ['touch', '<marker>'])",
    "fork": "import os; os.fork()",
    "fork bomb": "import os\nwhile True: os.fork()",
    "thread bomb": "import _thread\nwhile True: _thread.start_new_thread(print, ())",
    "raw socket": "import ctypes; ctypes.CDLL(None).socket(2, 1, 0)",
    "kill the worker": "import os; os.kill(os.getpid() - 1, 15)",
    "kill by getppid": "import os; os.kill(os.getppid(), 10)",
    "signal the environment": "import os; os.kill(<parent>, 10)",
    "ptrace": "import ctypes; ctypes.CDLL(None).ptrace(16, <parent>, 0, 0)",
    "read other memory": "import ctypes; ctypes.CDLL(None).process_vm_readv(<parent>, 0, 0, 0, 0, 0)",
    "delete": "import os; os.remove('<victim>')",
    "rename": "import os; os.rename('<victim>', '<marker>')",
    "make a folder": "import os; os.mkdir('<marker>')",
    "new code": "import ctypes; m = ctypes.CDLL(None).mmap; m(None, 4096, 7, 0x22, -1, 0)",
    "io_uring": "import ctypes; ctypes.CDLL(None).syscall(425, 8, 0)",
    "x32 numbers": "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 59, 0, 0, 0)",
    "lift the limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "outlive the worker": "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)",
    "duplicate descriptors": "import os; os.dup2(3, 4)",
    "anonymous file": "import os; os.memfd_create('x')",
    "shared memory": "import ctypes; ctypes.CDLL(None).shmget(1, 4096, 0o1666)",
    "abort": "import os; os.abort()",
}
DIES = {
    "exit": "import os; os._exit(0)",
    "an exception that is no Exception": "raise GeneratorExit",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "write to a descriptor of the worker": "import os; os.write(5, b'x')",
    "garbage results": "import os\nfor _ in range(100): os.write(3, b'x' * 4096)",
    "results of another answer": FORGED_RECORD.replace("<index>", "2"),
    "results of no answer": FORGED_RECORD.replace("<index>", "99"),
    "a byte now and then": "import os, time\nwhile True:\n os.write(3, b'\\x05')\n time.sleep(0.001)",
    "close the pipe": "import os, time\nos.close(3)\nwhile True: pass",
    "half a record, then silence": "import os; os.write(3, b'x' * 10); os._exit(0)",
}
HANGS = {
    "a loop in C": "9**9**9**9",
    "a loop that swallows everything": "while True:\n try:\n  while True: pass\n except BaseException: pass",
    "a lock": "import _thread; lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()",
    "half a record, for ever": "import os\nos.write(3, b'\\x05' * 10)\nwhile True: pass",
}
CONTAINED = {
    "SystemExit": ("raise SystemExit(0)", "SystemExit"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "deep recursion": ("f = lambda: f()\nf()", "RecursionError"),
    "read a file": ("open('/etc/passwd').read()", "FileNotFoundError"),
    "read the environment's secrets": ("open('/proc/<parent>/environ').read()", "FileNotFoundError"),
    "read the worker's memory map": ("open('/proc/self/maps').read()", "FileNotFoundError"),
    "write a file": ("open('<marker>', 'w').write('x')", "FileNotFoundError"),
    "list a folder": ("import os; os.listdir('/')", "FileNotFoundError"),
    "import what is not loaded": ("import turtledemo", "ModuleNotFoundError"),
    "a terminal": ("import os; os.get_terminal_size(1)", "OSError"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("attack")
    victim = folder / "victim"
    victim.write_text("intact")
    return {"marker": folder / "marker", "victim": victim, "parent": os.getpid()}


@pytest.fixture(scope="module", autouse=True)
def signals_received() -> Iterator[list[int]]:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def attack(grader: SandboxGrader, places: dict[str, object]) -> Attack:
    """Gives the verdict on a piece of code, after checking that nothing but its own score was touched."""
    assert "seccomp" in grader.describe().split("not active")[0], grader.describe()
    marker, victim = Path(str(places["marker"])), Path(str(places["victim"]))

    def nothing_was_touched() -> bool:
        return not marker.exists() and victim.read_text() == "intact"

    async def verdict_on(code: str) -> Verdict:
        for name, place in places.items():
            code = code.replace(f"<{name}>", str(place))
        restarts = grader.metrics().get("grading/worker_restarts", 0)
        first, verdict, last = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT, code, "None"])
        assert (first.value, last.value) == (1.0, 0.25), "a neighbour lost its score"
        [following] = await grader.grade(ATTACK_TASK, {}, ENTRY, [RIGHT])
        assert following.value == 1.0
        assert nothing_was_touched()
        assert grader.metrics().get("grading/worker_restarts", 0) == restarts
        return verdict

    return verdict_on


async def test_reaching_outside_is_death(attack: Attack, signals_received: list[int]) -> None:
    for name, code in KILLED.items():
        verdict = await attack(code)
        assert (verdict.status, verdict.value) == (Status.CRASHED, 0.0), name
        assert verdict.detail == "the verifier made a forbidden system call", name
        assert signals_received == [], name


async def test_a_dying_or_lying_child_costs_its_own_answer_only(attack: Attack) -> None:
    for name, code in DIES.items():
        verdict = await attack(code)
        assert (verdict.status, verdict.value) == (Status.CRASHED, 0.0), name


@pytest.mark.parametrize(
    "name", ["a lock", *(pytest.param(name, marks=pytest.mark.slow) for name in HANGS if name != "a lock")]
)
async def test_a_hanging_answer_costs_its_own_deadline(attack: Attack, name: str) -> None:
    verdict = await attack(HANGS[name])
    assert (verdict.status, verdict.value) == (Status.TIMEOUT, 0.0)


@pytest.mark.slow
@linux_only
async def test_an_answer_that_waits_for_a_processor_is_not_late(attack: Attack) -> None:
    # Longer than its deadline of two seconds, which is of processor time. The sleep of Python 3.10 is forbidden.
    verdict = await attack("import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire(True, 3.0)")
    assert (verdict.status, verdict.value) == (Status.SCORED, 0.25)


async def test_what_python_can_raise_stays_this_answers_error(attack: Attack) -> None:
    for name, (code, error) in CONTAINED.items():
        verdict = await attack(code)
        assert verdict.bare is None and error in verdict.detail, name


async def test_exhausting_memory_is_told_apart(attack: Attack) -> None:
    for code in ("bytearray(1 << 40)", "hoard = []\nwhile True: hoard.append(bytes(1 << 24))"):
        assert (await attack(code)).status is Status.MEMORY


@pytest.mark.slow
async def test_unbounded_recursion_ends_one_way_or_another(attack: Attack) -> None:
    code = "import sys\nsys.setrecursionlimit(2**31 - 1)\ndef f(): f()\nf()"
    assert (await attack(code)).status in (Status.MEMORY, Status.CRASHED, Status.TIMEOUT)


async def test_printing_goes_nowhere(attack: Attack) -> None:
    code = "import os\nfor _ in range(200): os.write(1, b'x' * 65536)\nprint('x' * 10**6)"
    assert (await attack(code)).bare == 0.25


async def test_the_environments_secrets_are_not_there(attack: Attack) -> None:
    verdict = await attack("import os\nraise ValueError(sorted(os.environ))")
    assert "OMP_NUM_THREADS" in verdict.detail
    assert "KEY" not in verdict.detail
    leak = "import gc\nraise ValueError([s for s in map(str, gc.get_objects()) if s.startswith('sk-do-not')])"
    assert SECRET not in (await attack(leak)).detail


async def test_no_descriptor_but_the_result_can_be_read(attack: Attack) -> None:
    code = """
import os
found = []
for fd in range(256):
    try:
        os.lseek(fd, 0, 1)
        found.append(fd)
    except OSError as error:
        found += [fd] * (error.errno != 9)
raise ValueError(found)
"""
    assert "[0, 1, 2, 3]" in (await attack(code)).detail


async def test_the_network_is_out_of_reach(attack: Attack) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        code = f"import _socket; _socket.socket().connect(('127.0.0.1', {server.getsockname()[1]}))"
        verdict = await attack(code)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert verdict.value == 0.0


async def test_a_patched_verifier_is_gone_with_its_child(grader: SandboxGrader, attack: Attack) -> None:
    for code in (
        "AttackDataset.score_answer = lambda *args, **kwargs: 1.0",
        "entry['answer'] = 'right '",
        "import builtins; builtins.float = lambda value: 1.0",
        "import sys; sys.modules['reasoning_gym_environment.workers.grading_worker'].grade = lambda *a: 1",
    ):
        await attack(code)
        wrong, right = await grader.grade(ATTACK_TASK, {}, ENTRY, ["None", RIGHT])
        assert (wrong.value, right.value) == (0.25, 1.0), code


async def test_a_worker_loads_neither_atroposlib_nor_transformers(attack: Attack) -> None:
    heavy = ("atroposlib", "transformers", "wandb", "pydantic", "torch")
    code = f"import sys\nraise ValueError([name for name in {heavy} if name in sys.modules])"
    assert (await attack(code)).detail == "ValueError: []"


async def test_code_that_runs_can_forge_no_score_but_its_own(grader: SandboxGrader) -> None:
    forge = "".join(FORGED_RECORD.replace("<index>", str(index)) for index in range(4))
    verdicts = await grader.grade(ATTACK_TASK, {}, ENTRY, [forge, "None", RIGHT, "0"])
    assert [verdict.value for verdict in verdicts[1:]] == [0.25, 1.0, 0.25]
