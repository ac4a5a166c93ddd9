"""Add the tokens or the texts of rollouts, whichever the source left out.

Encoding a text again need not give the sampled tokens: special tokens, the end token among them,
are missing. Counts are off by a token or two, which does not matter for plans.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import ImportedStep
from counterpoise.hosts.importing.token_spans import split_by_mask
from counterpoise.store.plain_values import plain_text


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of 'embedded', 'smollm2', a folder or a hub id, as for model.name."""
    from transformers import AutoTokenizer

    from counterpoise.model.load import HUB_ID, find_model_folder, silence_libraries

    source = find_model_folder(name)
    if not Path(source).exists() and not HUB_ID.fullmatch(source):
        raise PoiseError(
            f"no tokenizer '{name}': no such folder; give a folder, or a hub id like "
            "Qwen/Qwen3-0.6B"
        )
    silence_libraries()
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as fault:  # transformers and tokenizers raise many kinds
        raise PoiseError(f"tokenizer '{name}' cannot be loaded: {first_line(fault)}") from fault


def complete_step(step: ImportedStep, tokenizer: Any) -> tuple[ImportedStep, int]:
    """(the step with the missing tokens or texts added, empty responses that got an end token).

    The step is unchanged without a tokenizer.
    """
    if tokenizer is None:
        return step, 0
    rollouts = list(step.rollouts)
    empty_responses = 0
    without_tokens = [
        rollout_index
        for rollout_index, rollout in enumerate(rollouts)
        if rollout.response_tokens is None and rollout.num_tokens is None
    ]
    if without_tokens:
        segments_R = [
            rollouts[rollout_index].segments or ((True, rollouts[rollout_index].response or ""),)
            for rollout_index in without_tokens
        ]
        texts = [plain_text(text) for segments in segments_R for _, text in segments]
        ids_S = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
        for rollout_index, segments in zip(without_tokens, segments_R, strict=True):
            tokens, mask = [], []
            for by_policy, _ in segments:
                ids = next(ids_S)
                tokens += ids
                mask += [by_policy] * len(ids)
            spans = split_by_mask(tokens, mask)
            rollout = rollouts[rollout_index]
            empty_responses += spans is None
            rollouts[rollout_index] = replace(
                rollout,
                response_tokens=spans.response if spans else [_end_token(tokenizer)],
                turns=spans.turns if spans and spans.turns else rollout.turns,
            )
    for text_field, token_field in (("prompt", "prompt_tokens"), ("response", "response_tokens")):
        without_text = [
            rollout_index
            for rollout_index, rollout in enumerate(rollouts)
            if getattr(rollout, text_field) is None and rollout.num_tokens is None
        ]
        ids_R = [
            getattr(rollouts[rollout_index], token_field) or [] for rollout_index in without_text
        ]
        for rollout_index, text in zip(without_text, _decode(ids_R, tokenizer), strict=True):
            rollouts[rollout_index] = replace(rollouts[rollout_index], **{text_field: text})  # type: ignore[arg-type]  # both are texts
    return replace(step, rollouts=tuple(rollouts)), empty_responses


def vocabulary_texts(tokenizer: Any) -> list[str]:
    """The text of every single token; an incomplete character is U+FFFD."""
    texts: list[str] = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return texts


def _end_token(tokenizer: Any) -> int:
    """The end token: a response whose text is empty gets this one token."""
    if tokenizer.eos_token_id is None:
        raise PoiseError(
            "a response is empty, and the tokenizer has no end token: choose another --tokenizer"
        )
    return int(tokenizer.eos_token_id)


def _decode(ids_R: list[list[int]], tokenizer: Any) -> list[str]:
    if not ids_R:
        return []
    vocabulary_size = len(tokenizer)
    largest = max((token for ids in ids_R for token in ids), default=0)
    if largest >= vocabulary_size:
        raise PoiseError(
            f"token {largest} is beyond the tokenizer's {vocabulary_size}: --tokenizer is that of "
            "another model"
        )
    texts: list[str] = tokenizer.batch_decode(ids_R, skip_special_tokens=True)
    return texts
