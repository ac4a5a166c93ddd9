"""Turn the problems of a task into tokens, leaving out those that are too long."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.config import RunConfig
from counterpoise.model.load import Policy
from counterpoise.model.templates import check_chat_data, describe_template_omission
from counterpoise.run.observer import RunObserver
from counterpoise.sample.collect import EncodedPrompt
from counterpoise.task.load import check_enough_prompts, check_prompts_left
from counterpoise.types import Prompt


def encode_prompts(
    policy: Policy, prompts: Sequence[Prompt], config: RunConfig, observer: RunObserver
) -> list[EncodedPrompt]:
    """Training prompts with their tokens; prompts that are too long are left out with a notice."""
    check_enough_prompts(len(prompts), config.sample.prompts)
    check_chat_data(config.model.template, policy.tokenizer, policy.name, prompts)
    if warning := describe_template_omission(
        policy.template, policy.tokenizer, policy.name, prompts
    ):
        observer.notify(warning)
    encoded = list(zip(prompts, policy.encode_all(prompts), strict=True))
    limit = config.sample.max_prompt_tokens
    short_enough = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= limit]
    if num_dropped := len(encoded) - len(short_enough):
        observer.notify(
            f"{num_dropped} of {len(encoded)} prompts are longer than "
            f"sample.max_prompt_tokens={limit}: left out"
        )
        check_prompts_left(len(short_enough), num_dropped, config.sample)
    return short_enough
