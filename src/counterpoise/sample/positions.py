"""Sequences longer than the positions a model was made for: said, and refused where vLLM draws.

    longest prompt + sample.max_new_tokens  >  max_position_embeddings

Rotary angles exist for any position, so sampler and trainer go on past them, as transformers does;
what a model makes of places it has never seen is its own affair. It may be meant: the paper samples
8,192 tokens of Qwen2.5-Math-7B, which was made for 4,096. So a run says it once, at its start. vLLM
takes no sequence of that length: better refused then than at the first long prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.types import Ints, Prompt

if TYPE_CHECKING:
    from counterpoise.model.load import Policy


def describe_overflow(prompt: int, room: int, positions: int) -> str:
    """What is wrong with a prompt and `room` new tokens, and what to do; "" where they fit.

    A prompt of 0 tokens is one that nobody has read yet.

    Example:
        beyond(900, 8192, 4096) == "a prompt of 900 tokens and a response of 8,192 go beyond ..."
    """
    if prompt + room <= positions:
        return ""
    what = f"a response of {room:,} tokens goes"
    remedy = "a lower sample.max_new_tokens"
    if prompt:
        what = f"a prompt of {prompt:,} tokens and a response of {room:,} go"
        remedy = f"sample.max_new_tokens={positions - prompt}"
    if prompt >= positions:
        remedy = "a lower sample.max_prompt_tokens"
    return (
        f"{what} beyond the {positions:,} positions the model was made for: {remedy} stays within "
        "them"
    )


def check_positions(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    config: SampleConfig,
    say: Callable[[str], None],
) -> None:
    """Before anything is drawn: one line where the longest prompt leaves too few positions."""
    longest = max(len(tokens) for _, tokens in prompts)
    positions = policy.decoder.config.max_position_embeddings
    fault = describe_overflow(longest, config.max_new_tokens, positions)
    if fault and config.engine == "vllm":
        raise PoiseError(f"sample.engine=vllm: {fault}")
    if fault:
        say(f"WARNING: {fault}")
