"""The taskset for verifiers and prime-rl, with the real library in .venv-verifiers: its command and its servers."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reasoning_gym_environment import HeldOut, ItemStream, PromptedProblem, Rows, Tasks, new_store
from reasoning_gym_environment.sampling.seeds import is_held_out
from testing.hostile_answers import ATTACK_MODULE, ATTACK_TASK, HOSTILE_ANSWERS
from testing.inference_server import ThreadedMockServer
from testing.support import PATIENCE_S, child_environment
from testing.wheel import fresh_environment, libraries_of

from .completions import SETTINGS, attack_group

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8").partition("\n## verifiers and prime-rl\n")[2]

ENV_SERVER = """
import asyncio, json, multiprocessing, sys, tomllib
import verifiers.v1 as vf
from verifiers.v1.serve import EnvClient, env_config_data, serve_env
from verifiers.v1.utils.loaders import resolve_env_config

async def roll_out(config, address, base_url, count):
    tasks = [task for task, _ in zip(vf.load_taskset(config.taskset), range(count))]
    rows = [task.data.model_dump(mode="json") for task in tasks]
    server, client = EnvClient(address), vf.EvalClientConfig(base_url=base_url)
    await server.wait_for_server_startup(300)
    ask = lambda row: server.run(task_data=row, client=client, model="mock", sampling=vf.SamplingConfig())
    episodes = await asyncio.gather(*map(ask, rows))
    await server.close()
    # Samplers of prime-rl find the item of a reward by its key.
    assert [episode.task.key for episode in episodes] == [task.key for task in tasks]
    return [episode.model_dump(mode="json") for episode in episodes]

if __name__ == "__main__":
    text, base_url, count = json.loads(sys.argv[1])
    sources = {kind: given["source"] for kind, given in tomllib.loads(text)["orchestrator"].items()}
    [config], [held_out] = ([resolve_env_config(one["env"]) for one in sources[kind]] for kind in ("train", "eval"))
    assert held_out.taskset.split == "eval" and held_out.taskset.include_tasks == config.taskset.include_tasks
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    settings = {"max_workers": 1, "address": "tcp://127.0.0.1:0", "config_data": env_config_data(config)}
    server = context.Process(target=serve_env, kwargs={**settings, "address_queue": addresses})
    server.start()
    try:
        print(json.dumps(asyncio.run(roll_out(config, addresses.get(), base_url, count))))
    finally:
        server.terminate()
        server.join()
    assert "atroposlib" not in sys.modules
"""
"""What prime-rl does: the rows are loaded here, and graded in a process of an environment server."""

SPLITS = """
import json, sys, tomllib
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import resolve_env_config

def taskset(**changes):
    [source] = tomllib.loads(sys.argv[1])["orchestrator"]["train"]["source"]
    settings = {**source["env"]["taskset"], **changes}
    return vf.load_taskset(resolve_env_config({"taskset": settings}).taskset)

def found(tasks):
    tasks = list(tasks)
    return {"rows": [task.data.model_dump(mode="json") for task in tasks], "keys": len({task.key for task in tasks})}

if __name__ == "__main__":
    finite, endless = taskset(train_items=6), taskset(train_items=None)
    held_out = taskset(train_items=None, split="eval", num_eval_samples_per_task=1)
    tasksets = {"page": taskset(), "finite": finite, "held out": held_out}
    # prime-rl reads the class, and verifiers reads the taskset.
    infinite = {name: [type(one).INFINITE, not one.bounded] for name, one in tasksets.items()}
    shuffled = found(finite.shuffle(1))["rows"]
    rows = {"finite": found(finite), "first": found(endless.take(6)), "held out": found(held_out)}
    print(json.dumps({"infinite": infinite, "shuffled": shuffled, **rows}))
    taskset(train_items=1000, split="eval")
"""
"""The tasksets of the source of the page. The last line must fail."""


class Student:
    """Answers each question with the next of its completions, over and over."""

    def __init__(self, completions: dict[str, list[str]]) -> None:
        self._next = {question: itertools.cycle(texts) for question, texts in completions.items()}

    def __call__(self, prompt: str) -> str:
        [question] = [known for known in self._next if f"user\n{known}<|" in prompt]
        return next(self._next[question])


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel and the library."""
    home = tmp_path_factory.mktemp("installed") / "environment"
    return fresh_environment(home, libraries_of(".venv-verifiers"), wheel, extras="verifiers")


def of_library(python: Path, arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A program of the library, or a file in `cwd`. Both get the package from the wheel."""
    program = libraries_of(".venv-verifiers") / "bin" / arguments[0]
    command = [python, program if program.exists() else arguments[0], *arguments[1:]]
    environment = child_environment(PRIME_API_KEY="", HOME=str(cwd), PYTHONPATH="")
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
    )


def evaluated(python: Path, cwd: Path, command: str) -> list[dict[str, Any]]:
    """The traces of the library's own command."""
    done = of_library(python, shlex.split(command), cwd)
    assert done.returncode == 0, done.stderr
    [file] = cwd.rglob("traces.jsonl")
    return [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]


def on_the_page(language: str, base_url: str) -> str:
    [block] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return str(block).replace("\\\n", " ").replace("http://localhost:8000/v1", base_url)


def prompt_of(trace: dict[str, Any]) -> list[dict[str, str]]:
    return [{key: node["message"][key] for key in ("role", "content")} for node in trace["nodes"][:2]]


def reply_of(trace: dict[str, Any]) -> str:
    return str(trace["nodes"][2]["message"].get("content", ""))


def credit_of(trace: dict[str, Any]) -> float | None:
    given = trace["rewards"]["credit"]
    return None if given is None else given["score"] * given["weight"]


def asked(problems: Iterable[PromptedProblem], *wrong: str) -> dict[str, list[str]]:
    return {one.question: [f"<think>so</think><answer>{one.entry['answer']}</answer>", *wrong] for one in problems}


@pytest.mark.libraries
def test_the_command_of_the_page_asks_the_held_out_questions_and_pays_what_grade_pays(
    python: Path, tmp_path: Path, byte_tokenizer: Any
) -> None:
    marker = tmp_path / "touched"
    hostile = HOSTILE_ANSWERS["shell"].replace("<marker>", str(marker))
    with Tasks("countdown,leg_counting") as tasks:
        problems = {problem.question: problem for problem in HeldOut(tasks)}
        student = Student(
            asked(problems.values(), f"<answer>{hostile}</answer>", "I do not know.", "<answer>0</answer>")
        )
        with ThreadedMockServer(student, byte_tokenizer) as server:
            traces = evaluated(python, tmp_path, on_the_page("sh", server.base_url))
        assert sorted(prompt_of(trace)[1]["content"] for trace in traces) == sorted([*problems] * 4)
        for trace in traces:
            problem = problems[prompt_of(trace)[1]["content"]]
            assert prompt_of(trace) == list(problem.messages) and is_held_out(problem.library_question)
            [grade] = tasks.grade(problem, [reply_of(trace)])
            assert credit_of(trace) == grade.reward and trace["ok"]
            assert trace["metrics"]["format_failure"] == grade.score.outcome.is_unreadable
    assert len(problems) == 10 and sum(credit_of(trace) or 0.0 for trace in traces) >= 10.0
    assert not marker.exists()


def served(python: Path, cwd: Path, configuration: str, base_url: str, count: int) -> list[dict[str, Any]]:
    """The traces of the first items of a configuration, as prime-rl samples them."""
    (cwd / "server.py").write_text(ENV_SERVER)
    done = of_library(python, ["server.py", json.dumps([configuration, base_url, count])], cwd)
    assert done.returncode == 0, done.stderr
    return [trace for episode in json.loads(done.stdout) for trace in episode["traces"]]


@pytest.mark.libraries
def test_an_environment_server_makes_the_items_of_the_stream_again(
    python: Path, tmp_path: Path, byte_tokenizer: Any
) -> None:
    """By the configuration on the page."""
    with Tasks("countdown,number_sorting,word_sorting,course_schedule", complexity_mode="random") as tasks:
        stream = ItemStream(tasks, seed=42)
        problems = [stream.next() for _ in range(8)]
        with ThreadedMockServer(Student(asked(problems)), byte_tokenizer) as server:
            traces = served(python, tmp_path, on_the_page("toml", ""), server.base_url, len(problems))
        assert [prompt_of(trace) for trace in traces] == [list(problem.messages) for problem in problems]
        pairs = zip(problems, traces, strict=True)
        assert [credit_of(trace) for trace in traces] == [
            tasks.grade(problem, [reply_of(trace)])[0].reward for problem, trace in pairs
        ]
    assert {credit_of(trace) for trace in traces} == {1.0}
    assert not any(is_held_out(problem.library_question) for problem in problems)


@pytest.mark.libraries
def test_the_levels_follow_the_rewards_of_an_environment_server(
    python: Path, tmp_path: Path, byte_tokenizer: Any
) -> None:
    store = new_store(tmp_path / "levels.sqlite", group_size=1, include_tasks="word_sorting", rows=1000)
    problems = [row.problem for row in Rows(store.path).read(range(24))]
    settings = 'complexity_mode = "random"\nseed = 42'
    configuration = on_the_page("toml", "").replace(settings, f"level_store = {json.dumps(str(store.path))}")
    with ThreadedMockServer(Student(asked(problems)), byte_tokenizer) as server:
        traces = served(python, tmp_path, configuration, server.base_url, len(problems))
    assert [prompt_of(trace) for trace in traces] == [list(problem.messages) for problem in problems]
    summary = store.summary()
    assert (summary.complete, summary.repeated, summary.unscored) == (24, 0, 0)
    assert max(task.level for task in summary.tasks) >= 1


@pytest.mark.libraries
def test_a_finite_train_split_has_the_first_items_of_the_endless_split(python: Path, tmp_path: Path) -> None:
    """Of the source on the page, which is endless."""
    (tmp_path / "splits.py").write_text(SPLITS)
    done = of_library(python, ["splits.py", on_the_page("toml", "")], tmp_path)
    assert 'train_items=1000: expected split="train", got split="eval".' in done.stderr
    found = json.loads(done.stdout)
    finite = [False, False]
    assert found["infinite"] == {"page": [True, True], "finite": finite, "held out": finite}
    rows = found["finite"]["rows"]
    assert found["first"]["rows"] == rows
    assert (len(rows), found["finite"]["keys"], found["held out"]["keys"]) == (6, 6, 4)
    assert sorted(map(json.dumps, found["shuffled"])) == sorted(map(json.dumps, rows))
    assert found["shuffled"] != rows
    assert not any(is_held_out(row["prompt"]) for row in rows)
    assert all(is_held_out(row["prompt"]) for row in found["held out"]["rows"])


@pytest.mark.libraries
def test_a_completion_that_cannot_be_scored_is_an_error(python: Path, tmp_path: Path, byte_tokenizer: Any) -> None:
    marker = tmp_path / "touched"
    with Tasks(ATTACK_TASK, **SETTINGS) as tasks:
        group = attack_group(tasks, marker)
    # No server sends half a character.
    wanted = {text.encode(errors="replace").decode(): reward for text, reward in group.rewards.items()}
    settings = {
        **{"include-tasks": ATTACK_TASK, "split": "train", "train-items": 1},
        **{"task.task-modules": ATTACK_MODULE, "task.allow-unguarded-tasks": ATTACK_TASK},
    }
    flags = " ".join(f"--env.taskset.{name} {value}" for name, value in settings.items())
    with ThreadedMockServer(Student({group.problem.question: list(wanted)}), byte_tokenizer) as server:
        command = f"vf-eval reasoning-gym-environment --model mock --client.base-url {server.base_url}"
        traces = evaluated(python, tmp_path, f"{command} --no-push --no-rich -r {len(wanted)} {flags}")
    assert {reply_of(trace): credit_of(trace) for trace in traces} == wanted
    for trace in traces:
        assert trace["ok"] == (credit_of(trace) is not None) != bool(trace["metrics"]["unscored"])
    assert not marker.exists()
