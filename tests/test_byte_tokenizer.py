"""One token is one byte, whatever the text, and the tokenizer loads as it was built."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from reasoning_gym_environment.utils.seeding import derive_random

from .byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer

TEXTS = [
    *("", " ", "\n", "  two  spaces \n\n and\ttabs\r\n ", "a . b , c n't do not ."),
    *("<think>\nhm </think> <answer> 1 </answer>", "h\u00e9llo e\u0301 \U0001f600 \u200b\ufeff\u3000 \uffff \x00\x01"),
]


@pytest.fixture(scope="module", params=["built", "loaded"])
def tokenizer(request: pytest.FixtureRequest, tokenizer_dir: Path) -> Any:
    if request.param == "built":
        return build_byte_tokenizer()
    return AutoTokenizer.from_pretrained(tokenizer_dir)


def test_text_becomes_its_utf8_bytes_and_comes_back_unchanged(tokenizer: Any) -> None:
    random = derive_random("byte tokenizer", "unicode")
    code_points = [*range(0xD800), *range(0xE000, 0x110000)]
    for text in [*TEXTS, *("".join(map(chr, random.choices(code_points, k=60))) + "  a" for _ in range(50))]:
        ids = tokenizer.encode(text)
        assert ids == list(text.encode("utf-8"))
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text


def test_there_are_256_byte_tokens_and_3_special_ones_which_can_be_left_out(tokenizer: Any) -> None:
    assert len(tokenizer) == 259
    assert len(set(tokenizer.convert_ids_to_tokens(range(259)))) == 259
    special = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    assert special == [256, 257, 258]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (257, 258, None)
    text = "a<|im_start|> b <|im_end|>\n<|endoftext|>"
    ids = tokenizer.encode(text)
    assert [i for i in ids if i > 255] == [256, 257, 258]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a b \n"


def test_chat_template_is_chatml_and_opens_the_assistant_turn(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": " be {{ brief }} "}, {"role": "user", "content": "1 < 2?\n"}]
    closed = "<|im_start|>system\n be {{ brief }} <|im_end|>\n<|im_start|>user\n1 < 2?\n<|im_end|>\n"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == closed
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == closed + "<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


def test_half_a_character_is_the_replacement_character_and_a_lone_surrogate_an_error(tokenizer: Any) -> None:
    assert tokenizer.decode(list("a\u00e9".encode())[:2]) == "a\ufffd"
    with pytest.raises(TypeError):
        tokenizer.encode("\ud800")


@pytest.fixture
def warnings_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    # Level and propagation of transformers' loggers depend on the environment and on what was imported.
    logger = logging.getLogger("transformers.tokenization_utils_base")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.WARNING, logger=logger.name)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_long_text_does_not_warn(warnings_logged: pytest.LogCaptureFixture) -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.encode("x" * 300_000)
    assert warnings_logged.text == ""
    tokenizer.model_max_length = 10
    tokenizer.encode("x" * 11)
    assert "longer than the specified maximum" in warnings_logged.text


def test_saving_twice_leaves_the_same_files(tmp_path: Path) -> None:
    directory = save_byte_tokenizer(tmp_path / "new" / "tokenizer")
    first = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert save_byte_tokenizer(str(directory)) == directory
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == first
    assert "tokenizer.json" in first
