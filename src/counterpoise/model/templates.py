r"""Prompt templates: how a problem becomes a prompt. Results compare only under equal templates.

    chat         the tokenizer's own chat template, the problem as the user's message
    chat-boxed   the same, with Qwen2.5-Math's request for a \boxed{} after the problem
    boxed        plain text: the problem, then a shorter request for a \boxed{}
    qwen-math    Qwen2.5-Math's: ChatML whose system message asks for steps and a \boxed{}
    auto         chat if the tokenizer has a template, else boxed

Training (`model.template`), `poise eval` and `poise replay` (`--template`) accept these names. A
new template is one entry of TEMPLATES.

A problem that is a conversation keeps its system prompt and its turns: chat templates render all
its messages, `qwen-math` puts its own system message only where there is none, and `boxed` writes
the texts one below the other. What a template adds to a problem goes to the user's last message.
A last turn of the assistant is the beginning of the response.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, first_line, unknown_name
from counterpoise.model.template_limits import check_template_finishes
from counterpoise.types import Message, Prompt

AUTO = "auto"
BOXED_REQUEST = "Please reason step by step, and put your final answer within \\boxed{}."
CHATML_MESSAGE = "<|im_start|>{role}\n{content}<|im_end|>\n"
CHATML_TURN = "<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
# An error advises `option_prefix` and the name of a template. This is how training sets one, and
# how `poise eval` and `poise replay` do.
TRAINING_OPTION = "set model.template="
COMMAND_OPTION = "give --template "
LONGEST_CHAT = 1 << 26  # characters; a tokenizer would need gigabytes for more
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
    message: str = "{content}\n"  # without one: any message before the user's last one
    # The part of `text` after the system message that it begins with ("" if it begins with none).
    # The earlier messages of a conversation go between that system message and this part.
    last_message: str = ""
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
        message=CHATML_MESSAGE,
        last_message=CHATML_TURN,
        required_tokens=("<|im_start|>", "<|im_end|>"),
        end_tokens=("<|im_end|>", "<|endoftext|>"),
    ),
}


def resolve_template(
    template_name: str, tokenizer: Any, model: str, option_prefix: str = TRAINING_OPTION
) -> str:
    """The template's name with "auto" resolved; PoiseError if the tokenizer cannot apply it."""
    has_chat = bool(tokenizer.chat_template)
    if template_name == AUTO:
        template_name = "chat" if has_chat else "boxed"
    if template_name not in TEMPLATES:
        raise unknown_name("template", template_name, [AUTO, *TEMPLATES])
    template = TEMPLATES[template_name]
    if template.chat and not has_chat:
        raise PoiseError(f"model '{model}' has no chat template: {option_prefix}boxed")
    if template.chat:
        check_template_finishes(tokenizer, model, option_prefix)
    if missing_tokens := [
        token for token in template.required_tokens if token_id(tokenizer, token) is None
    ]:
        raise PoiseError(
            f"template '{template_name}' needs the token {missing_tokens[0]}, which '{model}' does "
            f"not have: {option_prefix}{'chat' if has_chat else 'boxed'}"
        )
    return template_name


def check_chat_data(
    template_name: str,
    tokenizer: Any,
    model: str,
    prompts: Iterable[Prompt],
    option_prefix: str = TRAINING_OPTION,
) -> None:
    """Refuse conversations if the tokenizer has no chat template, unless a template was named.

    `template_name` is the option's value, before "auto" is resolved: plain text without roles is
    not what chat data was made for, so it has to be asked for.
    """
    if template_name == AUTO and not tokenizer.chat_template:
        for prompt in prompts:
            if prompt.messages:
                raise PoiseError(
                    f"the prompts are chat messages, and model '{model}' has no chat template: "
                    f"choose a chat model, or {option_prefix}boxed, which joins the messages to "
                    "plain text"
                )


def describe_template_omission(
    template_name: str, tokenizer: Any, model: str, prompts: Iterable[Prompt]
) -> str:
    """A warning if the tokenizer's chat template leaves out a message of the first conversation.

    Some templates have no place for a system prompt and drop it without an error. Turns of the
    assistant are not compared: some templates cut reasoning out of earlier turns on purpose.
    """
    prompt = next((prompt for prompt in prompts if prompt.messages), None)
    if prompt is None or not TEMPLATES[template_name].chat:
        return ""
    rendered = _render_chat(tokenizer, prompt_messages(template_name, prompt), TRAINING_OPTION)
    omitted_roles = [
        message.role
        for message in prompt.messages
        if message.role in ("system", "user") and message.content.strip() not in rendered
    ]
    if not omitted_roles:
        return ""
    return (
        f"WARNING: the chat template of model '{model}' leaves out the {omitted_roles[0]} message "
        f"of prompt '{prompt.id}': put it into the user's message, or {TRAINING_OPTION}boxed"
    )


def fill_template(template_name: str, problem: str) -> str:
    """The user's message of a chat, or the whole prompt, for a problem."""
    return TEMPLATES[template_name].text.replace("{problem}", problem)


def prompt_messages(template_name: str, problem: Prompt | str) -> list[dict[str, str]]:
    """The messages that a chat template renders for a problem."""
    prompt = Prompt("", problem, "") if isinstance(problem, str) else problem
    filled = prompt.rewrite(lambda text: fill_template(template_name, text))
    messages = filled.messages or (Message("user", filled.problem),)
    return [dict(message) for message in messages]


def prompt_text(template_name: str, problem: Prompt | str) -> str:
    """The whole prompt for a problem, with a template that is no chat template."""
    if isinstance(problem, str) or not problem.messages:
        text = problem if isinstance(problem, str) else problem.problem
        return fill_template(template_name, text)
    template, messages = TEMPLATES[template_name], problem.messages
    last_user = max(i for i, message in enumerate(messages) if message.role == "user")
    last_message = template.last_message or template.text
    # What stands before the user's message in the template is its own system message.
    has_system = any(message.role == "system" for message in messages)
    rendered = [] if has_system else [template.text.removesuffix(last_message)]
    for message in messages[:last_user]:
        marked = template.message.replace("{role}", message.role)
        rendered.append(marked.replace("{content}", message.content))
    rendered.append(last_message.replace("{problem}", messages[last_user].content))
    rendered += [message.content for message in messages[last_user + 1 :]]
    return "".join(rendered)


def encode_prompt(template_name: str, tokenizer: Any, problem: Prompt | str) -> list[int]:
    """The tokens of a prompt, for a name from `resolve_template`."""
    return encode_prompts(template_name, tokenizer, [problem])[0]


def encode_prompts(
    template_name: str,
    tokenizer: Any,
    problems: Sequence[Prompt | str],
    option_prefix: str = TRAINING_OPTION,
) -> list[list[int]]:
    """The tokens of each prompt; one call of a fast tokenizer for all takes less than half the time
    of a call for each."""
    template = TEMPLATES[template_name]
    rendered = [
        _render_chat(tokenizer, prompt_messages(template_name, problem), option_prefix)
        if template.chat
        else prompt_text(template_name, problem)
        for problem in problems
    ]
    # Chat templates and templates with required tokens already contain their special tokens.
    is_plain = not template.chat and not template.required_tokens
    prompt_ids: list[list[int]]
    if len(rendered) > 1 and getattr(tokenizer, "is_fast", False):
        options = {"return_attention_mask": False, "return_token_type_ids": False}
        prompt_ids = tokenizer(rendered, add_special_tokens=is_plain, **options)["input_ids"]
    else:
        prompt_ids = [tokenizer.encode(text, add_special_tokens=is_plain) for text in rendered]
    if not all(prompt_ids):
        raise PoiseError(
            f"template '{template_name}' makes a prompt without tokens: {option_prefix}"
            f"{'boxed' if template.chat else 'chat'}, or choose another model"
        )
    return prompt_ids


def encode_reply(
    template_name: str,
    tokenizer: Any,
    reply: str,
    response_ends: Sequence[int],
    option_prefix: str = TRAINING_OPTION,
) -> list[int]:
    """The tokens of the environment's reply to a response, up to where the next response begins.

    The response ended in one of the tokens `response_ends`.
    """
    reply_text = TEMPLATES[template_name].reply.replace("{problem}", reply)
    if TEMPLATES[template_name].chat:
        turns = [("user", "?"), ("assistant", RESPONSE_MARKER), ("user", reply)]
        messages = [dict(Message(*turn)) for turn in turns]
        conversation = _render_chat(tokenizer, messages, option_prefix)
        _, marker, reply_text = conversation.partition(RESPONSE_MARKER)
        if not marker:
            raise PoiseError(
                "the model's chat template drops earlier responses, so there is no second turn: "
                f"{option_prefix}boxed"
            )
        for end_token in tokenizer.convert_ids_to_tokens(list(response_ends)):
            reply_text = reply_text.removeprefix(end_token)  # the response already contains it
    reply_ids: list[int] = tokenizer.encode(reply_text, add_special_tokens=False)
    return reply_ids


def _render_chat(tokenizer: Any, messages: Sequence[dict[str, str]], option_prefix: str) -> str:
    """The text of the messages as the tokenizer's chat template renders them."""
    is_begun = messages[-1]["role"] == "assistant"  # then the response continues this message
    try:
        chat_text: str = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
        )
        chat_text.encode()  # raises for half a surrogate pair, which no tokenizer takes
    except Exception as fault:  # a template is a program, and may raise anything
        raise PoiseError(
            f"the model's chat template cannot be rendered: {first_line(fault)}; "
            f"{option_prefix}boxed"
        ) from fault
    if len(chat_text) > LONGEST_CHAT:
        raise PoiseError(
            f"the model's chat template makes a prompt of {len(chat_text):,} characters: "
            f"{option_prefix}boxed"
        )
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
