r"""Prompt templates: how a problem becomes a prompt. Results compare only under equal templates.

    chat         the tokenizer's own chat template, the problem as the user's message
    chat-boxed   the same, with the request for a \boxed{} after the problem
    boxed        plain text: the problem, then the request
    qwen-math    Qwen2.5-Math's: ChatML whose system message asks for steps and a \boxed{}
    auto         chat if the tokenizer has a template, else boxed

Training (`model.template`) and `poise eval --template` accept these names. A new template is one
entry of TEMPLATES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, first_line, unknown_name
from counterpoise.model.template_limits import check_template_ends

AUTO = "auto"
BOXED_REQUEST = "Please reason step by step, and put your final answer within \\boxed{}."
CHATML_TURN = "<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
TRAINING_REMEDY = "set model.template="  # how training sets a template; other commands differ
RESPONSE_MARKER = "=RESPONSE="  # finds where a chat template puts a response


@dataclass(frozen=True, slots=True)
class Template:
    """How a problem, and a reply to a response, become text.

    Example:
        Template("{problem}\\nAnswer:", chat=False, reply="\\n{problem}\\nAnswer:")
    """

    text: str = "{problem}"  # the user's message in a chat, else the whole prompt
    chat: bool = True  # whether the tokenizer's chat template is put around it
    reply: str = ""  # without a chat template: the text between two responses
    required_tokens: tuple[str, ...] = ()  # special tokens that the tokenizer must know
    end_tokens: tuple[str, ...] = ()  # tokens that end a response, in addition to the model's own


TEMPLATES = {
    "chat": Template(),
    "chat-boxed": Template(f"{{problem}}\n{BOXED_REQUEST}"),
    "boxed": Template(
        "{problem}\nReason step by step and put the final answer in \\boxed{}.\n",
        chat=False,
        reply="\n{problem}\n",
    ),
    "qwen-math": Template(
        f"<|im_start|>system\n{BOXED_REQUEST}<|im_end|>\n{CHATML_TURN}",
        chat=False,
        reply=f"\n{CHATML_TURN}",
        required_tokens=("<|im_start|>", "<|im_end|>"),
        end_tokens=("<|im_end|>", "<|endoftext|>"),
    ),
}


def resolve_template(
    template_name: str, tokenizer: Any, model: str, remedy: str = TRAINING_REMEDY
) -> str:
    """The template's name with "auto" resolved; PoiseError if the tokenizer cannot apply it."""
    has_chat = bool(tokenizer.chat_template)
    if template_name == AUTO:
        template_name = "chat" if has_chat else "boxed"
    if template_name not in TEMPLATES:
        raise unknown_name("template", template_name, [AUTO, *TEMPLATES])
    template = TEMPLATES[template_name]
    if template.chat and not has_chat:
        raise PoiseError(f"model '{model}' has no chat template: {remedy}boxed")
    if template.chat:
        check_template_ends(tokenizer, model, remedy)
    if missing_tokens := [
        token for token in template.required_tokens if token_id(tokenizer, token) is None
    ]:
        raise PoiseError(
            f"template '{template_name}' needs the token {missing_tokens[0]}, which '{model}' does "
            f"not have: {remedy}{'chat' if has_chat else 'boxed'}"
        )
    return template_name


def fill_template(template_name: str, problem: str) -> str:
    """The user's message of a chat, or the whole prompt, for a problem."""
    return TEMPLATES[template_name].text.replace("{problem}", problem)


def encode_prompt(template_name: str, tokenizer: Any, problem: str) -> list[int]:
    """The tokens of a prompt, for a name from `resolve_template`."""
    template, prompt_text = TEMPLATES[template_name], fill_template(template_name, problem)
    if template.chat:
        prompt_text = _render_chat(tokenizer, [("user", prompt_text)])
    # Chat templates and templates with required tokens already contain their special tokens.
    is_plain = not template.chat and not template.required_tokens
    prompt_ids: list[int] = tokenizer.encode(prompt_text, add_special_tokens=is_plain)
    return prompt_ids


def encode_reply(
    template_name: str, tokenizer: Any, reply: str, response_ends: Sequence[int]
) -> list[int]:
    """The tokens of a reply to a response, up to where the next response begins.

    The response ended in one of the tokens `response_ends`.
    """
    reply_text = TEMPLATES[template_name].reply.replace("{problem}", reply)
    if TEMPLATES[template_name].chat:
        turns = [("user", "?"), ("assistant", RESPONSE_MARKER), ("user", reply)]
        conversation = _render_chat(tokenizer, turns)
        _, marker, reply_text = conversation.partition(RESPONSE_MARKER)
        if not marker:
            raise PoiseError(
                "the model's chat template drops earlier responses, so there is no second turn: "
                f"{TRAINING_REMEDY}boxed"
            )
        for end_token in tokenizer.convert_ids_to_tokens(list(response_ends)):
            reply_text = reply_text.removeprefix(end_token)  # the response already contains it
    reply_ids: list[int] = tokenizer.encode(reply_text, add_special_tokens=False)
    return reply_ids


def _render_chat(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    """The text of (role, content) messages as the tokenizer's chat template renders them."""
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        chat_text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
    except Exception as fault:  # a template is a program, and may raise anything
        raise PoiseError(
            f"the model's chat template cannot be rendered: {first_line(fault)}; "
            f"{TRAINING_REMEDY}boxed"
        ) from fault
    return chat_text


def end_tokens(template_name: str, tokenizer: Any, model_ends: Sequence[int]) -> tuple[int, ...]:
    """The model's own end tokens together with those of the template."""
    template_ends = (token_id(tokenizer, token) for token in TEMPLATES[template_name].end_tokens)
    return tuple(sorted({*model_ends, *(token for token in template_ends if token is not None)}))


def token_id(tokenizer: Any, token: str) -> int | None:
    """The id of a special token; None if the tokenizer does not know it as one token."""
    token_ids = tokenizer.encode(token, add_special_tokens=False)
    is_single = len(token_ids) == 1 and token_ids[0] != tokenizer.unk_token_id
    return int(token_ids[0]) if is_single else None
