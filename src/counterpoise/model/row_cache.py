"""The cache of the general path's sampler: transformers' own cache, one row for each response.

Rows start from prefixes of different lengths, so shorter ones are padded at the front and masked:

    row a       .  p  p  p | a  a                 '.' is padding, masked for good
    row b       p  p  p  p | b  b

Equal prefixes are read once; their rows then get copies of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.general import GeneralDecoder
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
        self.cache: Any = getattr(outputs, "past_key_values", None)
        if not hasattr(self.cache, "reorder_cache"):
            raise PoiseError(
                f"{decoder.config.model_type} models have no cache that the sampler can use: "
                "choose another model, or sample with sample.engine=vllm"
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
            input_ids=tokens_R[:, None], past_key_values=self.cache, use_cache=True, **inputs
        )
        self.cache = outputs.past_key_values
        return hidden[:, -1]
