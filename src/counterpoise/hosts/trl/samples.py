"""TRL's padded batch <-> single rollouts without padding.

A generation arrives as one dictionary of tensors, padded to its longest row. Plans move rows
between steps, passes and processes, and rows may wait for several generations, so each becomes a
record of its own, on the host; a pass is padded again to its own longest row.

Axes: _S tokens of one prompt, _T of one completion; prompts are padded on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.types import Row

PER_TOKEN = (  # what TRL may attach to completion tokens besides ids and mask
    "old_per_token_logps",
    "sampling_per_token_logps",
    "ref_per_token_logps",
    "importance_sampling_ratio",  # [B, T] or, by sequence, [B, 1]
    "tool_mask",
)
KNOWN = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"}
Batch = dict[str, Any]  # of TRL


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One rollout as TRL made it.

    Example:
        Sample(prompt_S=[5, 9], completion_T=[7, 1], mask_T=[1, 1], extra={}, trl_advantage=0.7)
    """

    prompt_S: Tensor
    completion_T: Tensor
    mask_T: Tensor  # 0 where a truncated completion is left out
    extra: Mapping[str, Tensor]  # of PER_TOKEN, each [T] or [1]
    trl_advantage: float

    @property
    def num_tokens(self) -> int:
        """Trained tokens: what the loss is averaged over."""
        tools_T = self.extra.get("tool_mask")
        return int((self.mask_T if tools_T is None else self.mask_T * tools_T).sum())


def split(batch: Batch) -> list[Sample]:
    """The rows of TRL's batch, each at its own length."""
    odd = sorted(set(batch) - KNOWN - {"num_items_in_batch", *PER_TOKEN})
    if odd:
        raise PoiseError(f"the TRL adapter plans text only, not '{odd[0]}': use TRL's GRPOTrainer")
    host = {name: value.detach().cpu() for name, value in batch.items()}
    samples = []
    for i, mask_T in enumerate(host["completion_mask"]):
        T = max(1, int(mask_T.sum()))  # a row that is left out altogether keeps one token
        extra = {name: host[name][i, :T].clone() for name in PER_TOKEN if name in host}
        samples.append(
            Sample(
                prompt_S=host["prompt_ids"][i][host["prompt_mask"][i].bool()],
                completion_T=host["completion_ids"][i, :T].clone(),
                mask_T=mask_T[:T].clone(),
                extra=extra,
                trl_advantage=float(host["advantages"][i]),
            )
        )
    return samples


def join(
    samples: Sequence[Sample],
    rows: Sequence[Row],
    *,
    pad_token: int,
    multiple: int | None,
    device: torch.device,
) -> Batch:
    """A pass over these rows as TRL's loss takes it. Advantages are those of `rows`: [B] where all
    token weights are 1, else [B, T]."""
    prompts = [s.prompt_S for s in samples]
    completions = [s.completion_T for s in samples]
    batch = {
        "prompt_ids": _pad(prompts, pad_token, multiple, left=True),
        "prompt_mask": _pad([torch.ones_like(x) for x in prompts], 0, multiple, left=True),
        "completion_ids": _pad(completions, pad_token, multiple),
        "completion_mask": _pad([s.mask_T for s in samples], 0, multiple),
        "advantages": _advantages(samples, rows, multiple),
    }
    for name in samples[0].extra:
        fill = 1 if name == "tool_mask" else 0
        values = [s.extra[name] for s in samples]
        by_sequence = name == "importance_sampling_ratio" and all(len(v) == 1 for v in values)
        batch[name] = torch.stack(values) if by_sequence else _pad(values, fill, multiple)
    return {name: value.to(device) for name, value in batch.items()}


def _advantages(samples: Sequence[Sample], rows: Sequence[Row], multiple: int | None) -> Tensor:
    if all(row.weights_T is None for row in rows):
        return torch.tensor([row.advantage for row in rows], dtype=torch.float32)
    per_token = []
    for sample, row in zip(samples, rows, strict=True):
        if row.weights_T is None:  # of such a row not all tokens need be trained
            per_token.append(torch.full((len(sample.completion_T),), row.advantage))
        else:
            per_token.append(torch.from_numpy(row.advantages_T))
    return _pad(per_token, 0, multiple)


def _pad(values: Sequence[Tensor], fill: float, multiple: int | None, left: bool = False) -> Tensor:
    longest = max(len(value) for value in values)
    if multiple:
        longest = -(-longest // multiple) * multiple
    padded = values[0].new_full((len(values), longest), fill)
    for line, value in zip(padded, values, strict=True):
        start = longest - len(value) if left else 0
        line[start : start + len(value)] = value
    return padded
