"""Models of different families are trained, sampled and evaluated in their own form, against a mock server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from reasoning_gym_environment.records import AnswerFormat
from testing.env_support import MakeEnv
from testing.inference_server import MockServer
from testing.model_families import FAMILIES, Family

FORMS = {
    AnswerFormat.TAGS: "<answer>{}</answer>",
    AnswerFormat.BOXED: "The answer is \\boxed{{{}}}.",
    AnswerFormat.TEXT: "{}",
}


class FamilyStudent:
    """Answers chain_sum: right, wrong, right, and so on. The thinking of a wrong completion does not end."""

    def __init__(self, family: Family, answer_format: AnswerFormat) -> None:
        self._family = family
        self._form = FORMS[answer_format]
        self._calls = itertools.count()
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        terms = prompt.rpartition(":")[2].partition("=")[0].split()
        value = sum(int(f"{sign}{number}") for sign, number in zip(["+", *terms[1::2]], terms[::2], strict=True))
        is_wrong = next(self._calls) % 2 == 1
        if not self._family.opening:
            completion = self._family.completion("", self._form.format(value + is_wrong))
        elif is_wrong:
            completion = self._family.completion(f"It is {self._form.format(value)}", None)
        else:
            completion = self._family.completion(f"Is it {self._form.format(value + 7)}?", self._form.format(value))
        # The server adds the token that ends the reply.
        return completion.removesuffix(self._family.end)


@pytest.mark.parametrize(
    ("name", "answer_format"),
    [
        ("DeepSeek R1", AnswerFormat.BOXED),
        ("gpt-oss", AnswerFormat.TAGS),
        ("Magistral", AnswerFormat.TEXT),
        ("Gemma 2", AnswerFormat.TAGS),
    ],
)
async def test_right_answers_are_paid_and_wrong_answers_are_not(
    make_env: MakeEnv, tmp_path: Path, name: str, answer_format: AnswerFormat
) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    student = FamilyStudent(family, answer_format)
    server = MockServer(student, tokenizer, is_stock=True)
    await server.start()
    try:
        settings = {
            "tokenizer_name": str(tmp_path / "tokenizer"),
            "include_tasks": "chain_sum",
            "answer_format": answer_format,
        }
        env = make_env(server.base_url, **settings)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        assert group is not None and group["scores"] == [1.0, 0.0, 1.0, 0.0]
        await env.evaluate()
        assert dict(env.eval_metrics)["eval/percent_correct"] == 0.5
    finally:
        await server.close()
    shown = {"tags": "<answer></answer>", "boxed": "\\boxed{}", "text": "the final answer alone"}[answer_format]
    assert all(shown in prompt for prompt in student.prompts)
