"""The cache of the general path's sampler: transformers' own cache, one row for each response.

Rows start from prefixes of different lengths, so shorter ones are padded at the front and masked:

    row a       .  p  p  p | a  a                 '.' is padding, masked for good
    row b       p  p  p  p | b  b

Equal prefixes are read once; their rows then get copies of the cache.

Attention masks padding out; recurrent layers must do so themselves. So before its first use every
model is tried on a few tokens, with padding and without (`rows_may_be_padded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.general import GeneralDecoder, probe_tokens, relative_difference
from counterpoise.model.packing import prompt_key
from counterpoise.types import Ints


class RowCache:
    """What a transformers model remembers of every row that is being decoded."""

    def __init__(self, decoder: GeneralDecoder, prefixes: Sequence[Ints]) -> None:
        """Read the prefixes; `last_hidden_R` are the states [R, D'] that predict the next token."""
        self.decoder = decoder
        distinct = {prompt_key(prefix): prefix for prefix in prefixes}
        number_of_key = {key: number for number, key in enumerate(distinct)}
        longest = max(map(len, prefixes))
        device = decoder.device
        tokens = np.stack(
            [np.pad(prefix, (longest - len(prefix), 0), "edge") for prefix in distinct.values()]
        )
        lengths = torch.tensor([len(prefix) for prefix in distinct.values()], device=device)
        # 1 for tokens, 0 for padding; None if nothing is padded: attention is faster without.
        self.mask: Tensor | None = None
        if bool((lengths < longest).any()):
            self.mask = (
                torch.arange(longest, device=device)[None] >= longest - lengths[:, None]
            ).long()
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(tokens).long().to(device)}
        if self.mask is not None:
            inputs["attention_mask"] = self.mask
            if decoder.takes_positions:
                inputs["position_ids"] = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        hidden, outputs = decoder.run(use_cache=True, **inputs)
        # Purely recurrent models have another name for what they remember.
        self.cache_name = "cache_params" if "cache_params" in outputs else "past_key_values"
        self.cache: Any = getattr(outputs, self.cache_name, None)
        if not hasattr(self.cache, "reorder_cache"):
            raise PoiseError(
                f"{decoder.config.model_type} models have no cache that the sampler can use: "
                "choose another model"
            )
        prefix_numbers = [number_of_key[prompt_key(prefix)] for prefix in prefixes]
        rows = torch.tensor(prefix_numbers, device=device)
        self.last_hidden_R = hidden[rows, -1]
        self.keep_rows(rows)

    def keep_rows(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row that is named twice is copied."""
        self.cache.reorder_cache(rows)
        if self.mask is not None:
            self.mask = self.mask.index_select(0, rows)

    def advance(self) -> None:
        """Open the next slot of every row; call it before each decoding pass."""
        if self.mask is not None:
            self.mask = torch.cat((self.mask, self.mask.new_ones(len(self.mask), 1)), dim=1)

    def read_next(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """The states [R, D'] after one more token of every row."""
        inputs: dict[str, Any] = {} if self.mask is None else {"attention_mask": self.mask}
        if self.decoder.takes_positions:
            inputs["position_ids"] = positions_R[:, None]
        hidden, outputs = self.decoder.run(
            input_ids=tokens_R[:, None], use_cache=True, **{self.cache_name: self.cache}, **inputs
        )
        self.cache = getattr(outputs, self.cache_name)
        return hidden[:, -1]


def rows_may_be_padded(decoder: GeneralDecoder) -> bool:
    """Whether prefixes of different lengths can be decoded together; tried once for each model.

    Raises an error if not even rows of equal length reproduce the model's own forward pass.
    """
    if decoder.front_padding_is_exact is None:
        tokens = probe_tokens(decoder.device, decoder.head.weight).cpu().numpy()
        if not _reproduces_forward(decoder, [tokens[:4], tokens[1:5]]):
            raise PoiseError(
                f"the cache of {decoder.config.model_type} models does not reproduce their forward "
                "pass, so they cannot be sampled here: choose another model"
            )
        decoder.front_padding_is_exact = _reproduces_forward(decoder, [tokens[:2], tokens[:5]])
    return decoder.front_padding_is_exact


@torch.no_grad()
def _reproduces_forward(decoder: GeneralDecoder, sequences: Sequence[Ints]) -> bool:
    """Whether the last token or two, read one by one, give the states of one pass over each row."""
    new_tokens = 1 if min(map(len, sequences)) < 3 else 2
    cache = RowCache(decoder, [sequence[:-new_tokens] for sequence in sequences])
    device = decoder.device
    hidden_R = cache.last_hidden_R
    for offset in range(-new_tokens, 0):
        next_tokens = torch.tensor([int(sequence[offset]) for sequence in sequences], device=device)
        positions = torch.tensor([len(sequence) + offset for sequence in sequences], device=device)
        cache.advance()
        hidden_R = cache.read_next(next_tokens, positions)
    whole_rows = [
        decoder.run(input_ids=torch.from_numpy(sequence)[None].to(device), use_cache=False)[0]
        for sequence in sequences
    ]
    expected_R = torch.stack([hidden[0, -1] for hidden in whole_rows])
    return relative_difference(hidden_R, expected_R) < decoder.tolerance
