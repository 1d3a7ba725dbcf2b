"""Tokenizers in the form of model families: their special tokens, the shape of their chat templates, their thinking.

    FAMILIES[name].tokenizer()          a byte-level tokenizer with the family's tokens and template
    FAMILIES[name].completion(t, a)     what such a model writes when it thinks t and replies a

Each template is written here, with what matters to a prompt: which messages it takes, and what it opens for the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from testing.byte_tokenizer import build_byte_tokenizer


@dataclass(frozen=True)
class Family:
    """A family of models. `opening` and `closing` stand around the thinking; without them the model thinks aloud."""

    template: str
    special: tuple[str, ...] = ()
    """Special tokens, which decoders remove."""
    added: tuple[str, ...] = ()
    """Tokens that are not special."""
    opening: str = ""
    closing: str = ""
    end: str = "<|im_end|>"
    """The token that ends a reply."""
    prompt_opens: bool = False
    """Whether the template opens the thinking."""
    values: dict[str, Any] = field(default_factory=dict)
    """Values for the template."""

    def tokenizer(self) -> Any:
        """The tokenizer, made anew."""
        tokenizer = build_byte_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *self.special]})
        tokenizer.add_tokens(list(self.added))
        tokenizer.eos_token = self.end
        tokenizer.chat_template = self.template
        return tokenizer

    def completion(self, thinking: str, reply: str | None) -> str:
        """The model's text with its tokens. With None as the reply, it was cut off while it thought."""
        opening = "" if self.prompt_opens else self.opening
        if reply is None:
            return f"{opening}{thinking}"
        if not self.opening:
            return f"{thinking}\n{reply}{self.end}"
        return f"{opening}{thinking}{self.closing}{reply}{self.end}"


def _turns(start: str, end: str, last: str, *, first: str = "", assistant: str = "assistant") -> str:
    """A template in which each message stands between `start`, which has the place ROLE for its role, and `end`."""
    turn = start.replace("ROLE", "' + message.role + '")
    return (
        f"{{{{ '{first}' }}}}{{% for message in messages %}}"
        f"{{{{ '{turn}' + message.content + '{end}' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{last}' }}}}{{% endif %}}"
    )


CHATML = _turns("<|im_start|>ROLE\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n")

QWEN_3 = CHATML.replace(
    "<|im_start|>assistant\\n' }}",
    "<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
)

GEMMA_2 = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{{ '<start_of_turn>' + message.role + '\\n' + message.content | trim }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}{{ '<start_of_turn>model\\n' }}"
)

GEMMA_3 = (
    "{% set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}"
    "{% for message in messages if message.role != 'system' %}"
    "{{ '<start_of_turn>' + message.role + '\\n' + (first if loop.first else '') + message.content | trim }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}{{ '<start_of_turn>model\\n' }}"
)

DROPS_SYSTEM = "{% for message in messages if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% endfor %}"

PARTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)

HARMONY = (
    "{{ '<|start|>system<|message|>Reasoning: ' + reasoning_effort | default('medium') + '<|end|>' }}"
    "{% for message in messages %}"
    "{{ '<|start|>' + ('developer' if message.role == 'system' else message.role) + '<|message|>' }}"
    "{{ message.content + '<|end|>' }}{% endfor %}{{ '<|start|>assistant' }}"
)

LLAMA_3 = _turns(
    "<|start_header_id|>ROLE<|end_header_id|>\\n\\n",
    "<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
    first="<|begin_of_text|>",
)
LLAMA_3_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA_TOKENS = ("<start_of_turn>", "<end_of_turn>")
THINK = {"opening": "<think>\n", "closing": "\n</think>\n\n"}

FAMILIES = {
    "Qwen 2.5": Family(CHATML),
    "Qwen 3": Family(QWEN_3, added=("<think>", "</think>"), **THINK),
    "Qwen 3, thinking": Family(
        CHATML.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}"),
        added=("<think>", "</think>"),
        prompt_opens=True,
        **THINK,
    ),
    "DeepSeek R1": Family(
        _turns("<|ROLE|>", "", "<|assistant|><think>\\n", first="<|begin▁of▁sentence|>"),
        special=("<|begin▁of▁sentence|>", "<|end▁of▁sentence|>", "<|system|>", "<|user|>", "<|assistant|>"),
        end="<|end▁of▁sentence|>",
        prompt_opens=True,
        **THINK,
    ),
    "Llama 3": Family(LLAMA_3, special=LLAMA_3_TOKENS, end="<|eot_id|>"),
    "DeepHermes 3": Family(LLAMA_3, special=LLAMA_3_TOKENS, end="<|eot_id|>", **THINK),
    "Gemma 2": Family(GEMMA_2, special=GEMMA_TOKENS, end="<end_of_turn>"),
    "Gemma 3": Family(GEMMA_3, special=GEMMA_TOKENS, end="<end_of_turn>"),
    "Gemma 4": Family(
        _turns("<|turn>ROLE\\n", "<turn|>\\n", "<|turn>model\\n"),
        special=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
        opening="<|channel>thought\n",
        closing="\n<channel|>",
        end="<turn|>",
    ),
    "Mistral 7B": Family(DROPS_SYSTEM, special=("[INST]", "[/INST]", "</s>"), end="</s>"),
    "Magistral": Family(
        "{% for message in messages %}{% if message.role == 'system' %}"
        "[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]{% else %}[INST]{{ message.content }}[/INST]{% endif %}"
        "{% endfor %}",
        special=("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "</s>"),
        opening="[THINK]",
        closing="[/THINK]",
        end="</s>",
    ),
    "Seed-OSS": Family(
        _turns("<seed:bos>ROLE\\n", "<seed:eos>", "<seed:bos>assistant\\n"),
        special=("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"),
        opening="<seed:think>",
        closing="</seed:think>",
        end="<seed:eos>",
    ),
    "gpt-oss": Family(
        HARMONY,
        special=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|constrain|>"),
        opening="<|channel|>analysis<|message|>",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>",
        end="<|return|>",
    ),
    "Phi 4, reasoning": Family(
        _turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
        special=("<|im_sep|>",),
        **THINK,
    ),
    "GLM 4.5": Family(
        _turns("<|ROLE|>\\n", "", "<|assistant|>\\n", first="[gMASK]<sop>"),
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        added=("<think>", "</think>"),
        end="<|user|>",
        **THINK,
    ),
    "Command A, reasoning": Family(
        _turns("<|START_OF_TURN_TOKEN|><|ROLE|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"),
        special=(
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ),
        opening="<|START_THINKING|>",
        closing="<|END_THINKING|><|START_RESPONSE|>",
        end="<|END_RESPONSE|>",
    ),
    "Apertus": Family(
        _turns("<|ROLE_start|>", "<|ROLE_end|>", "<|assistant_start|>").replace("<|ROLE_end|>", "<|turn_end|>"),
        special=("<|assistant_start|>", "<|assistant_end|>", "<|inner_prefix|>", "<|inner_suffix|>", "<|turn_end|>"),
        opening="<|inner_prefix|>",
        closing="<|inner_suffix|>",
        end="<|assistant_end|>",
    ),
    "Kimi-VL": Family(PARTS, opening="◁think▷", closing="◁/think▷"),
    "EXAONE Deep": Family(
        _turns("[|ROLE|]", "[|endofturn|]\\n", "[|assistant|]<thought>\\n"),
        special=("[|endofturn|]",),
        opening="<thought>\n",
        closing="\n</thought>\n",
        end="[|endofturn|]",
        prompt_opens=True,
    ),
}
"""The families by name. Qwen 2.5, Llama 3, Gemma 2 and 3, and Mistral 7B think aloud."""
