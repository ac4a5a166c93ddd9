"""Passes padded to a few sizes, captured as CUDA graphs and replayed with new inputs.

The kernels of a pass over a small model take less time than the host needs to launch them: for
SmolLM2-135M the host needs 50 to 80 ms a pass, the kernels on an H200 need 45. So a pass is padded
to one of a few sizes (`update/graphs/padding.py`). Passes of one size do the same work at the same
addresses: one is captured, and all later ones are replayed (`update/graphs/replay.py`). The first
pass of each kind (with gradients, without, from given embeddings) runs eagerly; it compiles the
kernels that all passes of its kind need. It is padded like the others, which makes its sums the
same: a run that is resumed begins with such a pass where the undisturbed run replays.

Where a layer takes longer than its launches (`LAUNCH_BOUND`) capturing gains nothing, and passes
run eagerly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.attention import PackedAttention
from counterpoise.model.flash import PackedSegments
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy, require_fast_path
from counterpoise.model.packing import Packing
from counterpoise.model.reading_passes import place_response_embeddings
from counterpoise.model.scoring import ForwardOutputs, forward_packed
from counterpoise.model.transfer import to_device
from counterpoise.types import Row
from counterpoise.update.graphs.padding import (
    PaddedRows,
    PassSize,
    loss_arrays,
    packing_arrays,
    pad_rows,
)
from counterpoise.update.graphs.replay import GraphCache, NamedTensors
from counterpoise.update.passes import (
    EAGER,
    Passes,
    PassInputs,
    PassOutputs,
    PassTensors,
    compute_loss,
)

Result = TypeVar("Result")

# FLOP of a layer in a pass, forward and backward, above which capturing gains nothing.
LAUNCH_BOUND = 1.5e12


class CapturedPasses:
    """`Passes` that replay CUDA graphs; the caller must collect the gradients after every pass."""

    def __init__(self) -> None:
        self.launch_bound = LAUNCH_BOUND  # 0 once a capture has failed
        self._compiled: set[Hashable] = set()
        self._weights: tuple[int, ...] = ()  # addresses of the weights in the captured passes
        self._trained: list[Tensor] = []
        self._gradients: list[Tensor] = []  # of the trained weights, at fixed addresses
        self._graphs: GraphCache | None = None

    def gradients(
        self, policy: Policy, inputs: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        # A rule's term reads more than the inputs of a captured pass.
        must_run_eagerly = config.checkpointing or inputs.term
        padded = None if must_run_eagerly else self._pad_if_worthwhile(policy, inputs.rows)
        if padded:
            work = partial(self._with_gradients, policy, padded.size, config, temperature)
            values = packing_arrays(padded) | loss_arrays(padded, inputs)

            def run_pass(graphs: GraphCache, key: Hashable | None) -> PassOutputs:
                if not self._trained:
                    parameters = policy.model.parameters()
                    self._trained = [weight for weight in parameters if weight.requires_grad]
                    self._gradients = [torch.empty_like(weight) for weight in self._trained]
                outputs: PassOutputs = graphs(key, values, work)
                return outputs

            outputs = self._run(policy, padded, _capture_key(config, temperature), run_pass)
            # The pass writes gradients to fixed tensors; the next replay overwrites them, so the
            # optimizer must have collected them by then.
            if outputs:
                for weight, gradient in zip(self._trained, self._gradients, strict=True):
                    assert weight.grad is None, "gradients of the last pass were not collected"
                    weight.grad = gradient
                M = padded.num_real_tokens
                hidden = outputs.hidden_MD[:M].clone()
                return PassOutputs(
                    outputs.tokens_3M[:, :M].clone(), outputs.totals_4.clone(), hidden
                )
        return EAGER.gradients(policy, inputs, config, temperature)

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        padded = self._pad_if_worthwhile(policy, rows)
        if padded:
            work = partial(_without_gradients, policy, padded.size, temperature)

            def run_pass(graphs: GraphCache, key: Hashable | None) -> tuple[Tensor, Tensor, Tensor]:
                outputs: tuple[Tensor, Tensor, Tensor] = graphs(key, packing_arrays(padded), work)
                return outputs

            outputs = self._run(policy, padded, ("read", temperature), run_pass)
            if outputs:
                logprobs, entropies, hidden = (
                    values[: padded.num_real_tokens].clone() for values in outputs
                )
                lengths = padded.packing.lengths[: len(rows)]
                return ForwardOutputs(logprobs, entropies, hidden, lengths)
        return EAGER.read(policy, rows, temperature)

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        padded = self._pad_if_worthwhile(policy, rows)
        if padded:
            work = partial(_to_states, policy, padded.size)
            tokens_N = to_device(padded.packing.tokens_N.numpy(), policy.device)
            all_embedded_ND, response_slice = place_response_embeddings(
                policy, padded.packing, tokens_N, embedded_nD
            )

            def run_pass(graphs: GraphCache, key: Hashable | None) -> Tensor:
                return graphs.differentiable(key, packing_arrays(padded), all_embedded_ND, work)

            hidden_ND = self._run(policy, padded, "states", run_pass)
            if hidden_ND is not None:
                return hidden_ND[response_slice]
        return EAGER.states(policy, rows, embedded_nD)

    def release_memory(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    def _pad_if_worthwhile(self, policy: Policy, rows: Sequence[Row]) -> PaddedRows | None:
        """Padded rows; None if capturing gains nothing or the rows do not suit flash attention."""
        decoder = policy.decoder
        # Layers that are not fused pad their attention, which needs the rows' actual lengths.
        if isinstance(decoder, GeneralDecoder) or not decoder.can_fuse_layers:
            return None
        if not is_half_on_gpu(decoder.unembedding):
            return None
        # Launches cost the same time per layer whatever its size, so compare the work per layer.
        tokens = sum(row.num_tokens_read for row in rows)
        flop = 6 * policy.num_parameters * tokens / len(decoder.layers)
        if flop >= self.launch_bound:
            return None
        padded = pad_rows(rows)
        return padded if padded.segments else None

    def _run(
        self,
        policy: Policy,
        padded: PaddedRows,
        kind: Hashable,
        run_pass: Callable[[GraphCache, Hashable | None], Result],
    ) -> Result | None:
        """Outputs of the padded pass; None where capturing fails.

        `run_pass` gets the key of the captured pass, or None to run eagerly.
        """
        decoder = require_fast_path(policy, "a captured pass")
        decoder.reserve(2 * padded.size.longest)  # a prompt and a response, each this long
        addresses = decoder.tensor_addresses
        # Graphs hold addresses: when the weights have moved, every captured pass is invalid.
        if self._graphs is None or addresses != self._weights:
            self._graphs, self._weights, self._trained = GraphCache(policy.device), addresses, []
        # The first pass of a kind runs eagerly and compiles its kernels, so capturing need not.
        if kind not in self._compiled:
            outputs = run_pass(self._graphs, None)
            self._compiled.add(kind)
            return outputs
        try:
            return run_pass(self._graphs, (padded.size, kind))
        except torch.OutOfMemoryError:
            self._graphs.clear()
            raise
        except RuntimeError as fault:
            self._graphs.clear()
            self.launch_bound = 0.0
            warnings.warn(
                f"CUDA graph capture failed, so passes run eagerly: {fault}", stacklevel=4
            )
            return None

    def _with_gradients(
        self,
        policy: Policy,
        size: PassSize,
        config: UpdateConfig,
        temperature: float,
        inputs: NamedTensors,
    ) -> PassOutputs:
        """Work to capture: loss and gradients, written to fixed tensors."""
        packing, attend = _packed_tensors(size, inputs)
        vectors = {name: inputs[name] for name in TOKEN_VECTORS if name in inputs}
        tensors = PassTensors(packing, attend, num_rows=size.rows, **vectors)
        outputs, loss, logprobs = compute_loss(policy, tensors, config, temperature)
        *gradients, logprob_gradient = torch.autograd.grad(loss, [*self._trained, logprobs])
        outputs.tokens_3M[2] = -logprob_gradient
        torch._foreach_copy_(self._gradients, gradients)
        return outputs


# Fields of `PassTensors` that are copied in before every replay; the last two only with a KL.
TOKEN_VECTORS = (
    "row_M", "old_M", "unscored_M", "sampled_M", "advantages_M", "coefficients_M", "reference_M",
    "kl_coefficients_M",
)  # fmt: skip


def _without_gradients(
    policy: Policy, size: PassSize, temperature: float, inputs: NamedTensors
) -> tuple[Tensor, Tensor, Tensor]:
    """Work to capture: log-probabilities, entropies and hidden states."""
    with torch.no_grad():
        outputs = forward_packed(policy, *_packed_tensors(size, inputs), temperature)
    return outputs.logprobs_M, outputs.entropies_M, outputs.hidden_M


def _to_states(policy: Policy, size: PassSize, inputs: NamedTensors, x_ND: Tensor) -> Tensor:
    """Work to capture: hidden states from given embeddings."""
    packing, attend = _packed_tensors(size, inputs)
    return policy.decoder(packing.tokens_N, packing.positions_N, attend, embedded_N=x_ND)


def _packed_tensors(size: PassSize, inputs: NamedTensors) -> tuple[Packing, PackedAttention]:
    """The packing and attention over the tensors that a captured pass reads."""
    packing = Packing(
        prompts=(),
        responses=(),
        parents=(),
        lengths=(),
        longest=2 * size.longest,
        tokens_N=inputs["tokens_N"],
        positions_N=inputs["positions_N"],
        predictors_M=inputs["predictors_M"],
        targets_M=inputs["targets_M"],
    )
    segments = PackedSegments(
        prompt_tokens=size.prompt_tokens,
        all_bounds=inputs["every"],
        longest_segment=size.longest,
        prompt_bounds=inputs["prompts"],
        longest_prompt=size.longest,
        reader_bounds=inputs["readers"],
        longest_reader=size.longest_reader,
    )
    return packing, PackedAttention(packing, segments)


def _capture_key(config: UpdateConfig, temperature: float) -> Hashable:
    """Everything besides its rows that a captured pass depends on."""
    surrogate = config.surrogate, config.clip_low, config.clip_high, config.clip_dual
    importance = config.importance, config.importance_cap, config.importance_mode
    kl_options = config.kl_in_loss, config.kl, config.kl_estimator, config.kl_control
    penalties = *kl_options, config.entropy_bonus
    repeatable = torch.are_deterministic_algorithms_enabled()
    return surrogate, importance, penalties, temperature, repeatable


def choose_passes(config: UpdateConfig) -> Passes:
    """How a run computes its passes, by its options."""
    return CapturedPasses() if config.capture else EAGER
