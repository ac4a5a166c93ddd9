"""Check sequence lengths against the model's positions: a warning or an error.

    longest prompt + sample.max_new_tokens  >  max_position_embeddings

Rotary angles exist for any position, so sampler and trainer continue past the limit, as
transformers does; the model was just never trained there. This may be intended: the paper samples
8,192 tokens from Qwen2.5-Math-7B, which was made for 4,096. So the run only prints one warning at
its start.

A table of learned positions ends at the limit, and vLLM does not accept sequences beyond it: there
the run stops at its start instead of at the first long sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.general import GeneralDecoder
from counterpoise.types import Ints, Prompt

if TYPE_CHECKING:
    from counterpoise.model.load import Policy


def describe_overflow(prompt_tokens: int, max_new_tokens: int, positions: int) -> str:
    """The warning and its remedy if a prompt and its response exceed the positions, else "".

    Pass 0 prompt tokens if the prompts have not been read yet.

    Example:
        describe_overflow(900, 8192, 4096) -> "a prompt of 900 tokens and a response of 8,192 ..."
    """
    if prompt_tokens + max_new_tokens <= positions:
        return ""
    problem = f"a response of {max_new_tokens:,} tokens goes"
    remedy = "a lower sample.max_new_tokens"
    if prompt_tokens:
        problem = f"a prompt of {prompt_tokens:,} tokens and a response of {max_new_tokens:,} go"
        remedy = f"sample.max_new_tokens={positions - prompt_tokens}"
    if prompt_tokens >= positions:
        remedy = "a lower sample.max_prompt_tokens"
    return (
        f"{problem} beyond the {positions:,} positions the model was made for: "
        f"{remedy} stays within them"
    )


def check_positions(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    config: SampleConfig,
    say: Callable[[str], None],
) -> None:
    """Warn or raise before sampling starts if the longest prompt leaves too few positions."""
    longest = max(len(tokens) for _, tokens in prompts)
    positions = policy.decoder.max_positions
    overflow = describe_overflow(longest, config.max_new_tokens, positions)
    if overflow and config.engine == "vllm":
        raise PoiseError(f"sample.engine=vllm: {overflow}")
    if isinstance(policy.decoder, GeneralDecoder):
        policy.decoder.reserve(longest + config.max_new_tokens)
    if overflow:
        say(f"WARNING: {overflow}")
