"""Servers as they are: what one refuses is asked otherwise, once and with a line, or is told in the server's words."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig
from reasoning_gym_environment.atropos import preflight
from reasoning_gym_environment.atropos.conversions import problem_of
from reasoning_gym_environment.errors import EnvironmentSetupError, InferenceError, RequestRefusedError
from reasoning_gym_environment.inference import client as inference
from reasoning_gym_environment.inference import dialects
from reasoning_gym_environment.inference.client import InferenceClient
from reasoning_gym_environment.inference.dialects import Dialect, NoCompletionsError, Refusal, TrlTokenServer, said_in
from reasoning_gym_environment.inference.prompts import EstimatedTokens, Sampling, build_messages

from ..env_support import ReadyEnv
from ..mock_dialects import (
    Faults,
    Manners,
    MockServer,
    limiting_manners,
    llama_cpp_manners,
    ollama_manners,
    reasoning_manners,
    sglang_manners,
    vllm_manners,
)

REPLY = "<think>two and two</think><answer>4</answer>"
GROUP = Sampling(4, 6000, 0.7, 0.95)
QUESTION = Sampling(1, 6000, 0.1, split="eval")
CONTEXT = 3000
FITS = f"completions that fit its context of {CONTEXT} tokens"
ONE = "one choice a request"
NAMED = "max_completion_tokens in place of max_tokens"
PLAIN = ["its own temperature", "its own top_p"]

MakeClient = Callable[[MockServer, str], InferenceClient]


@pytest.fixture
def make_client(tokenizer_dir: Path, byte_tokenizer: Any) -> MakeClient:
    def make(server: MockServer, kind: str) -> InferenceClient:
        name = str(tokenizer_dir)
        named = {"model_name": name, "tokenizer_name": name, "api_key": "x", "health_check": False}
        settings = APIServerConfig(server_type=kind, base_url=server.base_url, **named)
        options = {"server_class": TrlTokenServer} if kind == "trl" else {}
        return InferenceClient(ServerManager([settings], **options), byte_tokenizer, name)

    return make


def server(tokenizer: Any, manners: Manners | None = None, **faults: Any) -> MockServer:
    return MockServer(lambda prompt: REPLY, tokenizer, manners=manners, faults=Faults(**faults))


def refuse(status: int, payload: Any) -> Manners:
    return lambda body, prompt: (status, payload, {})


@pytest.mark.parametrize(
    ("kind", "manners", "faults", "changes", "refusals"),
    [
        ("openai", vllm_manners(CONTEXT, release="0.8"), {}, [FITS], 1),
        ("openai", vllm_manners(CONTEXT), {}, [FITS], 1),
        ("openai", vllm_manners(CONTEXT, release="0.20"), {}, [FITS], 4),
        ("openai", sglang_manners(CONTEXT), {}, [FITS], 1),
        # Atropos' client of it drops the sentence, for which it is asked again.
        ("sglang", sglang_manners(CONTEXT), {}, [FITS], 2),
        ("openai", llama_cpp_manners(CONTEXT), {}, [ONE], 1),
        ("openai", llama_cpp_manners(CONTEXT, status=500), {}, [ONE], 1),
        ("openai", None, {"ignore_n": True}, [ONE], 0),
        ("openai", reasoning_manners, {}, [*PLAIN, NAMED], 3),
    ],
)
@pytest.mark.filterwarnings("ignore:n kwarg is ignored")
async def test_what_a_server_refuses_is_asked_otherwise_from_then_on(
    make_client: MakeClient,
    byte_tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    manners: Any,
    faults: Any,
    changes: list[str],
    refusals: int,
) -> None:
    async with server(byte_tokenizer, manners, **faults) as mock:
        client = make_client(mock, kind)
        prompts = [client.render(build_messages(question)) for question in ("What is 2 + 2?", "What is 3 + 1?", "2?")]
        for prompt in prompts:
            for sampling in (GROUP, QUESTION):
                completions = await client.complete(prompt, sampling)
                assert [completion.text for completion in completions] == [REPLY] * sampling.n
        # Retries of llama.cpp's 500 are the OpenAI library's own.
        limit = 3 if kind == "openai" and mock.refused and mock.refused[0][0] == 500 else refusals
        assert len(mock.refused) == limit
        choices = 2 if ONE in changes else 1
        assert len(mock.requests) == len(prompts) * (5 if choices == 2 else 2), "nothing is paid for twice"
    assert client.changes == changes
    assert client.metrics().get("inference/changed_requests", 0) >= len(changes)
    assert all(caplog.text.count(f"is asked for {change} from now on") == 1 for change in changes)


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang", "trl"])
async def test_what_cannot_be_asked_otherwise_is_not_repeated_and_said_in_the_servers_words(
    make_client: MakeClient, byte_tokenizer: Any, kind: str
) -> None:
    payload = {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}}
    async with server(byte_tokenizer, refuse(404, payload)) as mock:
        client = make_client(mock, kind)
        with pytest.raises(RequestRefusedError, match=r"/v1 answers 404: The model `m` does not exist\.") as caught:
            await client.complete(client.render(build_messages("q")), QUESTION)
        assert "check openai.base_url" in caught.value.advice and "openai.model_name" in caught.value.advice
        assert len(mock.refused) == (2 if kind in ("vllm", "sglang") else 1)


@pytest.mark.parametrize("kind", ["openai", "vllm"])
@pytest.mark.parametrize(
    ("spoil", "change", "told", "requests"),
    [
        (lambda made: made[: max(1, len(made) // 2)], [ONE], "it gives 2 of 4", 3 * (1 + 2) + 4),
        (lambda made: [*made, made[0]], [], "gives 1 choices more than asked for", 4),
    ],
)
async def test_of_choices_too_few_are_filled_up_and_too_many_dropped(
    make_client: MakeClient,
    byte_tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    spoil: Any,
    change: list[str],
    told: str,
    requests: int,
) -> None:
    async with server(byte_tokenizer, spoil=spoil) as mock:
        client = make_client(mock, kind)
        for _ in range(4):
            assert len(await client.complete(client.render(build_messages("q")), GROUP)) == 4
        assert len(mock.requests) == requests and client.changes == change
    assert caplog.text.count(told) == 1


SAYS = {"error": {"message": "model\x1b[31m overloaded", "code": 503}}


@pytest.mark.parametrize(
    ("kind", "reply", "said"),
    [
        ("openai", SAYS, r"\(an error in place of completions: model \[31m overloaded\)"),
        ("openai", {"id": "x", "choices": None}, r"check openai\.base_url.*\(the reply is not a chat completion\)"),
        ("openai", "<h1>Welcome</h1>", r"check openai\.base_url.*\(the reply is not a chat completion \(Welcome\)\)"),
        ("vllm", SAYS, r"\(an error in place of completions: model \[31m overloaded\)"),
        ("vllm", {"text": []}, r"check openai\.base_url.*not as that of vLLM's /generate \(KeyError: 'logprobs'\)"),
        ("vllm", "<h1>Welcome</h1>", r"openai\.server_type \(the reply is not as that of vLLM's /generate"),
    ],
)
async def test_a_reply_without_completions_is_told_in_words_and_ends_a_command_at_its_start(
    make_client: MakeClient, byte_tokenizer: Any, caplog: pytest.LogCaptureFixture, kind: str, reply: Any, said: str
) -> None:
    config = ReasoningGymEnvConfig(use_wandb=False, max_token_length=4000)
    first = preflight.first_request(config, byte_tokenizer)
    async with server(byte_tokenizer, lambda body, prompt: (200, reply, {})) as mock:
        client = make_client(mock, kind)
        with pytest.raises(EnvironmentSetupError, match=rf"/v1 answers 200 to a request .*{said}"):
            await preflight.check_offline_use(config, client._server, first)
        # `serve` waits for what a server says of itself, as for one with status 500, and not for a wrong address.
        if reply is SAYS:
            await preflight.check_first_request(client._server, first)
            assert "gave no completions at first (an error in place of completions: model" in caplog.text
        else:
            with pytest.raises(EnvironmentSetupError, match=said):
                await preflight.check_first_request(client._server, first)
        # In mid-run it may pass.
        [one] = client._server.servers
        with pytest.raises(NoCompletionsError, match=r"^an error in place of completions|^the reply .*: check openai"):
            if kind == "openai":
                await one._chat_completion_wrapper(model="m", messages=first[0].messages)
            else:
                await one._tokens_and_logprobs_completion_wrapper(model="m", input_ids=[1], max_tokens=9)


async def test_servers_that_refuse_every_prompt_end_the_run(
    make_client: MakeClient, byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(byte_tokenizer) as mock:
        client = make_client(mock, "openai")

        async def ask(question: str) -> None:
            await client.complete(client.render(build_messages(question)), QUESTION)

        await ask("is answered")
        mock.manners = refuse(400, {"error": "tool_choice is required"})
        for question in ("a", "a", "b", "c", "d"):
            with pytest.raises(RequestRefusedError):
                await ask(question)
        mock.manners = None
        await ask("is answered again, so it was started anew")
        mock.manners = refuse(400, {"error": "tool_choice is required"})
        monkeypatch.setattr(inference, "REFUSED_FOR_S", 0.0)
        for question in ("a", "a", "b"):
            with pytest.raises(RequestRefusedError):
                await ask(question)
        with pytest.raises(EnvironmentSetupError, match="tool_choice is required"):
            await ask("c")


async def test_a_model_that_is_loaded_behind_a_proxy_that_knows_no_such_page_is_waited_for(
    make_client: MakeClient, byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(inference, "time", SimpleNamespace(monotonic=lambda: now))
    async with server(byte_tokenizer) as mock:
        client = make_client(mock, "vllm")

        async def ask(question: str) -> None:
            await client.complete(client.render(build_messages(question)), QUESTION)

        await ask("is answered")
        mock.manners = refuse(404, {"detail": "Not Found"})
        for minute in range(20):
            now = 60.0 * minute
            with pytest.raises(RequestRefusedError):
                await ask(f"question {minute}")
        mock.manners = None
        await ask("is answered again")


async def test_a_prompt_too_long_costs_itself_and_is_not_sent_once_the_context_is_known(
    make_client: MakeClient, byte_tokenizer: Any
) -> None:
    async with server(byte_tokenizer, sglang_manners(CONTEXT)) as mock:
        client = make_client(mock, "openai")
        for question in ("a" * 4000, "b" * 4000, "c" * 4000, "d" * 4000):
            with pytest.raises(InferenceError, match="leaves no room for a completion"):
                await client.complete(client.render(build_messages(question)), QUESTION)
        await client.complete(client.render(build_messages("short")), QUESTION)
        assert len(mock.refused) == 1


async def test_a_server_that_asks_to_wait_is_waited_for_and_told_of_once(
    make_client: MakeClient, byte_tokenizer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "SHORTEST_PAUSE_S", 0.01)
    # The OpenAI library waits twice by itself, then hands the answer on.
    async with server(byte_tokenizer, limiting_manners(1, "0.01")) as mock:
        client = make_client(mock, "openai")
        before = client._pauses.note

        def note(kind: str, detail: str) -> None:
            before(kind, detail)
            if client._pauses.counts[kind] == 3:
                mock.manners = None

        client._pauses.note = note  # type: ignore[method-assign]
        [completion] = await client.complete(client.render(build_messages("q")), QUESTION)
    assert completion.text == REPLY
    assert [line for line in caplog.messages if "Rate limit reached" in line] == [
        f"Pauses that the server asks for: 0 s, {mock.base_url} answers 429: Rate limit reached for requests per "
        "minute. Further ones are counted."
    ]
    assert client.metrics()["inference/pauses_asked_for"] == 3.0


async def test_a_pause_of_nothing_becomes_one_that_doubles_until_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now, headers = 1000.0, "0"
    monkeypatch.setattr(dialects, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    async def chat(**request: Any) -> Any:
        if not headers:
            return SimpleNamespace(choices=[], usage=None)
        asked: Any = SimpleNamespace(
            status_code=429, headers={"Retry-After": headers}, text="", request=SimpleNamespace(method="POST", url="u")
        )
        raise openai.RateLimitError("429", response=asked, body=None)

    one = SimpleNamespace(config=SimpleNamespace(base_url="u"), _chat_completion_wrapper=chat)
    Dialect.of(one)
    pauses = []
    for headers in ("0", "-3", "Wed, 21 Oct 2015 07:28:00 GMT", "7", "0", *"0000", "", "0"):
        replies = [await one._chat_completion_wrapper(messages=[]) for _ in range(3)]
        if headers:
            [pause_s] = {reply.pause_s for reply in replies}
            pauses.append(pause_s)
            now += pause_s
    assert pauses == [1, 2, 4, 7, 8, 16, 32, 60, 60, 1]


async def test_requests_that_are_refused_together_learn_together(make_client: MakeClient, byte_tokenizer: Any) -> None:
    for manners in (llama_cpp_manners(CONTEXT), reasoning_manners, vllm_manners(CONTEXT, release="0.20")):
        async with server(byte_tokenizer, manners) as mock:
            client = make_client(mock, "openai")
            prompts = [client.render(build_messages("q" * size)) for size in range(20)]
            groups = await asyncio.gather(*(client.complete(prompt, GROUP) for prompt in prompts))
        assert {len(group) for group in groups} == {4}


async def test_while_one_of_several_servers_asks_to_wait_the_others_are_asked(
    tokenizer_dir: Path, byte_tokenizer: Any
) -> None:
    async with server(byte_tokenizer, limiting_manners(1, "500")) as busy, server(byte_tokenizer) as other:
        options = {"model_name": "m", "api_key": "x", "server_type": "openai"}
        settings = [APIServerConfig(base_url=one.base_url, health_check=False, **options) for one in (busy, other)]
        client = InferenceClient(ServerManager(settings), byte_tokenizer, str(tokenizer_dir))
        for one in client._server.servers:
            one.openai = one.openai.with_options(max_retries=0)
        prompt = client.render(build_messages("q"))
        for _ in range(6):
            await asyncio.wait_for(client.complete(prompt, QUESTION), 60)
    assert (len(busy.refused), len(other.requests)) == (1, 6)


async def test_of_choices_asked_for_one_by_one_those_that_came_are_kept(
    make_client: MakeClient, byte_tokenizer: Any
) -> None:
    async with server(byte_tokenizer, llama_cpp_manners(CONTEXT)) as mock:
        client = make_client(mock, "openai")
        prompt = client.render(build_messages("q"))
        await client.complete(prompt, GROUP)
        # More than the OpenAI library repeats by itself.
        mock.faults.cut_next = 3
        [one] = client._server.servers
        one.openai = one.openai.with_options(max_retries=0)
        assert len(await client.complete(prompt, GROUP)) == 4
        assert len(mock.requests) == 4 + 3 + 4, "three were cut and asked for again, the fourth was not"


def test_of_a_body_of_whatever_shape_the_sentence_is_found() -> None:
    for body, sentence in [
        ('{"error": {"message": "a\\nb", "code": 400}}', "a b"),
        ('{"object": "error", "message": "older vLLM"}', "older vLLM"),
        ('{"error": "TGI says"}', "TGI says"),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted"}]}', "'n': Extra inputs are not"),
        ("<html><h1>413 Too Large</h1>\n<hr>nginx</html>", "413 Too Large nginx"),
        ("[]", ""),
        ("null", ""),
        ("", ""),
    ]:
        assert said_in(body)[0].startswith(sentence), body
        assert bool(said_in(body)[0]) == bool(sentence)


ASKED = {"max_tokens": 6000, "temperature": 0.7, "top_p": 0.95, "n": 4}


@pytest.mark.parametrize(
    ("sentence", "asked_then"),
    [
        ("max_tokens=6000 cannot be greater than max_model_len=max_total_tokens=3072.", {"max_tokens": 2971}),
        ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 99", {"max_tokens": 3995}),
        ("request (99 tokens) exceeds the available context size (4096 tokens), try increasing", {"max_tokens": 3995}),
        ("Requested tokens (6100) exceed context window of 2048", {"max_tokens": 1947}),
        ("max_tokens is too large: 6000. This model supports at most 4,096 completion tokens", {"max_tokens": 4096}),
        ("max_tokens: 6000 > 4096, which is the maximum allowed number of output tokens", {"max_tokens": 4096}),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]", {"max_tokens": 4096}),
        ("'max_tokens': Input should be less than or equal to 4096", {"max_tokens": 4096}),
        ("`temperature` and `top_p` cannot both be specified for this model", {"top_p": None}),
        ("'n' : number must be at most 1", {"n": None}),
        ("n must be 1 when using greedy sampling, got 4.", {"n": None}),
        # For a person: a lower value might do, or the model is another one.
        ("temperature must be between 0 and 0.5", None),
        ("'temperature': Input should be less than or equal to 0.5", None),
        ("The model `m` does not exist.", None),
        ("Conversation roles must alternate user/assistant", None),
        ("max_tokens is not what I like", None),
    ],
)
async def test_sentences_are_understood_or_left_to_a_person(sentence: str, asked_then: dict[str, Any] | None) -> None:
    sent: list[dict[str, Any]] = []

    async def chat(**request: Any) -> Any:
        sent.append(request)
        if len(sent) == 1:
            raise refusal_of({"error": {"message": sentence}})
        return SimpleNamespace(choices=[], usage=None)

    settings = SimpleNamespace(base_url="http://h/v1", n_kwarg_is_ignored=False)
    one = SimpleNamespace(config=settings, _chat_completion_wrapper=chat)
    Dialect.of(one)
    reply = await one._chat_completion_wrapper(messages=[], prompt_tokens=100, **ASKED)
    assert Dialect.of(one) is Dialect.of(one)
    if asked_then is None:
        assert isinstance(reply, Refusal) and reply.sentence == sentence.rstrip() and len(sent) == 1
        return
    expected = {name: value for name, value in {**ASKED, **asked_then}.items() if value is not None}
    assert sent[1] == {"messages": [], **expected}
    assert len(sent) == (5 if "n" in asked_then else 2)


def refusal_of(body: Any) -> Exception:
    """As the OpenAI library raises it."""
    asked = SimpleNamespace(method="POST", url="u")
    response: Any = SimpleNamespace(status_code=400, headers={}, text=json.dumps(body), request=asked)
    return openai.BadRequestError("400", response=response, body=body)


# --- before the run, and without a tokenizer


async def test_the_first_request_has_the_shape_of_those_that_follow(
    make_client: MakeClient, byte_tokenizer: Any, tokenizer_dir: Path
) -> None:
    config = ReasoningGymEnvConfig(use_wandb=False, max_token_length=2000, train_temperature=0.8, group_size=3)
    for kind in ("openai", "vllm"):
        async with server(byte_tokenizer) as mock:
            client = make_client(mock, kind)
            for evaluates, expected in ((True, (1, 0.1, None)), (False, (3, 0.8, 0.95))):
                first = preflight.first_request(config, byte_tokenizer, evaluates=evaluates)
                await preflight.check_offline_use(config, client._server, first)
                asked = mock.requests[-1]
                assert (asked.n, asked.sampling["temperature"], asked.sampling.get("top_p")) == expected
                assert asked.max_tokens == (4000 if evaluates else 2000) - len(first[0].tokens)


async def test_a_server_that_refuses_the_first_request_ends_the_command_with_its_sentence(
    make_client: MakeClient, byte_tokenizer: Any
) -> None:
    config = ReasoningGymEnvConfig(use_wandb=False, max_token_length=4000)
    first = preflight.first_request(config, byte_tokenizer)
    async with server(byte_tokenizer, ollama_manners("other")) as mock:
        client = make_client(mock, "openai")
        with pytest.raises(EnvironmentSetupError, match=r"404.*openai\.model_name.*\(model '.*' not found\)"):
            await preflight.check_offline_use(config, client._server, first)
        mock.manners = vllm_manners(CONTEXT)
        await preflight.check_offline_use(config, client._server, first)
        assert client.changes == [FITS], "what the first request taught holds for the others"
        await client.complete(*first)
        assert len(mock.refused) == 2


def test_estimated_tokens_give_the_text_back_and_are_not_fewer_than_a_models() -> None:
    tokens = EstimatedTokens()
    for text, at_least in [
        ("Calculate 12345 + 1.", 11),
        ("0 1 1 0", 7),
        ("héé 🙂 日本", 6),
        ("", 0),
        ("<answer>4</answer>", 6),
    ]:
        ids = tokens.encode(text)
        assert tokens.decode([*ids, tokens.eos_token_id], skip_special_tokens=True) == text
        assert len(ids) >= at_least


async def test_openai_servers_need_no_tokenizer_which_is_said_once(
    byte_tokenizer: Any, in_process_grading: None, in_process_generation: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reasoning_gym_environment")
    for name in ("none", "./no-such-tokenizer"):
        caplog.clear()
        config = ReasoningGymEnvConfig(
            tokenizer_name=name,
            include_tasks=["chain_sum"],
            num_eval_samples_per_task=1,
            group_size=2,
            use_wandb=False,
            max_token_length=2048,
        )
        async with server(byte_tokenizer) as mock:
            options = {"base_url": mock.base_url, "model_name": "m", "api_key": "x"}
            env = ReasoningGymEnv(config, [APIServerConfig(server_type="openai", **options)])
            await env.setup()
            try:
                assert "eval/percent_correct" in await env.evaluate()
                group, _ = await env.collect_trajectories(await env.get_next_item())
            finally:
                await env.close()
        assert group is None or len(group["tokens"]) == 2
        assert mock.requests[0].max_tokens and mock.requests[0].max_tokens > 2048
        assert caplog.text.count("tokens are estimated") == 1
    with pytest.raises(EnvironmentSetupError, match="Cannot load the tokenizer"):
        ReasoningGymEnv(config, [APIServerConfig(server_type="vllm", **options)])


async def test_a_refusal_for_good_ends_a_group_and_its_item_is_kept(ready_env: ReadyEnv, monkeypatch: Any) -> None:
    env = await ready_env()

    async def complete(prompt: Any, sampling: Any) -> Any:
        raise EnvironmentSetupError("the server wants none of it")

    monkeypatch.setattr(env.components.inference, "complete", complete)
    item = await env.get_next_item()
    index = problem_of(*item[1:]).index
    with pytest.raises(EnvironmentSetupError, match="none of it"):
        await env.collect_trajectories(item)
    assert index in [one for one, *_ in env.components.stream.state_dict()["pending"]]
