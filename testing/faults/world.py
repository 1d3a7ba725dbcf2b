"""A small training run that things can be done to: run-api, a mock inference server, a trainer, `serve` processes.

The student adds up chain_sum items and is wrong every second time, so each group of four has a signal and is both
dumped and sent. That makes losses countable: an item is dumped, or pending in the last checkpoint, or lost; a group
that the trainer got is in a dump, or lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import requests

from testing.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from testing.inference_server import Faults, MockServer, free_port
from testing.process_table import members_of_session, until
from testing.processes import stop
from testing.support import AddingStudent, child_environment, flags, get_json, register_trainer

FaultKind = Literal["gone", "fail", "hang", "drop", "cut"]

GROUP_SIZE = 4
GROUPS_PER_BATCH = 2
POLL_S = 0.05


def question_in(text: str) -> str:
    """The question in a prompt."""
    return text.split("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0]


class World:
    """`async with World(folder) as world`. Everything that it started has ended when the block has."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self._settings = settings
        self._tokenizer = build_byte_tokenizer()
        self._ports = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self.faults = Faults()
        self._student = AddingStudent()
        self._mock: MockServer | None = None
        self._api: asyncio.subprocess.Process | None = None
        self._training: asyncio.Task[None] | None = None
        self.trains = asyncio.Event()
        self.received: list[str] = []
        self.step = 0
        self.instances: set[int] = set()
        self._processes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> World:
        self.folder.mkdir(parents=True, exist_ok=True)
        save_byte_tokenizer(self.folder / "tokenizer")
        await self.start_inference()
        await self.start_api()
        self.trains.set()
        self._training = asyncio.create_task(self._train())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._training is not None:
            self._training.cancel()
            await asyncio.gather(self._training, return_exceptions=True)
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                await stop(process)
        await self.stop_inference()

    # --- inference and run-api

    async def start_inference(self) -> None:
        if self._mock is not None:
            return
        self._mock = MockServer(self._student, self._tokenizer, port=self._ports[1], faults=self.faults)
        await self._mock.start()

    async def stop_inference(self) -> None:
        if self._mock is not None:
            await self._mock.close()
            self._mock = None

    @contextlib.asynccontextmanager
    async def broken_inference(self, kind: FaultKind) -> AsyncIterator[None]:
        """In the block, the inference server has a fault."""
        if kind == "gone":
            await self.stop_inference()
        else:
            self.faults.kind = kind
        yield
        self.faults.kind = ""
        await self.start_inference()

    async def start_api(self) -> None:
        arguments = ("atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(self._ports[0]))
        self._api = await self._start("run-api", *arguments)

    async def kill_api(self) -> None:
        assert self._api is not None
        self._api.kill()
        await self._api.wait()

    def signal_api(self, number: signal.Signals) -> None:
        assert self._api is not None
        self._api.send_signal(number)

    # --- the environment

    async def serve(self, number: int = 0) -> asyncio.subprocess.Process:
        """Start instance `number`, which finds what an earlier start of that number has left."""
        self.instances.add(number)
        settings = flags(
            self.folder / "tokenizer",
            f"http://127.0.0.1:{self._ports[1]}/v1",
            env__rollout_server_url=self.url,
            env__num_eval_samples_per_task=0,
            env__group_size=GROUP_SIZE,
            env__instance_id=f"i{number}",
            env__dump_rollouts=True,
            env__debug_logging=True,
            env__data_dumps_dir=self.folder / "dumps",
            env__rollout_save_score_threshold=0.5,
            env__steps_per_eval=0,
            env__total_steps=10**6,
        )
        return await self._start(f"serve-{number}", "reasoning_gym_environment", "serve", *settings, *self._settings)

    async def end(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """SIGTERM: how long the end took, with what code, and what it left running."""
        began = time.monotonic()
        process.terminate()
        code = await process.wait()
        seconds = time.monotonic() - began
        return {"exit_code": code, "seconds": round(seconds, 2), "left_running": await self.left_of(process)}

    async def left_of(self, process: asyncio.subprocess.Process) -> int:
        """Processes of its session that are still there a minute after its end."""
        for _ in range(600):
            left = members_of_session(process.pid)
            if not left:
                break
            await asyncio.sleep(0.1)
        return len(left)

    def log(self, number: int = 0) -> str:
        """The log of all starts of an instance."""
        return (self.folder / f"serve-{number}.log").read_text(encoding="utf-8", errors="replace")

    def items_drawn(self, number: int) -> int:
        """How many items all starts of an instance have drawn."""
        return self.log(number).count("Drew item") if (self.folder / f"serve-{number}.log").exists() else 0

    async def _start(self, name: str, *module: str) -> asyncio.subprocess.Process:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(TRANSFORMERS_VERBOSITY="error"),
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    # --- the trainer

    async def groups(self, count: int) -> None:
        """Return when the trainer has got so many more groups."""
        goal = len(self.received) + count
        await until(lambda: len(self.received) >= goal, f"{count} groups; logs are in {self.folder}")

    async def _train(self) -> None:
        while True:
            await self.trains.wait()
            is_taken = False
            with contextlib.suppress(requests.RequestException):
                is_taken = await asyncio.to_thread(self._take)
            if not is_taken:
                await asyncio.sleep(POLL_S)

    def _take(self) -> bool:
        """Take a batch if there is one. The trainer registers with a restarted API at the step that it has reached."""
        answer = get_json(f"{self.url}/batch")
        if answer.get("status") == "error":
            register_trainer(
                self.url,
                batch_size=GROUP_SIZE * GROUPS_PER_BATCH,
                checkpoint_dir=str(self.folder / "checkpoints"),
                save_checkpoint_interval=10,
                starting_step=self.step,
            )
            return True
        if not answer["batch"]:
            return False
        self.step += 1
        self.received += [self._question(group) for group in answer["batch"]]
        return True

    def _question(self, group: dict[str, Any]) -> str:
        tokens = [token for token, mask in zip(group["tokens"][0], group["masks"][0], strict=True) if mask == -100]
        return question_in(self._tokenizer.decode(tokens))

    # --- what was lost

    def losses(self) -> dict[str, Any]:
        """After the last end: what is missing, and what was done twice."""
        lines, broken = self._dumped()
        dumped = Counter((line["seed"], line["index"]) for line in lines)
        asked = {line["rollouts"][0]["conversation"][1]["content"] for line in lines}
        return {
            "groups_received": len(self.received),
            "groups_dumped": len(lines),
            "lost_items": sum(self._lost_items(number, lines) for number in self.instances),
            "lost_groups": sum(question not in asked for question in self.received),
            "lines_that_are_not_json": broken,
            "tracebacks": sum(self.log(number).count("Traceback") for number in self.instances),
            "groups_made_twice": sum(count - 1 for count in dumped.values()),
        }

    def _dumped(self) -> tuple[list[dict[str, Any]], int]:
        """The groups of all dumps, each with the `run` of its file; and how many lines are no JSON."""
        lines, broken = [], 0
        for path in sorted((self.folder / "dumps").glob("*.jsonl")):
            run = path.name.split("_rollouts_")[1].rpartition("_")[0]
            for line in path.read_bytes().splitlines():
                try:
                    lines.append({**json.loads(line), "run": run})
                except ValueError:
                    broken += 1
        return lines, broken

    def _lost_items(self, number: int, lines: list[dict[str, Any]]) -> int:
        """The number of drawn items that are neither dumped nor pending."""
        [latest] = (self.folder / "checkpoints").glob(f"env_checkpoints/*-i{number}/latest.json")
        state = json.loads(latest.read_text())["reasoning_gym_environment"]["state"]
        dumped = {line["index"] for line in lines if line["run"] == state["dumps"]["run_id"]}
        pending = {index for index, *_ in state["item_stream"]["pending"]}
        return len(set(range(state["item_stream"]["index"])) - dumped - pending)
