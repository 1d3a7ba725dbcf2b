"""A tokenizer that is built in code, for tests and benchmarks: no file is read and nothing downloaded.

One token is one byte, so a prompt of n UTF-8 bytes has n tokens, and any text survives `decode(encode(text))`
unchanged. The chat template is ChatML, as Hermes and Qwen models use it.

    token id 0 .. 255     the UTF-8 byte of that value; there are no merges
    token id 256 .. 258   <|im_start|>, <|im_end|> (eos), <|endoftext|> (pad)
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MAX_LENGTH = 1 << 30
"""Bytes are many: a limit no prompt reaches keeps the tokenizer from warning about long ones."""


def build_byte_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with no file read and nothing downloaded.

    `encode(text)` is `list(text.encode("utf-8"))`, except that the three special tokens are recognised
    in text and become one id each; `decode(..., skip_special_tokens=True)` leaves those out. Tags such
    as `<think>` and `<answer>` are ordinary text. No token is added at either end. Text with a lone
    surrogate has no UTF-8 form: `encode` raises TypeError for it.
    """
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    # Added here, in order, and not by the wrapper below: that fixes their ids in every transformers version.
    core.add_special_tokens([AddedToken(t, special=True) for t in (IM_START, IM_END, END_OF_TEXT)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def save_byte_tokenizer(directory: str | Path) -> Path:
    """Write the tokenizer so that `AutoTokenizer.from_pretrained(directory)` loads it; return the path."""
    build_byte_tokenizer().save_pretrained(directory)
    return Path(directory).resolve()


def _byte_symbols() -> list[str]:
    """The character that the ByteLevel pre-tokenizer writes for each byte, by byte value.

    Printable Latin-1 bytes stand for themselves. All remaining bytes, in ascending order, become the characters from
    U+0100 on.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    itself = {ord(symbol): symbol for symbol in alphabet if ord(symbol) < 256}
    substitutes = iter(symbol for symbol in alphabet if ord(symbol) >= 256)
    return [itself.get(byte) or next(substitutes) for byte in range(256)]
