"""Show the first prompt of a run as the model reads it, and count the prompts that are too long.

For `poise train X --dry-run`: only a tokenizer is loaded, and only one that is on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.model.shapes import SHAPE_PREFIX
from counterpoise.types import Prompt

LONGEST_SHOWN = 1200  # characters of a prompt; a longer one is shortened in the middle
TURN_TOKENS = 16  # a generous bound on the tokens with which a chat template frames a message
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def find_tokenizer(model_name: str) -> Any | None:
    """The tokenizer of a model if it is on this machine; None otherwise."""
    from transformers import AutoTokenizer

    from counterpoise.model.gguf_file import find_converted, is_gguf
    from counterpoise.model.load import EMBEDDED_FOLDER, silence_libraries

    # `smollm2` may have to be converted first, and `scratch` gets its tokenizer in the warm-up.
    if model_name in ("smollm2", "scratch"):
        return None
    is_embedded = model_name == "embedded" or model_name.startswith(SHAPE_PREFIX)
    source = str(EMBEDDED_FOLDER) if is_embedded else model_name
    if is_gguf(source):
        converted = find_converted(Path(source)) if Path(source).is_file() else None
        if converted is None:
            return None
        source = str(converted)
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    silence_libraries()
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=True)
    # Any failure only means that there is no preview: the run reports it when it loads the model.
    except Exception:
        return None


class PromptPreview:
    """Prompts of a run, encoded as the run would encode them.

    Example:
        PromptPreview(config, tokenizer, prompts).describe_first()
        ["first prompt   9 tokens, as the model reads it:", "  | <bos>How many?", ...]
    """

    def __init__(self, config: RunConfig, tokenizer: Any, prompts: Sequence[Prompt]) -> None:
        from counterpoise.model import templates

        name, model_name = config.model.template, config.model.name
        self.tokenizer = tokenizer
        self.template = templates.resolve_template(name, tokenizer, model_name)
        templates.check_chat_data(name, tokenizer, model_name, prompts)
        self.warning = templates.describe_template_omission(
            self.template, tokenizer, model_name, prompts
        )
        self.prompts = prompts

    def encode(self, prompt: Prompt) -> list[int]:
        from counterpoise.model.templates import encode_prompt

        return encode_prompt(self.template, self.tokenizer, prompt)

    def count_too_long(self, limit: int) -> int:
        """How many prompts have more tokens than `limit`."""
        # An upper bound saves encoding most prompts, which takes a second for a thousand: a text
        # has at most as many tokens as bytes, and the template adds at most as many tokens as the
        # whole first prompt has, plus TURN_TOKENS for each message.
        most_template_tokens = len(self.encode(self.prompts[0]))
        return sum(
            _count_bytes(prompt) + most_template_tokens + TURN_TOKENS * len(prompt.messages) > limit
            and len(self.encode(prompt)) > limit
            for prompt in self.prompts
        )

    def describe_first(self) -> list[str]:
        """The number of tokens of the first prompt, and its text with special tokens."""
        token_ids = self.encode(self.prompts[0])
        shown_prompt = shorten_middle(self.tokenizer.decode(token_ids, skip_special_tokens=False))
        head = f"first prompt   {len(token_ids):,} tokens, as the model reads it:"
        warnings = [self.warning] if self.warning else []
        return [head, *(f"  | {line}".rstrip() for line in shown_prompt.split("\n")), *warnings]


def _count_bytes(prompt: Prompt) -> int:
    texts = [message.content for message in prompt.messages] or [prompt.problem]
    return sum(len(text.encode()) for text in texts)


def shorten_middle(text: str, longest: int = LONGEST_SHOWN) -> str:
    """
    Example:
        >>> shorten_middle("abcdefghij", 6)
        'abc [... 4 characters ...] hij'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def check_prompts_left(num_left: int, num_too_long: int, config: RunConfig) -> None:
    """Raise an error if too few prompts are short enough for one iteration."""
    if num_left < config.sample.prompts and num_too_long:
        raise PoiseError(
            f"{num_too_long} prompts are longer than sample.max_prompt_tokens="
            f"{config.sample.max_prompt_tokens}, and {num_left} are left, too few for an iteration "
            f"of {config.sample.prompts}: raise sample.max_prompt_tokens or lower sample.prompts"
        )
