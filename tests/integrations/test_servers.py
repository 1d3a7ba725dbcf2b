"""The grader over HTTP: the same grades as from Python, and every failure is `null` with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from reasoning_gym_environment import Tasks
from reasoning_gym_environment.errors import missing_extra
from reasoning_gym_environment.integrations.servers import build_app, grade_server
from reasoning_gym_environment.records import plain
from tests.hostile_answers import ATTACK_MODULE, ATTACK_TASK, ENTRY, RIGHT

ANSWERS = ["<answer>{}</answer>", "<think>so</think> <answer>**{}**</answer>", "{}", "<answer>no idea</answer>", ""]


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with Tasks("chain_sum,countdown,jugs") as tasks:
        yield tasks


def test_a_recipe_an_item_and_nemo_gym_s_fields_earn_what_python_gives(tasks: Tasks) -> None:
    client = TestClient(build_app(tasks))
    for task in tasks.names:
        problem = tasks.draw(task, 7)
        completions = [text.format(problem.entry["answer"]) for text in ANSWERS]
        expected = [grade.reward for grade in tasks.grade(problem, completions)]
        assert expected == [1.0, 1.0, 0.0, 0.0, 0.0]
        recipe = {"task": task, "seed": problem.seed, "config": plain(dict(problem.config))}
        item = json.loads(json.dumps(plain(problem.entry)))
        groups = [{**recipe, "completions": completions}, {"task": task, "item": item, "completions": completions}]
        for found in client.post("/grade", json=groups).json():
            assert [one["reward"] for one in found] == expected
            assert found[2]["outcome"] == "format_failure" and found[2]["reason"] == "no_answer"
        response = {"output": [{"type": "message", "content": [{"type": "output_text", "text": completions[0]}]}]}
        body = {**item, "metadata": {**item["metadata"], "source_dataset": task}, "response": response, "id": 3}
        verified = client.post("/verify", json=body).json()
        assert verified["reward"] == verified["score"] == 1.0 and verified["task_name"] == task and verified["id"] == 3
    assert client.get("/health").json()["tasks"] == 3 and "reasoning_gym_in_flight 0" in client.get("/metrics").text


def test_mistakes_say_what_is_expected_and_nothing_is_graded(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(build_app(tasks))
    monkeypatch.setattr(Tasks, "grade_async", None)
    good = {"task": "chain_sum", "item": ENTRY}
    for group, code, message in (
        ({"task": "chain_summ", "item": ENTRY}, 400, "group 1: Unknown task 'chain_summ'. Did you mean chain_sum"),
        ({"task": "chain_sum", "config": {"max_term": 2}}, 400, "group 1: "),
        ({"task": "chain_sum", "item": {"answer": "1"}}, 422, '["body",1,"item","question"]'),
        ({"task": "chain_sum", "seeds": 1}, 422, "seeds"),
    ):
        found = client.post("/grade", json=[{**one, "completions": ["x"]} for one in (good, group)])
        assert (found.status_code, message in found.text) == (code, True), found.text
    for response in ({}, {"output": 3}, {"output": ["x"]}, {"output": [{"type": "message", "content": [1]}]}):
        body = {**ENTRY, "metadata": {"source_dataset": "chain_sum"}, "response": response}
        assert client.post("/verify", json=body).status_code == 422


def test_no_room_no_time_and_no_token(tasks: Tasks) -> None:
    group = {"task": "chain_sum", "seed": 1, "completions": ["<answer>1</answer>"] * 3}
    late = TestClient(build_app(tasks, deadline_s=0.0)).post("/grade", json=[group]).json()[0]
    assert [(one["reward"], one["reason"]) for one in late] == [(None, "not graded within 0 s")] * 3
    client = TestClient(build_app(tasks, queue=2, token="t"))
    assert client.post("/grade", json=[group]).status_code == 401
    client.headers["Authorization"] = "Bearer t"
    assert client.post("/grade", json=[group]).status_code == 200, "one that is alone is taken"


async def test_more_than_the_queue_is_refused_while_others_are_graded(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def waits(*_: Any, **__: Any) -> list[Any]:
        begun.set()
        await may_end.wait()
        return []

    monkeypatch.setattr(tasks, "grade_async", waits)
    group = {"task": "chain_sum", "seed": 1, "completions": ["<answer>1</answer>"] * 3}
    transport = httpx.ASGITransport(build_app(tasks, queue=4))
    async with httpx.AsyncClient(transport=transport, base_url="http://grader") as client:
        first = asyncio.ensure_future(client.post("/grade", json=[group]))
        await begun.wait()
        second = await client.post("/grade", json=[group])
        may_end.set()
        assert (await first).status_code == 200
        assert (second.status_code, second.headers["Retry-After"]) == (503, "1") and "--queue is 4" in second.text
        assert "reasoning_gym_in_flight 0" in (await client.get("/metrics")).text


def test_hostile_answers_have_no_effect_and_are_not_zero_if_they_hang(tmp_path: Path, own_datasets: None) -> None:
    marker = tmp_path / "touched"
    answers = [RIGHT, f"__import__('os').system('touch {marker}')", "while True: pass", RIGHT]
    settings: dict[str, Any] = {"modules": [ATTACK_MODULE], "allow_unguarded": [ATTACK_TASK], "scoring_timeout_s": 1.0}
    with Tasks(ATTACK_TASK, **settings) as tasks:
        texts = [f"<answer>{answer}</answer>" for answer in answers]
        group = {"task": ATTACK_TASK, "item": ENTRY, "completions": texts}
        [found] = TestClient(build_app(tasks)).post("/grade", json=[group]).json()
    rewards = [one["reward"] for one in found]
    assert (rewards[0], rewards[2], rewards[3]) == (1.0, None, 1.0) and found[2]["outcome"] == "timeout"
    assert not rewards[1] and not marker.exists()


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_TOKEN", raising=False)
    with pytest.raises(SystemExit):
        grade_server(["--token-env", "NO_TOKEN"])
    assert "NO_TOKEN is not set" in capsys.readouterr().err.splitlines()[-1]


def test_only_what_the_extra_brings_is_said_to_be_brought_by_it() -> None:
    assert 'pip install ".[atropos]"' in missing_extra("serve", ModuleNotFoundError(name="atroposlib.envs"))
    with pytest.raises(ModuleNotFoundError):
        missing_extra("serve", ModuleNotFoundError(name="a_module_of_ones_own"))
