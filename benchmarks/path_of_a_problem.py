"""How far a problem travels through the package: python benchmarks/path_of_a_problem.py [--mode random] > path.json

The script follows one problem from the call of `get_next_item` until its group is posted to run-api, and one evaluation
question through `rollout_and_score_eval`. It uses the real environment with real workers, a mock vLLM server and a
stand-in for run-api. Before that, it runs a problem and a question without counting, so that steps that happen only
once do not count. It does not follow the worker processes and the two servers.

    files, functions   of the package that run in this process
    hops               calls from one file of the package to another. Code between two files, such as functools, does
                       not count, and neither does the continuation after an `await`
    prompt_rendered    how often the chat template was applied
    problem_rebuilt    functions that return the problem after its item was drawn
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from atroposlib.envs.base import APIServerConfig
from transformers import PreTrainedTokenizerBase

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.records import Problem
from reasoning_gym_environment.sampling import item_stream
from testing.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
from testing.mock_dialects import ThreadedMockServer

PACKAGE = str(Path(__file__).resolve().parents[1] / "reasoning_gym_environment") + os.sep
REPLIES = ("<think>I know it.</think><answer>{}</answer>", "<think>I guess.</think><answer>no idea</answer>")


class RunApi(BaseHTTPRequestHandler):
    """A trajectory API with a trainer, which takes every group."""

    groups = 0

    def do_GET(self) -> None:
        self._reply({"project": "p", "group": None, "batch_size": 64, "max_token_len": -1, "current_step": 0})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        RunApi.groups += self.path == "/scored_data"
        self._reply({"status": "received", "env_id": 0, "starting_step": 0, "num_steps": 10})

    def _reply(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Trace:
    """Records the calls in the package while it is `on`. Set it as the profile function of a thread first."""

    def __init__(self) -> None:
        self.on = False
        self.forget()

    def forget(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str, int]] = set()
        self.hops: Counter[tuple[str, str]] = Counter()
        self.returned: Counter[type] = Counter()
        self.rendered = 0
        # This keeps the frames and not their ids, because Python reuses the id of a dead frame. A coroutine's frame is
        # called again after every await.
        self._seen: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if not self.on or event not in ("call", "return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "return":
            self.returned[type(value)] += 1
        elif id(frame) not in self._seen:
            self._seen[id(frame)] = frame
            self._note(frame)

    def _note(self, frame: FrameType) -> None:
        code = frame.f_code
        self.files.add(code.co_filename)
        # In some versions of Python, a comprehension is a function.
        if not code.co_name.endswith(("comp>", "genexpr>")):
            self.functions.add((code.co_filename, code.co_name, code.co_firstlineno))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.hops[caller.f_code.co_filename, code.co_filename] += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        self.forget()
        render = PreTrainedTokenizerBase.apply_chat_template

        def counted(*args: Any, **options: Any) -> Any:
            self.rendered += 1
            return render(*args, **options)

        PreTrainedTokenizerBase.apply_chat_template = counted
        self.on = True
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.on = False
            PreTrainedTokenizerBase.apply_chat_template = render

    def report(self, *, verbose: bool) -> dict[str, Any]:
        found = {"files": len(self.files), "functions": len(self.functions), "hops": sum(self.hops.values())}
        if verbose:
            found["files_in_full"] = sorted(file.removeprefix(PACKAGE) for file in self.files)
            found["hops_in_full"] = {}
            for hop, count in self.hops.most_common():
                name = " -> ".join(function.removeprefix(PACKAGE) for function in hop)
                found["hops_in_full"][name] = count
        return {**found, "prompt_rendered": self.rendered}


class Student:
    """Gives every second answer right, so that the group has something to tell apart."""

    def __init__(self) -> None:
        self.answer = ""
        self._replies = 0

    def __call__(self, prompt: str) -> str:
        self._replies += 1
        return REPLIES[self._replies % 2].format(self.answer)


async def one_problem(env: Any, student: Student) -> int:
    """From draw to run-api; returns how many functions have returned the problem after the draw."""
    posted = RunApi.groups
    item = await env.get_next_item()
    student.answer = item[1]["answer"]
    profiler = sys.getprofile()
    drawn = profiler.returned[Problem] if isinstance(profiler, Trace) else 0
    group, _ = await env.collect_trajectories(item)
    group = await env.postprocess_histories(group)
    await env.handle_send_to_api(group, item)
    while RunApi.groups == posted:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return profiler.returned[Problem] - drawn if isinstance(profiler, Trace) else 0


async def follow(env: Any, student: Student, trace: Trace, *, verbose: bool) -> dict[str, Any]:
    await env.setup()
    try:
        await one_problem(env, student)
        with trace.running():
            rebuilt = await one_problem(env, student)
        problem = {**trace.report(verbose=verbose), "problem_rebuilt": rebuilt}
        first, second = env.test_items_with_scorers[:2]
        await env.rollout_and_score_eval(first)
        with trace.running():
            await env.rollout_and_score_eval(second)
        return {"problem": problem, "evaluation_question": trace.report(verbose=verbose)}
    finally:
        await env.close()


def environment(folder: Path, inference_url: str, api_url: str, mode: str) -> Any:
    config = ReasoningGymEnvConfig(
        tokenizer_name=str(save_byte_tokenizer(folder / "tokenizer")),
        rollout_server_url=api_url,
        include_tasks="chain_sum",
        num_eval_samples_per_task=2,
        complexity_mode=None if mode == "none" else mode,
        group_size=4,
        max_token_length=8192,
        use_wandb=False,
        include_messages=True,
        dump_rollouts=True,
        dump_failed_rollouts=True,
        data_dumps_dir=str(folder / "dumps"),
        num_scoring_workers=1,
        num_generation_workers=1,
    )
    server = APIServerConfig(
        server_type="vllm", base_url=inference_url, model_name="mock", api_key="x", health_check=False
    )
    return ReasoningGymEnv(config, [server])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = ("none", "random", "curriculum")
    parser.add_argument("--mode", choices=modes, default="curriculum", help="complexity_mode (default: curriculum)")
    parser.add_argument("--verbose", action="store_true", help="name the files, and count the hops of each two")
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    options = parser.parse_args()
    # Otherwise the draws of later problems would be part of the path of this problem.
    item_stream.PREFETCH = 0
    logging.basicConfig(level=logging.ERROR)
    student, trace = Student(), Trace()
    api = ThreadingHTTPServer(("127.0.0.1", 0), RunApi)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name, ThreadedMockServer(student, build_byte_tokenizer()) as server:
        # This follows only threads that start from here on, and so not the servers.
        threading.setprofile(trace)
        # Atropos prints; standard output is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            env = environment(Path(name), server.base_url, f"http://127.0.0.1:{api.server_port}", options.mode)
            report = asyncio.run(follow(env, student, trace, verbose=options.verbose))
    print(json.dumps({"mode": options.mode, **report}, indent=1))


if __name__ == "__main__":
    main()
