"""The grader over HTTP: the same grades as from Python, and every failure is `null` with a reason."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from reasoning_gym_environment import Recipe, Tasks
from reasoning_gym_environment.errors import missing_extra
from reasoning_gym_environment.integrations.item_formats import RECIPE
from reasoning_gym_environment.integrations.servers import answer_in, build_app, last_message
from testing.hostile_answers import ENTRY
from testing.json_values import changed, places

PARTS = [{"name": name, "weight": 1, "config": {}} for name in ("chain_sum", "countdown")]


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with Tasks(
        "chain_sum,gcd,composite,prime_factorization", task_overrides={"composite": {"datasets": PARTS}}
    ) as tasks:
        yield tasks


def recipe_of(task: str, seed: int, **config: Any) -> dict[str, Any]:
    """A recipe that a client has written itself."""
    return {"task": task, "seed": seed, "config": json.dumps(config), "level": None, "question_digest": ""}


def test_an_invalid_request_names_its_mistake_and_grades_nothing(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(build_app(tasks), headers={"content-type": "application/json"})
    monkeypatch.setattr(Tasks, "grade_async", None)
    good = {"recipe": recipe_of("chain_sum", 1), "completions": ["x"]}
    for group, message in (
        ({**good, "completions": "x"}, "('body', 1, 'completions')"),
        ({**good, "seeds": 1}, "seeds"),
        ({"completions": ["x"]}, "('body', 1, 'recipe')"),
    ):
        found = client.post("/grade", json=[good, group])
        assert (found.status_code, message in found.text) == (422, True), found.text


def test_a_recipe_that_cannot_be_used_is_unscored_with_its_reason(tasks: Tasks) -> None:
    client = TestClient(build_app(tasks))
    for recipe, message in (
        (recipe_of("chain_summ", 1), "Unknown task 'chain_summ'. Did you mean chain_sum"),
        (recipe_of("chain_sum", 1, max_term=2), "max_term"),
        ({"task": "chain_sum"}, "Expected a recipe"),
    ):
        [[graded]] = client.post("/grade", json=[{"recipe": recipe, "completions": ["x"]}]).json()
        assert (graded["reward"], message in graded["reason"]) == (None, True), graded


# --- NeMo Gym

ROLLOUTS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "examples" / "nemo_gym" / "rollouts.jsonl").read_text().splitlines()
]


def test_the_recorded_rollouts_earn_what_nemo_gym_pays(in_process_workers: None) -> None:
    """Rows of NeMo Gym's own script, and what its server pays for these replies. Its prompts ask for no tags."""
    with Tasks("chain_sum,knights_knaves,leg_counting,number_sorting,spell_backward") as tasks:
        client = TestClient(build_app(tasks))
        replies = [client.post("/verify", json=rollout).json() for rollout in ROLLOUTS]
    assert [reply["reward"] for reply in replies] == [rollout["reward"] for rollout in ROLLOUTS]
    assert sum(reply["reward"] for reply in replies) == 7.0
    assert {(reply["mask_sample"], reply["failure_reason"]) for reply in replies} == {(False, None)}


def message(*texts: str, role: str = "assistant", kind: str = "output_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


CALL = {"type": "function_call", "name": "python", "arguments": "{}", "call_id": "1"}

READ = [
    ([message("4", "2")], "42"),
    ([{"type": "message", "content": "42"}], "42"),
    ([message("7"), CALL, message("42")], "42"),
    ([message("42"), message("7", role="user")], "42"),
    ([message("<answer>7</answer>"), message("What is 6 * 7?", role="user"), message("42")], "42"),
    ([message("42", "no", kind="refusal")], ""),
    ([{"type": "reasoning", "summary": []}], ""),
    ([message("<answer>7</answer> no, <answer> 42 </answer>.")], "42"),
    ([message("an <answer> is missing")], "an <answer> is missing"),
    ([message("<answer>" * 100_000)], "<answer>" * 100_000),
]
"""The output of an agent, and the answer in it."""


@pytest.mark.parametrize(("output", "answer"), READ)
def test_only_the_last_message_of_the_assistant_is_read(output: list[Any], answer: str) -> None:
    assert answer_in(last_message({"output": output})) == answer


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"output": 3},
        {"output": ["x"]},
        {"output": [message() | {"content": [1]}]},
        {"output": [message() | {"content": 1}]},
    ],
)
def test_a_response_that_cannot_be_read_is_masked_with_its_reason(tasks: Tasks, response: Any) -> None:
    body = {**ENTRY, "metadata": {"source_dataset": "chain_sum"}, "response": response}
    reply = TestClient(build_app(tasks)).post("/verify", json=body).json()
    assert (reply["reward"], reply["mask_sample"]) == (0.0, True)
    assert reply["failure_reason"].startswith("response: expected an output with messages")


def test_the_deadline_and_a_request_larger_than_the_queue(tasks: Tasks) -> None:
    group = {"recipe": recipe_of("chain_sum", 1), "completions": ["<answer>1</answer>"] * 3}
    late = TestClient(build_app(tasks, deadline_s=0.0)).post("/grade", json=[group]).json()[0]
    assert [(grade["reward"], grade["reason"]) for grade in late] == [(None, "not graded within 0 s")] * 3
    refused = TestClient(build_app(tasks, queue=2)).post("/grade", json=[group])
    assert (refused.status_code, "at most --queue=2 completions, got 3" in refused.text) == (413, True)


async def test_more_than_the_queue_is_refused_while_others_are_graded(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    may_end = threading.Event()

    async def waits(*_: Any, **__: Any) -> list[Any]:
        begun.set()
        await asyncio.to_thread(may_end.wait, 60.0)
        return []

    monkeypatch.setattr(tasks, "grade_async", waits)
    group = {"recipe": recipe_of("chain_sum", 1), "completions": ["<answer>1</answer>"] * 3}
    transport = httpx.ASGITransport(build_app(tasks, queue=4))
    async with httpx.AsyncClient(transport=transport, base_url="http://grader") as client:
        first = asyncio.ensure_future(client.post("/grade", json=[group]))
        await asyncio.to_thread(begun.wait, 60.0)
        second = await client.post("/grade", json=[group])
        may_end.set()
        assert (await first).status_code == 200
        assert (second.status_code, second.headers["Retry-After"]) == (503, "1") and "--queue is 4" in second.text
        assert "reasoning_gym_in_flight 0" in (await client.get("/metrics")).text


# --- what a client may choose


OTHER_CONFIG = {"min_terms": 2, "max_terms": 99}


def test_a_client_chooses_among_the_served_configs(tasks: Tasks) -> None:
    client = TestClient(build_app(tasks))
    for problem in (tasks.draw("chain_sum", 1, 2), tasks.draw("chain_sum", 1)):
        recipe = Recipe.of(problem)
        for own in (recipe, replace(recipe, question_digest="")):
            group = {"recipe": own.as_row(), "completions": [f"<answer>{problem.entry['answer']}</answer>"]}
            assert client.post("/grade", json=[group]).json()[0][0]["reward"] == 1.0


def test_any_other_config_needs_the_word_of_the_user(tasks: Tasks) -> None:
    client, trusting = TestClient(build_app(tasks)), TestClient(build_app(tasks, allow_configs=True))
    problem = tasks.make("chain_sum", 1, OTHER_CONFIG)
    row = {"recipe": Recipe.of(problem).as_row(), "completions": [f"<answer>{problem.entry['answer']}</answer>"]}
    [[unscored]] = client.post("/grade", json=[row]).json()
    assert unscored["reward"] is None and "--allow-configs" in unscored["reason"]
    assert trusting.post("/grade", json=[row]).json()[0][0]["reward"] == 1.0


def test_no_client_names_a_file(in_process_workers: None) -> None:
    part = {"name": "spell_backward", "weight": 1, "config": {"data_file": "/etc/passwd"}}
    nested = {"name": "composite", "weight": 1, "config": {"datasets": [part]}}
    recipes = [recipe_of("spell_backward", 1, data_file=file) for file in ("/etc/passwd", "/no/such/file")]
    recipes += [recipe_of("composite", 1, datasets=parts) for parts in ([part], [*PARTS, part], [nested])]
    with Tasks("composite,spell_backward", task_overrides={"composite": {"datasets": PARTS}}) as tasks:
        for allow_configs in (False, True):
            client = TestClient(build_app(tasks, allow_configs=allow_configs))
            for recipe in recipes:
                [[graded]] = client.post("/grade", json=[{"recipe": recipe, "completions": ["x"]}]).json()
                assert graded["reward"] is None and "A client may name no file" in graded["reason"]


def test_an_item_of_an_odd_shape_is_unscored_and_costs_no_worker(tasks: Tasks) -> None:
    client = TestClient(build_app(tasks))
    restarts = tasks.metrics().get("grading/worker_restarts", 0)
    response = {"output": [message("7")]}
    item = {"question": "4 + 3 = ", "answer": "7", "metadata": {"source_dataset": "prime_factorization"}}
    reply = client.post("/verify", json={**item, "response": response}).json()
    assert reply["mask_sample"] and "Error" in reply["failure_reason"]
    for odd in ({}, {"source_dataset": "no_such_task"}, {"source_dataset": ["chain_sum"]}):
        assert client.post("/verify", json={**item, "metadata": odd, "response": response}).status_code == 400
    right = {**item, "metadata": {"source_dataset": "chain_sum"}, "response": response}
    assert client.post("/verify", json=right).json()["reward"] == 1.0
    assert tasks.metrics().get("grading/worker_restarts", 0) == restarts


def test_groups_without_completions_are_refused(tasks: Tasks) -> None:
    groups = [{"recipe": recipe_of("chain_sum", seed), "completions": []} for seed in range(20_000)]
    refused = TestClient(build_app(tasks)).post("/grade", json=groups)
    assert (refused.status_code, len(refused.content) < 3000) == (422, True)


# --- requests that anybody may send


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


NOT_JSON: list[Any] = [math.nan, -math.inf, [{"a": math.inf}], {"a": [0.5, math.nan]}]
ODD: list[Any] = [*NOT_JSON, "\ud83d", {"\ud83d": "\udc00"}, nested(700), None, []]
"""Values that are tried in each field."""
MORE_ODD: list[Any] = [
    "NaN",
    "Infinity",
    "1e999",
    10**30,
    10**400,
    -(2**63) - 1,
    True,
    -1,
    2.5,
    "",
    "\0",
    {},
    "9" * 9999,
]


@pytest.fixture(scope="module")
def client(tasks: Tasks) -> TestClient:
    return TestClient(build_app(tasks), raise_server_exceptions=False, headers={"content-type": "application/json"})


@pytest.fixture(scope="module")
def requests(tasks: Tasks) -> list[tuple[str, Any]]:
    """Requests of every kind, each with a right and a wrong completion: a route and its body."""
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    problem = tasks.make("chain_sum", 1, config)
    recipe = Recipe.of(problem).as_row()
    metadata = {"source_dataset": "chain_sum", "difficulty": {"num_terms": 2}}
    item = {"question": problem.question, "answer": problem.entry["answer"], "metadata": metadata}
    right = f"<answer>{item['answer']}</answer>"
    group = {"recipe": recipe, "completions": [right, "<answer>x</answer>"]}
    response = {"output": [message(right)]}
    return [
        ("/grade", [{**group, "thinking_opened": False}, group]),
        ("/verify", {**item, "response": response, "more": {"of": "it"}}),
        ("/verify", {**item, "metadata": {**metadata, RECIPE: recipe}, "response": response}),
        ("/seed_session", {"a": 1}),
    ]


def test_an_item_with_the_recipe_of_another_item_is_masked(client: TestClient, tasks: Tasks) -> None:
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    first, second = (tasks.make("chain_sum", seed, config) for seed in (1, 2))
    metadata = {RECIPE: Recipe.of(second).as_row()}
    body = {"question": first.question, "metadata": metadata, "response": {"output": [message("<answer>5</answer>")]}}
    reply = client.post("/verify", json=body).json()
    assert reply["mask_sample"] and "the recipe of another item of chain_sum" in reply["failure_reason"]


def post(client: TestClient, route: str, content: str | bytes) -> int:
    """The status of the reply, which holds grades, or says in a few words what is wrong with the request."""
    reply = client.post(route, content=content)
    assert reply.status_code in (200, 400, 422), (content[:400], reply.text[:400])
    if reply.status_code != 200:
        assert reply.json()["detail"] and len(reply.content) < 3000
    return reply.status_code


def assert_grades(client: TestClient, requests: list[tuple[str, Any]]) -> None:
    for route, body in requests:
        found = client.post(route, json=body).json()
        if route == "/grade":
            assert [[grade["reward"] for grade in grades] for grades in found] == [[1.0, 0.0]] * 2
        elif route == "/verify":
            assert found["reward"] == 1.0


def test_an_odd_value_in_any_field_has_a_reply_and_the_server_lives_on(
    client: TestClient, requests: list[tuple[str, Any]]
) -> None:
    odd = itertools.cycle(ODD + MORE_ODD)
    for route, body in requests:
        for path in places(body):
            # The values in turn, so that each field gets some and each value comes to many fields.
            for value in itertools.islice(odd, 4):
                status = post(client, route, json.dumps(changed(body, path, value)))
                is_read = {"answer", "metadata", "recipe"} & set(path)
                if is_read and value in NOT_JSON:
                    assert status == 422, (path, value)
    assert_grades(client, requests)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 9999, b"text", b"[{]"])
def test_what_is_no_json_is_refused(client: TestClient, requests: list[tuple[str, Any]], content: bytes) -> None:
    for route, _ in requests:
        if route != "/seed_session":
            assert post(client, route, content) in (400, 422)
    assert_grades(client, requests)


def test_only_modules_of_an_extra_are_reported_as_missing_from_it() -> None:
    assert 'pip install ".[atropos]"' in missing_extra("serve", ModuleNotFoundError(name="atroposlib.envs"))
    with pytest.raises(ModuleNotFoundError):
        missing_extra("serve", ModuleNotFoundError(name="a_module_of_ones_own"))
