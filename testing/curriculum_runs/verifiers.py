"""verifiers' taskset and environment server, as prime-rl uses them: rows here, grading in a process of the server."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, env_config_data, serve_env
from verifiers.v1.utils.loaders import resolve_env_config

from reasoning_gym_environment import Tasks
from testing import level_student

PROMPTS = 4
"""Prompts of a step."""


ROWS: dict[str, tuple[str, dict[str, Any]]] = {}
"""By the question: a right answer, and where the reward of the row goes."""
TURNS: Counter[str] = Counter()
LOCK = threading.Lock()
TASKS: Tasks
"""Makes the items of rows again, for their answers."""


class Student(BaseHTTPRequestHandler):
    """An inference server that answers each prompt with the student's next completion."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][-1]["content"]
        answer, row = ROWS[question]
        with LOCK:
            turn = TURNS[question]
            TURNS[question] += 1
        reward = level_student.rewards(row["task"], row["level"], row["row"])[turn % level_student.GROUP_SIZE]
        message = {"role": "assistant", "content": level_student.completion(answer, reward)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "mock", "choices": [choice]}
        text = json.dumps({**reply, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


async def train(config: Any, address: str, base_url: str, groups: int) -> None:
    server = EnvClient(address)
    client = vf.EvalClientConfig(base_url=base_url)
    await server.wait_for_server_startup(300)
    rows = iter(vf.load_taskset(config.taskset))
    for _ in range(groups // PROMPTS):
        batch = list(islice(rows, PROMPTS))
        for task in batch:
            ROWS[task.data.prompt] = (await right_answer(task), task.data.recipe.as_row())
        data = [task.data.model_dump(mode="json") for task in batch for _ in range(level_student.GROUP_SIZE)]
        running = [server.run(task_data=row, client=client, model="mock", sampling=vf.SamplingConfig()) for row in data]
        for row, episode in zip(data, await asyncio.gather(*running), strict=True):
            [trace] = episode.traces
            assert not trace.errors, (row, trace)
    await server.close()


async def right_answer(task: Any) -> str:
    """The answer of a row's item, made again."""
    problem = await asyncio.to_thread(TASKS.problem, task.data.recipe)
    return str(problem.entry["answer"])


def main(path: str, groups: str) -> None:
    global TASKS
    TASKS = Tasks(level_student.TASKS)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Student)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    taskset = {"id": "reasoning-gym-environment", "split": "train", "level_store": path}
    config = resolve_env_config({"taskset": taskset})
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    settings = {"max_workers": 1, "address": "tcp://127.0.0.1:0", "config_data": env_config_data(config)}
    server = context.Process(target=serve_env, kwargs={**settings, "address_queue": addresses})
    server.start()
    try:
        asyncio.run(train(config, addresses.get(), f"http://127.0.0.1:{http.server_port}/v1", int(groups)))
    finally:
        server.terminate()
        server.join()
        http.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
