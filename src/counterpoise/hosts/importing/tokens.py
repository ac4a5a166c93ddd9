"""Texts -> tokens, or tokens -> texts, whichever the source left out.

A text that is encoded again need not give the tokens that were sampled: special tokens are missing,
the end token among them. Counts are off by a token or two, which plans do not notice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import Step


def load_tokenizer(name: str) -> Any:
    """'embedded', 'smollm2', a folder, or a hub id: what model.name takes."""
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
    except Exception as fault:  # transformers and tokenizers raise as they please
        raise PoiseError(f"tokenizer '{name}' cannot be loaded: {first_line(fault)}") from fault


def complete(step: Step, tokenizer: Any) -> Step:
    """The step with tokens for texts, or texts for tokens; as it is without a tokenizer."""
    if tokenizer is None:
        return step
    if step.samples[0].response_tokens is None:
        texts = [whole(sample.response or "") for sample in step.samples]
        ids_R = tokenizer(texts, add_special_tokens=False)["input_ids"]
        made = [
            replace(sample, response_tokens=ids or [_end(tokenizer)])
            for sample, ids in zip(step.samples, ids_R, strict=True)
        ]
        return replace(step, samples=tuple(made))
    prompts = _decoded([s.prompt_tokens or [] for s in step.samples], tokenizer)
    responses = _decoded([s.response_tokens or [] for s in step.samples], tokenizer)
    return replace(
        step,
        samples=tuple(
            replace(sample, prompt=prompt, response=response)
            for sample, prompt, response in zip(step.samples, prompts, responses, strict=True)
        ),
    )


def whole(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _end(tokenizer: Any) -> int:
    """An empty response was an end token alone."""
    if tokenizer.eos_token_id is None:
        raise PoiseError("an empty response, and the tokenizer has no end token: choose another")
    return int(tokenizer.eos_token_id)


def _decoded(ids_R: list[list[int]], tokenizer: Any) -> list[str]:
    size = len(tokenizer)
    largest = max((token for ids in ids_R for token in ids), default=0)
    if largest >= size:
        raise PoiseError(
            f"token {largest} is beyond the tokenizer's {size}: --tokenizer is of another model"
        )
    texts: list[str] = tokenizer.batch_decode(ids_R, skip_special_tokens=True)
    return texts
