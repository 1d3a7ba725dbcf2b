"""One token is one byte, whatever the text, and the tokenizer loads as it was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from reasoning_gym_environment.sampling.seeds import derive_random

from .byte_tokenizer import build_byte_tokenizer

TEXTS = [
    *("", " ", "\n", "  two  spaces \n\n and\ttabs\r\n ", "a . b , c n't do not ."),
    *("<think>\nhm </think> <answer> 1 </answer>", "h\u00e9llo e\u0301 \U0001f600 \u200b\ufeff\u3000 \uffff \x00\x01"),
]


@pytest.fixture(scope="module", params=["built", "loaded"])
def tokenizer(request: pytest.FixtureRequest, tokenizer_dir: Path) -> Any:
    return build_byte_tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(tokenizer_dir)


def test_text_becomes_its_utf8_bytes_and_comes_back_unchanged(tokenizer: Any) -> None:
    random = derive_random("byte tokenizer", "unicode")
    code_points = [*range(0xD800), *range(0xE000, 0x110000)]
    for text in [*TEXTS, *("".join(map(chr, random.choices(code_points, k=60))) + "  a" for _ in range(50))]:
        ids = tokenizer.encode(text)
        assert ids == list(text.encode("utf-8"))
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == text


def test_there_are_three_special_tokens_which_can_be_left_out(tokenizer: Any) -> None:
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (257, 258, None)
    assert tokenizer.model_max_length > 10**9, "a longer text would be warned of"
    ids = tokenizer.encode("a<|im_start|> b <|im_end|>\n<|endoftext|>")
    assert [one for one in ids if one > 255] == [256, 257, 258]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a b \n"
