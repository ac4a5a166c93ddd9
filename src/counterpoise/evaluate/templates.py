r"""How a problem is put to a model. The same model asked another way is another number.

    qwen-math    Qwen2.5-Math's: ChatML whose system message asks for steps and a \boxed{}
    chat         the tokenizer's own chat template, the problem as the user's message
    chat-boxed   the same, with the request for a \boxed{} after the problem
    boxed        plain text: the problem, then the request
    auto         chat where the tokenizer has a template, else boxed: as `poise train` asks

A model is asked as it was trained: one that `poise train` made by `auto`, a Qwen model from the hub
by qwen-math. Adding a template is one line of TEMPLATES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, unknown
from counterpoise.policy.load import BOXED
from counterpoise.types import Ints

AUTO = "auto"
ASK = "Please reason step by step, and put your final answer within \\boxed{}."
CHAT_ML = (
    f"<|im_start|>system\n{ASK}<|im_end|>\n"
    "<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass(frozen=True, slots=True)
class Template:
    """Example: Template(text="{problem}\\nAnswer:")"""

    text: str = ""  # holds {problem}; empty: the tokenizer's chat template
    ask: str = ""  # put after the problem, in a chat
    needs: tuple[str, ...] = ()  # tokens without which the text is only letters
    ends: tuple[str, ...] = ()  # tokens that end a response, beside the model's own


TEMPLATES = {
    "qwen-math": Template(
        CHAT_ML, needs=("<|im_start|>", "<|im_end|>"), ends=("<|im_end|>", "<|endoftext|>")
    ),
    "chat": Template(),
    "chat-boxed": Template(ask=f"\n{ASK}"),
    "boxed": Template(BOXED.replace("{{}}", "{}")),
}


def resolve(name: str, tokenizer: Any, model: str) -> str:
    """The template's own name; a tokenizer that cannot write it is an error."""
    has_chat = bool(tokenizer.chat_template)
    if name == AUTO:
        return "chat" if has_chat else "boxed"
    if name not in TEMPLATES:
        raise unknown("template", name, [AUTO, *TEMPLATES])
    template = TEMPLATES[name]
    if not template.text and not has_chat:
        raise PoiseError(f"model '{model}' has no chat template: give --template boxed")
    if missing := [token for token in template.needs if token_id(tokenizer, token) is None]:
        raise PoiseError(
            f"template '{name}' needs the token {missing[0]}, which '{model}' does not have: give "
            f"--template {'chat' if has_chat else 'boxed'}"
        )
    return name


def encode(name: str, tokenizer: Any, problem: str) -> Ints:
    """The tokens of a prompt, for a name that `resolve` gave."""
    template = TEMPLATES[name]
    if template.text:
        text = template.text.replace("{problem}", problem)
        ids = tokenizer.encode(text, add_special_tokens=not template.needs)
    else:
        message = [{"role": "user", "content": problem + template.ask}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
    return np.array(ids, dtype=np.int32)


def end_tokens(name: str, tokenizer: Any, own: Sequence[int]) -> tuple[int, ...]:
    """The model's own end tokens and those of the template."""
    added = (token_id(tokenizer, token) for token in TEMPLATES[name].ends)
    return tuple(sorted({*own, *(token for token in added if token is not None)}))


def token_id(tokenizer: Any, token: str) -> int | None:
    """The number of a special token; None where it is several tokens, or unknown."""
    ids = tokenizer.encode(token, add_special_tokens=False)
    found = len(ids) == 1 and ids[0] != tokenizer.unk_token_id
    return int(ids[0]) if found else None
