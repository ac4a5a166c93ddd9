"""Rows computed once, and copies of them from their first difference on (`credit/copies.py`).

A copy costs as many tokens as it has from its first difference on. Where attention pads, copies of
about one length are run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.answer_spans import places
from counterpoise.credit.copies import Copy, FusedCopies, Kept, PaddedCopies, Span
from counterpoise.model.attention import PackedAttention
from counterpoise.model.kernels import on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing
from counterpoise.model.transfer import to_device
from counterpoise.sample.kv_cache import Recorded

LARGER = 8  # than a pass that is differentiated: without padding, of what is run nothing is kept
UNEVEN = 1.15  # length of a copy beside the mean of those it would be padded with
LOOKED_AT = 8  # padded tokens that copies may look at, for each token of a pass


class Originals:
    """Packed rows, computed once; copies look at their keys and values."""

    @torch.no_grad()
    def __init__(self, policy: Policy, packing: Packing) -> None:
        self.policy, self.packing = policy, packing
        recorded = Recorded(PackedAttention(packing))
        self.hidden_N = policy.decoder(packing.tokens_N, packing.positions_N, recorded)
        self.kept = Kept(packing, recorded.keys, recorded.values)
        self.pads = not on_gpu(self.hidden_N)

    def batches(self, copies: Sequence[Copy], micro_tokens: int) -> Iterator[list[int]]:
        """Copies of each pass: at least one, else as many as fit. Where attention pads, the
        shortest first."""
        runs = [len(copy.tokens) for copy in copies]
        wholes = (self._shared(copies) + runs).tolist()
        order = list(range(len(copies)))
        if self.pads:
            order.sort(key=lambda i: runs[i])
        batch: list[int] = []
        tokens = longest = 0
        for i in order:
            run, whole = runs[i], wholes[i]
            full = tokens + run > (micro_tokens if self.pads else LARGER * micro_tokens)
            if self.pads:
                full |= (len(batch) + 1) * max(longest, whole) > LOOKED_AT * micro_tokens
                many = tokens > micro_tokens / 8
                full |= many and run > UNEVEN * tokens / len(batch)
            if batch and full:
                yield batch
                batch, tokens, longest = [], 0, 0
            batch.append(i)
            tokens, longest = tokens + run, max(longest, whole)
        if batch:
            yield batch

    def run(
        self, copies: Sequence[Copy], asked: Sequence[Span], embedded_n: Tensor | None = None
    ) -> Tensor:
        """Hidden states at the places `asked` for among a copy's tokens, copy after copy: [n, D].

        `embedded_n` stands in for the embeddings of the copies' tokens, with a gradient: to it
        alone, since originals are constants.
        """
        lengths = np.array([len(copy.tokens) for copy in copies])
        begins = self._shared(copies)  # positions
        starts = np.cumsum(lengths) - lengths
        within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        wanted = np.array(asked) + starts[:, None]
        decoder, device = self.policy.decoder, self.policy.device
        decoder.reserve(int((begins + lengths).max()))
        fused = embedded_n is None and not self.pads
        way: type[FusedCopies | PaddedCopies] = FusedCopies if fused else PaddedCopies
        attend = way(decoder, self.kept, copies, asked)
        with torch.set_grad_enabled(embedded_n is not None):
            return decoder(
                to_device(np.concatenate([copy.tokens for copy in copies]), device, np.int64),
                to_device(np.repeat(begins, lengths) + within, device, np.int64),
                attend,
                embedded_N=embedded_n,
                wanted_n=places(wanted, device),
            )

    def _shared(self, copies: Sequence[Copy]) -> NDArray[np.integer]:
        """Tokens that each looks at and does not run."""
        prompts, kept = self.kept.shared(copies)
        return prompts[:, 1] + kept[:, 1]
