"""The general path: any causal language model, run by transformers' own forward pass.

`Decoder` knows the layers of a few families and reads packed rows without padding. Every other
model (mixtures of experts, linear attention, soft caps, learned positions) takes this path instead.
It has the same interface, so the loop, the plans, credit and the microscope do not notice:

    rows of a pass      p p p a a          one line each, padded at the end; a prompt is read again
                        p p p b .          for each of its responses
    packed tokens       p p p | a a | b    what a caller passes in and gets back, [N] and [N, D]

Padding at the end is exact for every causal model: no token reads what follows it, be it by
attention, by convolution or by a recurrent state. So no mask is needed.

The hidden states are the inputs of the output layer, taken while the model calls that layer, and
logits are always cap(W h):

    z = s (W h + b)     ->     the caller sees h' = (s h, s) and W' = (W, b), so that z = W' h'
    cap(z) = z, or c tanh(z / c) where the model caps its logits (`softcap`)

With h' and W' the couplings <h'_j, h'_k> <r_j, r_k> are those of weight and bias together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from counterpoise.errors import PoiseError
from counterpoise.model.attention import PackedAttention, gather_rows
from counterpoise.model.families import LENGTH_DEPENDENT_ROPE, rope_parameters
from counterpoise.model.head import cap_logits
from counterpoise.model.packing import Packing
from counterpoise.model.transfer import to_device

UNLIMITED_POSITIONS = 1 << 30  # for models without positions: recurrent ones, ALiBi
PROBE_TOKENS = 6
# Largest difference between our logits and the model's own, relative to the largest logit.
PROBE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}
PROBE_TOLERANCE_HALF = 0.05


class GeneralDecoder:
    """Runs a transformers causal language model as it is."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head: Any = model.get_output_embeddings()
        if self.head is None or not isinstance(getattr(self.head, "weight", None), Tensor):
            raise PoiseError(
                f"{model.config.model_type} models have no output layer that can be read: choose a "
                "causal language model"
            )
        self.softcap = float(getattr(self.config, "final_logit_softcapping", None) or 0.0)
        self.logit_scale = logit_scale(self.config)
        # A dict drops the second mention of a tied weight and keeps the order.
        parameters = dict.fromkeys(model.parameters())
        self.num_parameters = sum(parameter.numel() for parameter in parameters)
        if len({parameter.device for parameter in parameters}) > 1:
            raise PoiseError(
                "the model's weights lie on several devices, and its output layer must be read on "
                "one: load it on a single device"
            )
        forward_arguments = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in forward_arguments
        # In the sampler, see row_cache.py; None: not yet tried.
        self.front_padding_is_exact: bool | None = None
        self._check_output_layer()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.head.weight.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.head.weight.dtype
        return dtype

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was made for."""
        return getattr(self.config, "max_position_embeddings", None) or UNLIMITED_POSITIONS

    @property
    def unembedding(self) -> Tensor:
        """W' [V, D']: the output layer's weight, with its bias as a last column if it has one."""
        weight: Tensor = self.head.weight
        if self.head.bias is None:
            return weight
        return torch.cat((weight, self.head.bias[:, None]), dim=1)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values, as if every layer kept them.

        A model without attention heads (Mamba) is counted as if it kept its hidden states.
        """
        config = self.config
        width = config.hidden_size
        if heads := getattr(config, "num_attention_heads", None):
            kv_heads = getattr(config, "num_key_value_heads", None) or heads
            width = kv_heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        numbers: int = 2 * config.num_hidden_layers * width
        return numbers * self.dtype.itemsize

    def reserve(self, length: int) -> None:
        """Raise an error if the model cannot read `length` positions; nothing is reserved here.

        Learned positions are a table with a last entry. Rotary angles that change with a sequence's
        length would make a row depend on the rows beside it, so the length at which they begin to
        change is the limit.
        """
        if length > self._constant_angle_length:
            raise PoiseError(
                f"the rotary angles of this model change beyond {self._constant_angle_length:,} "
                f"tokens, and a prompt with its response needs {length:,}: set a lower "
                "sample.max_new_tokens or sample.max_prompt_tokens"
            )
        if length > self._learned_positions:
            raise PoiseError(
                f"the model has {self._learned_positions:,} learned positions, and a prompt with "
                f"its response needs {length:,}: set a lower sample.max_new_tokens or "
                "sample.max_prompt_tokens"
            )

    def embed(self, tokens_N: Tensor) -> Tensor:
        """The embeddings [N, D] that the first layer reads."""
        embeddings: Tensor = self.embedding(tokens_N)
        return embeddings

    def __call__(
        self,
        tokens_N: Tensor,
        positions_N: Tensor,
        attend: PackedAttention,
        *,
        checkpoint: bool = False,
        embedded_N: Tensor | None = None,
        output_indices_n: Tensor | None = None,
    ) -> Tensor:
        """Hidden states h' [N, D'], as `Decoder` returns them.

        Of `attend` only the packing is read. The sampler uses `RowCache` instead of this.
        """
        rows = _lay_out_rows(attend.packing)
        inputs = (
            {"input_ids": tokens_N[rows.indices_RL]}
            if embedded_N is None
            else {"inputs_embeds": gather_rows(embedded_N, rows.indices_RL)}
        )
        with self._recompute_layers(checkpoint and torch.is_grad_enabled()):
            hidden_RL, _ = self.run(use_cache=False, **inputs)
        hidden_N = hidden_RL.flatten(0, 1).index_select(0, rows.place_of_token_N)
        return hidden_N if output_indices_n is None else hidden_N[output_indices_n]

    def run(self, **inputs: Any) -> tuple[Tensor, Any]:
        """(h' of every token [R, L, D'], the model's outputs) of one forward pass of the model."""
        with self._captured_head_input() as captured:
            outputs = self.model(**inputs)
        if not captured:
            raise PoiseError(
                f"{self.config.model_type} models do not call their output layer, so its input "
                "cannot be read: choose another model"
            )
        hidden = captured[0]
        if self.logit_scale != 1:
            hidden = hidden * self.logit_scale
        if self.head.bias is not None:
            bias_input = hidden.new_full((*hidden.shape[:-1], 1), self.logit_scale)
            hidden = torch.cat((hidden, bias_input), dim=-1)
        return hidden, outputs

    @contextmanager
    def _captured_head_input(self) -> Iterator[list[Tensor]]:
        """The output layer keeps its input and computes next to nothing while this is open."""
        captured: list[Tensor] = []

        def keep_input(hidden: Tensor) -> Tensor:
            captured.append(hidden)
            return hidden[..., :1]  # the model may scale or cap what it believes to be logits

        self.head.forward = keep_input
        try:
            yield captured
        finally:
            del self.head.forward

    @contextmanager
    def _recompute_layers(self, enabled: bool) -> Iterator[None]:
        """The backward pass recomputes every layer, where the model supports it.

        transformers recomputes in training mode only, and there layers such as OPT's apply dropout.
        So the layers stay in evaluation mode, and their forward passes are wrapped here.
        """
        from transformers.modeling_layers import GradientCheckpointingLayer

        layers: list[Any] = [
            module
            for module in self.model.modules()
            if enabled and isinstance(module, GradientCheckpointingLayer)
        ]
        for layer in layers:
            layer.forward = partial(recompute, layer.forward, use_reentrant=False)
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward

    @property
    def tolerance(self) -> float:
        """How far two ways to compute the same states may differ, relative to the largest."""
        return PROBE_TOLERANCE.get(self.dtype, PROBE_TOLERANCE_HALF)

    @cached_property
    def _constant_angle_length(self) -> int:
        """The length up to which rotary angles do not depend on it."""
        lengths = [
            rope.get("original_max_position_embeddings") or self.max_positions
            for rope in rope_parameters(self.config)
            if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE
        ]
        return min(lengths, default=UNLIMITED_POSITIONS)

    @cached_property
    def _learned_positions(self) -> int:
        """How many positions have an embedding, if they are learned."""
        sizes = [
            # Fairseq's models, such as OPT and BioGPT, leave the first embeddings unused.
            module.num_embeddings - getattr(module, "offset", 0)
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Embedding) and _names_positions(name.rpartition(".")[2])
        ]
        return min(sizes, default=UNLIMITED_POSITIONS)

    @torch.no_grad()
    def _check_output_layer(self) -> None:
        """Raise an error unless cap(W' h') are the model's own logits, on a few tokens."""
        was_training = self.model.training
        self.model.eval()
        tokens = probe_tokens(self.device, self.head.weight)[None]
        own_logits = self.model(input_ids=tokens, use_cache=False).logits
        hidden, _ = self.run(input_ids=tokens, use_cache=False)
        self.model.train(was_training)
        logits = cap_logits(hidden @ self.unembedding.T, self.softcap)
        if not relative_difference(logits, own_logits) < self.tolerance:
            raise PoiseError(
                f"the logits of {self.config.model_type} models are more than a scaled, biased or "
                "soft-capped product of output layer and hidden state: they cannot be trained here"
            )


class RowLayout:
    """Where the packed tokens lie among rows that are padded at the end."""

    def __init__(self, indices_RL: Tensor, place_of_token_N: Tensor) -> None:
        self.indices_RL = indices_RL  # the packed token of every place; padding repeats the last
        self.place_of_token_N = place_of_token_N  # in the flattened [R * L]


def _lay_out_rows(packing: Packing) -> RowLayout:
    """One row for each response, after its prompt; a prompt without responses is a row too."""
    prompt_indices = [np.arange(start, start + length) for start, length in packing.prompts]
    rows = [
        np.concatenate((prompt_indices[parent], np.arange(start, start + length)))
        for (start, length), parent in zip(packing.responses, packing.parents, strict=True)
    ]
    with_response = set(packing.parents)
    rows += [
        indices for number, indices in enumerate(prompt_indices) if number not in with_response
    ]
    longest = max(map(len, rows))
    indices_RL = np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])
    place_of_token = np.empty(len(packing.tokens_N), dtype=np.int64)
    for number, row in reversed(list(enumerate(rows))):  # a prompt's states: from its first row
        place_of_token[row] = number * longest + np.arange(len(row))
    device = packing.tokens_N.device
    return RowLayout(to_device(indices_RL, device), to_device(place_of_token, device))


def _names_positions(module_name: str) -> bool:
    """Whether a table of embeddings is one of absolute positions, as transformers names them."""
    # OPT: embed_positions, BERT: position_embeddings, GPT: positions_embed, GPT-2: wpe
    return module_name == "wpe" or ("pos" in module_name and "rel" not in module_name)


def logit_scale(config: Any) -> float:
    """What the model multiplies its logits by: Cohere names the factor, Granite the divisor."""
    factor = getattr(config, "logit_scale", None)
    divisor = getattr(config, "logits_scaling", None)
    return float(factor or 1.0) / float(divisor or 1.0)


def probe_tokens(device: torch.device, weight: Tensor) -> Tensor:
    """A few different tokens of the vocabulary."""
    return (torch.arange(PROBE_TOKENS, device=device) * 7 + 3) % len(weight)


def relative_difference(values: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    scale = expected.abs().max().clamp(min=1e-30)
    return float((values.float() - expected.float()).abs().max() / scale)
