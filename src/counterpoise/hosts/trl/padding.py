"""Convert TRL's padded batches to single rollouts without padding, and back.

A generation arrives as one dictionary of tensors, padded to its longest row. Plans move rows
between steps, passes and processes, and rows may wait for several generations. So each row becomes
a separate record in CPU memory, and each pass is padded again to its longest row.

Axes: _S tokens of one prompt, _T of one completion; prompts are padded on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.types import Floats, Row

OLD_LOGPROBS, REFERENCE_LOGPROBS = "old_per_token_logps", "ref_per_token_logps"
# Only where TRL samples with vLLM. The correction is [B, T] or, by sequence, [B, 1].
SAMPLER_LOGPROBS, VLLM_CORRECTION = "sampling_per_token_logps", "importance_sampling_ratio"
# What TRL may attach to completion tokens besides ids and mask.
TOKEN_FIELDS = (
    OLD_LOGPROBS,
    SAMPLER_LOGPROBS,
    REFERENCE_LOGPROBS,
    VLLM_CORRECTION,
    "tool_mask",
)
BATCH_FIELDS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"}
TRAJECTORY_COLUMN = "trajectory"  # of a dataset: which prompts are calls of one agent
TrlBatch = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class UnpaddedRollout:
    """One of TRL's rollouts, without padding.

    Example:
        UnpaddedRollout(prompt_S=[5, 9], completion_T=[7, 1], mask_T=[1, 1], token_fields={},
                        trl_advantage=0.7)
    """

    prompt_S: Tensor
    completion_T: Tensor
    mask_T: Tensor  # all 0 where TRL leaves a truncated completion out of the loss
    token_fields: Mapping[str, Tensor]  # by name of TOKEN_FIELDS, each [T] or [1]
    trl_advantage: float
    trajectory: str = ""  # the dataset's column, for agents whose calls are prompts of their own

    @property
    def old_logprobs(self) -> Floats | None:
        """The trainer's log-probabilities of the policy's tokens before the update, if TRL has any.

        None for a masked completion: TRL's attention mask hides it, so its scores mean nothing.
        """
        return None if self.is_masked else self.policy_values(OLD_LOGPROBS)

    @property
    def reference_logprobs(self) -> Floats | None:
        """The reference model's log-probabilities of the policy's tokens; None without a KL."""
        return self.policy_values(REFERENCE_LOGPROBS)

    def policy_values(self, name: str) -> Floats | None:
        """One of TOKEN_FIELDS at the policy's own tokens; None where TRL has none."""
        values_T = self.token_fields.get(name)
        return None if values_T is None else values_T.float().numpy()[self.is_policy_T]

    @property
    def is_policy_T(self) -> NDArray[np.bool_]:
        """Which tokens the policy wrote, rather than a tool; of a masked completion, all."""
        is_trained_T: NDArray[np.bool_] = self._trained_T().bool().numpy()
        return is_trained_T if is_trained_T.any() else np.ones_like(is_trained_T)

    @property
    def is_masked(self) -> bool:
        """Whether TRL trains none of its tokens."""
        return self.num_tokens == 0

    @property
    def num_tokens(self) -> int:
        """Trained tokens: what the loss is averaged over."""
        return int(self._trained_T().sum())

    def _trained_T(self) -> Tensor:
        tool_mask_T = self.token_fields.get("tool_mask")
        return self.mask_T if tool_mask_T is None else self.mask_T * tool_mask_T


def find_unsupported(batch: TrlBatch) -> str:
    """A field of TRL's batch that is not text, such as pixel_values; "" if there is none."""
    known_fields = {*BATCH_FIELDS, "num_items_in_batch", *TOKEN_FIELDS}
    return min(set(batch) - known_fields, default="")


def unpad(
    batch: TrlBatch, pad_token: int, trajectories: Sequence[str] = ()
) -> list[UnpaddedRollout]:
    """The rows of TRL's batch, each at its own length; `trajectories` of the rows, if any."""
    if unsupported := find_unsupported(batch):
        raise PoiseError(
            f"the TRL adapter plans text only, not '{unsupported}': use TRL's GRPOTrainer"
        )
    tensors = {name: value.detach().cpu() for name, value in batch.items()}
    samples = []
    for row_index, mask_T in enumerate(tensors["completion_mask"]):
        length = int(mask_T.sum()) or _length_without_mask(
            tensors["completion_ids"][row_index], pad_token
        )
        token_fields = {
            name: tensors[name][row_index, :length].clone()
            for name in TOKEN_FIELDS
            if name in tensors
        }
        samples.append(
            UnpaddedRollout(
                prompt_S=tensors["prompt_ids"][row_index][tensors["prompt_mask"][row_index].bool()],
                completion_T=tensors["completion_ids"][row_index, :length].clone(),
                mask_T=mask_T[:length].clone(),
                token_fields=token_fields,
                trl_advantage=float(tensors["advantages"][row_index]),
                trajectory=trajectories[row_index] if trajectories else "",
            )
        )
    return samples


def _length_without_mask(completion_T: Tensor, pad_token: int) -> int:
    """The length of a completion whose mask is all 0 (`mask_truncated_completions`), at least 1.

    It was cut off at the length limit, so its last token is no padding.
    """
    positions = (completion_T != pad_token).nonzero()
    return int(positions[-1]) + 1 if len(positions) else 1


def read_trajectories(examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column `trajectory` of each example, "" where it has none.

    Example:
        >>> read_trajectories([{"prompt": "a", "trajectory": 7}, {"prompt": "b"}])
        ['7', '']
    """
    values = [example.get(TRAJECTORY_COLUMN) for example in examples]
    return ["" if value is None else str(value) for value in values]


def pad_batch(
    samples: Sequence[UnpaddedRollout],
    rows: Sequence[Row],
    *,
    pad_token: int,
    multiple: int | None,
    device: torch.device,
) -> TrlBatch:
    """Pad rollouts to the batch of one pass, as TRL's loss takes it.

    Advantages are those of `rows`: [B] where all token weights are 1, else [B, T].
    """
    prompts = [sample.prompt_S for sample in samples]
    completions = [sample.completion_T for sample in samples]
    batch = {
        "prompt_ids": _pad_rows(prompts, pad_token, multiple, pad_left=True),
        "prompt_mask": _pad_rows(
            [torch.ones_like(prompt) for prompt in prompts], 0, multiple, pad_left=True
        ),
        "completion_ids": _pad_rows(completions, pad_token, multiple),
        "completion_mask": _pad_rows([sample.mask_T for sample in samples], 0, multiple),
        "advantages": _advantages(samples, rows, multiple),
    }
    for name in samples[0].token_fields:
        # tool_mask multiplies the completion mask, which is already 0 on padding.
        fill = 1 if name == "tool_mask" else 0
        values = [sample.token_fields[name] for sample in samples]
        by_sequence = name == VLLM_CORRECTION and all(len(row_values) == 1 for row_values in values)
        batch[name] = torch.stack(values) if by_sequence else _pad_rows(values, fill, multiple)
    return {name: value.to(device) for name, value in batch.items()}


def _advantages(
    samples: Sequence[UnpaddedRollout], rows: Sequence[Row], multiple: int | None
) -> Tensor:
    # TRL broadcasts [B] over tokens itself; [B, T] is needed only when tokens differ.
    if all(row.weights_T is None for row in rows):
        return torch.tensor([row.advantage for row in rows], dtype=torch.float32)
    per_token = []
    for sample, row in zip(samples, rows, strict=True):
        if row.weights_T is None:  # its trained tokens may be fewer than its tokens
            per_token.append(torch.full((len(sample.completion_T),), row.advantage))
        else:
            per_token.append(torch.from_numpy(row.advantages_T))
    return _pad_rows(per_token, 0, multiple)


def _pad_rows(
    values: Sequence[Tensor], fill: float, multiple: int | None, pad_left: bool = False
) -> Tensor:
    longest = max(len(value) for value in values)
    if multiple:
        longest = -(-longest // multiple) * multiple
    padded = values[0].new_full((len(values), longest), fill)
    for padded_row, value in zip(padded, values, strict=True):
        first_column = longest - len(value) if pad_left else 0
        padded_row[first_column : first_column + len(value)] = value
    return padded
