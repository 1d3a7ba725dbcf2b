"""A reasoning-gym task whose generator misbehaves as its config's `act` says.

Not a test. Only generation workers import it, by its path: it would stay registered in the process of the tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import register_dataset


@dataclass
class MisbehavingConfig:
    act: str = "answer"
    seed: int | None = None
    size: int = 1


class OfThisModuleOnly:
    pass


class MisbehavingDataset(ProceduralDataset):
    def __init__(self, config: MisbehavingConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        acted = getattr(self, f"_{self.config.act}")()
        return {"question": "?", "answer": "right", "metadata": {"acted": acted}}

    def _answer(self) -> None:
        return None

    def _hang(self) -> None:
        while True:
            pass

    def _wait(self) -> None:
        time.sleep(1000)

    def _swallow(self) -> None:
        while True:
            with contextlib.suppress(BaseException):
                self._hang()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hog(self) -> None:
        hoard = []
        while True:
            hoard.append(numpy.empty(1 << 28, numpy.uint8))

    def _print(self) -> None:
        sys.stdout.write("printed by the task\n")
        sys.stdout.flush()
        os.write(1, b"\x05" * 100_000)
        os.write(2, b"x" * 100_000)

    def _write(self) -> list[str]:
        found = sorted(path.name for path in Path.cwd().iterdir())
        Path("written.txt").write_text("by the task")
        Path("folder").mkdir()
        return [str(Path.cwd()), *found]

    def _remove(self) -> None:
        Path.cwd().rmdir()

    def _fail(self) -> None:
        raise KeyError("no such board")

    def _leave(self) -> None:
        sys.exit(3)

    def _swell(self) -> bytes:
        return bytes(17 << 20)

    def _confuse(self) -> OfThisModuleOnly:
        return OfThisModuleOnly()

    def _draw(self) -> tuple[float, float]:
        return random.random(), float(numpy.random.rand())

    def _look(self) -> dict[str, Any]:
        return {
            "modules": sorted(sys.modules),
            "environment": dict(os.environ),
            "session": os.getsid(0) == os.getpid(),
            "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "stdin": os.read(0, 10),
        }


register_dataset("misbehaves", MisbehavingDataset, MisbehavingConfig)
