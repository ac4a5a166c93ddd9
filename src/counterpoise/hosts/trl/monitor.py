"""The microscope inside TRL: what an optimizer step did to every token, in TRL's own logs.

Process 0 reads the rows of a monitored step twice with the native forward (native_policy.py): just
before the step, for hidden states and the pulls -dL/dlogp that the loss gives their tokens, and
just after it, for the displacement. Supported losses are our clipped surrogates under one of our
averages, times TRL's correction for vLLM, with TRL's KL. Other terms that TRL can add to a loss are
refused: pushes computed from part of a loss would look like those of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.hosts.trl.native_policy import check_native_forward
from counterpoise.hosts.trl.padding import VLLM_CORRECTION, UnpaddedRollout
from counterpoise.hosts.trl.planner import Decision, to_rollout
from counterpoise.microscope import monitor_sampling
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.types import Row, StepResult
from counterpoise.update.kl_penalty import mean_kl
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import AGGREGATIONS, KL_ESTIMATORS, SURROGATES

if TYPE_CHECKING:
    from counterpoise.hosts.trl.observed_trainer import ObservedTrainer
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

AGGREGATION_OF_LOSS = {
    "dapo": "token_mean", "bnpo": "token_mean", "grpo": "sequence_mean", "dr_grpo": "constant",
}  # fmt: skip
SURROGATE_OF_LEVEL = {"token": "grpo", "sequence": "gspo"}
# TRL's options that add terms to the loss, with the value at which they add none.
NEUTRAL_OPTIONS = {
    "entropy_coef": 0.0, "use_adaptive_entropy": False,
    "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
}  # fmt: skip
WATCHED_GROUPS = 2  # groups of a step whose pushes `poise look` can show, as in the native engine
TRL_ESTIMATOR = "k3"  # of the KL


class StepMonitor:
    """Measures every `monitor_every`-th optimizer step."""

    def __init__(self, trainer: PoiseGRPOTrainer | ObservedTrainer) -> None:
        options, asking = trainer.args, trainer.asking_option
        off = "monitor_every=0" if asking == "monitor_every" else "probe=0 and probe_file=''"
        if options.loss_type not in AGGREGATION_OF_LOSS:
            raise PoiseError(
                f"{asking} knows the losses {', '.join(AGGREGATION_OF_LOSS)}, not "
                f"'{options.loss_type}': set {off}"
            )
        for name, neutral in NEUTRAL_OPTIONS.items():
            if (value := getattr(options, name)) != neutral:
                raise PoiseError(
                    f"{asking} sees the clipped surrogate alone, not what {name}={value} does "
                    f"to the loss: set {name}={neutral}, or {off}"
                )
        if options.beta and options.use_bias_correction_kl:
            raise PoiseError(
                f"{asking} knows the KL of beta={options.beta} without its correction: set "
                f"use_bias_correction_kl=False, or {off}"
            )
        if options.delta is not None and options.delta <= 1 + trainer.epsilon_high:
            raise PoiseError(
                f"{asking} knows delta={options.delta} only above 1 + epsilon_high="
                f"{1 + trainer.epsilon_high:g}: raise it, or set {off}"
            )
        check_native_forward(trainer, asking, f"set {off}")
        self.trainer = trainer
        # (monitor, step of the plan, result) between the two reads; no monitor if only the probes
        # look at the step.
        self._pending_step: tuple[Monitor | None, int, StepResult] | None = None

    def forget_step(self) -> None:
        """Forget a step that was interrupted."""
        self._pending_step = None

    def before_step(self, decision: Decision, step: int) -> None:
        """Read the step's rows with the weights it starts from."""
        trainer, probes = self.trainer, self.trainer.probes
        every = trainer.monitor_every
        is_monitored = bool(every) and trainer.state.global_step % every == 0
        follows_probes = probes is not None and probes.is_looking
        if not (is_monitored or follows_probes) or not trainer.accelerator.is_main_process:
            return
        rows, samples = self._step_rows(decision, step)
        result = self.evaluate_rows(rows, samples, trainer.loss_scale(decision, step))
        if not result.rows:
            return
        result = replace(result, learning_rate=learning_rate(trainer))
        if probes is not None and follows_probes:
            probes.before_step(step, rows, result)
        watched: frozenset[str] = frozenset()
        if trainer.script_recorder:
            watched = monitor_sampling.first_mixed_groups(rows, WATCHED_GROUPS)
        monitor = None
        if is_monitored:
            monitor = Monitor(trainer.temperature, trainer.micro_batch, watched)
            monitor.before_update(trainer.policy, rows, result)
        self._pending_step = (monitor, step, result)

    def after_step(self) -> None:
        """Read the same rows with the new weights, and log the difference."""
        if self.trainer.probes:
            self._log(self.trainer.probes.after_step())
        if self._pending_step is None:
            return
        (monitor, step, result), self._pending_step = self._pending_step, None
        recorder = self.trainer.script_recorder
        if recorder:
            recorder.record_result(step, result)
        if monitor is None:
            return
        monitor.after_update(self.trainer.policy)
        self._log(monitor_metrics(monitor.measurements))
        if recorder:
            recorder.record_measurement(step, monitor.measurements[0])

    def _log(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, float | int):
                self.trainer._metrics["train"][f"poise/{name}"].append(float(value))

    def _step_rows(self, decision: Decision, step: int) -> tuple[list[Row], list[UnpaddedRollout]]:
        """The step's rows in the order of the plan, and their rollouts.

        Rows that TRL masks out are among them: they count in a mean over rows.
        """
        rows, samples = [], []
        # On-policy rows get their old log-probabilities from the pass itself: ratio exactly 1.
        has_old_logprobs = not self.trainer.on_policy(decision, step)
        for batch_index in decision.plan.steps[step]:
            row = decision.rows[batch_index]
            sample = self.trainer.rollouts_by_key[row.group, row.index]
            rows.append(
                replace(
                    row,
                    rollout=to_rollout(sample),
                    trainer_logprobs_T=sample.old_logprobs if has_old_logprobs else None,
                    reference_logprobs_T=sample.reference_logprobs,
                )
            )
            samples.append(sample)
        return rows, samples

    def evaluate_rows(
        self, rows: Sequence[Row], samples: Sequence[UnpaddedRollout] = (), scale: float = 1.0
    ) -> StepResult:
        """What `update/step.py` would report for these rows; no gradient reaches a weight.

        `samples` hold TRL's correction of vLLM's probabilities; `scale` multiplies the loss.
        """
        options = self.trainer.args
        aggregate = AGGREGATIONS.load(AGGREGATION_OF_LOSS[options.loss_type])
        # Over all rows of the step, so the pulls do not depend on the micro-batches below.
        coefficients_R = (
            scale * aggregate(rows, self.trainer.max_completion_length) if rows else np.empty(0)
        )
        # A KL is in the loss of all rows, also of those without an advantage.
        has_kl = self.trainer.args.beta != 0
        used = [row_index for row_index, row in enumerate(rows) if row.has_loss(all_rows=has_kl)]
        used_rows = [rows[row_index] for row_index in used]
        used_samples = [samples[row_index] for row_index in used] if samples else []
        tensors_R, loss, clipped = self.trainer.micro_batch.run_rows(
            lambda micro_tokens: self._read_rows(
                used_rows, used_samples, coefficients_R[used], micro_tokens
            ),
            used_rows,
        )
        arrays = [[tensor.float().cpu().numpy() for tensor in tensors[:3]] for tensors in tensors_R]
        logprobs, entropies, pulls = (
            [row_arrays[index] for row_arrays in arrays] for index in range(3)
        )
        old_logprobs = [row.trainer_logprobs_T for row in used_rows]
        num_tokens = max(1, sum(row.num_tokens for row in used_rows))
        return StepResult(
            rows=tuple(used),
            logprobs=logprobs,
            old_logprobs=[
                new_T if old_T is None else old_T
                for old_T, new_T in zip(old_logprobs, logprobs, strict=True)
            ],
            advantages=[row.advantages_T for row in used_rows],
            entropies=entropies,
            pulls=pulls,
            coefficients=coefficients_R[used].astype(np.float32),
            loss=loss,
            grad_norm=float("nan"),  # only TRL has the gradient
            clipped_share=clipped / num_tokens,
            capped_share=sum(map(self._count_capped, used_samples)) / num_tokens,
            tokens=sum(row.loss_tokens for row in rows),
            kl=mean_kl(TRL_ESTIMATOR, logprobs, used_rows) if has_kl else None,
            hidden=[hidden_TD for *_, hidden_TD in tensors_R],
        )

    def _count_capped(self, sample: UnpaddedRollout) -> int:
        """How many of the policy's tokens TRL cut off at the largest correction, or masked."""
        factors_T = _vllm_correction(sample)
        if factors_T is None:
            return 0
        cap = self.trainer.args.vllm_importance_sampling_clip_max
        capped_T = (factors_T == 0) | (factors_T >= (math.inf if cap is None else cap))
        return int(capped_T.expand(int(sample.is_policy_T.sum())).sum())

    def _read_rows(
        self,
        rows: Sequence[Row],
        samples: Sequence[UnpaddedRollout],
        coefficients_R: Any,
        micro_tokens: int,
    ) -> tuple[list[tuple[Tensor, ...]], float, int]:
        """(tensors of each row, the loss, number of clipped tokens), in passes of `micro_tokens`.

        The tensors are log-probabilities, entropies, pulls and hidden states.
        """
        tensors_by_row: dict[int, tuple[Tensor, ...]] = {}
        loss, clipped = 0.0, 0
        for batch in micro_batches(rows, micro_tokens):
            batch_rows = [rows[index] for index in batch]
            with torch.no_grad():
                outputs = forward(self.trainer.policy, batch_rows, self.trainer.temperature)
            corrections = [_vllm_correction(samples[index]) for index in batch] if samples else []
            pulls_M, batch_loss, batch_clipped = self._surrogate_pulls(
                outputs.logprobs_M, batch_rows, coefficients_R[batch], corrections
            )
            loss, clipped = loss + batch_loss, clipped + batch_clipped
            tensors = (outputs.logprobs_M, outputs.entropies_M, pulls_M, outputs.hidden_M)
            split_tensors = [tensor.split(outputs.lengths) for tensor in tensors]
            tensors_by_row.update(zip(batch, zip(*split_tensors, strict=True), strict=True))
        return [tensors_by_row[index] for index in range(len(rows))], loss, clipped

    def _surrogate_pulls(
        self,
        logprobs_M: Tensor,
        rows: Sequence[Row],
        coefficients_R: Any,
        corrections: Sequence[Tensor | None] = (),
    ) -> tuple[Tensor, float, int]:
        """(-dL/dlogp of every token, the loss, number of clipped tokens), by autograd."""
        device, lengths = logprobs_M.device, [row.num_tokens for row in rows]
        index_M = torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(device)
        old_logprobs = [row.trainer_logprobs_T for row in rows]
        old_M = logprobs_M.detach()
        if all(old_T is not None for old_T in old_logprobs):
            old_M = torch.from_numpy(np.concatenate(old_logprobs)).to(logprobs_M)  # type: ignore[arg-type]
        advantages_M = torch.from_numpy(np.concatenate([row.advantages_T for row in rows]))
        # The log-probabilities are the leaf, so the gradient stops there and no weight gets one.
        with torch.enable_grad():
            leaf_M = logprobs_M.detach().requires_grad_()
            outputs = SURROGATES.load(SURROGATE_OF_LEVEL[self.trainer.importance_sampling_level])(
                SurrogateInputs(
                    logprobs=leaf_M,
                    old_logprobs=old_M,
                    advantages=advantages_M.to(leaf_M),
                    row=index_M,
                    num_rows=len(rows),
                    clip_low=self.trainer.epsilon_low,
                    clip_high=self.trainer.epsilon_high,
                    clip_dual=self.trainer.args.delta or 0.0,
                )
            )
            weights_R = torch.as_tensor(coefficients_R, device=device, dtype=leaf_M.dtype)
            weights_M = weights_R[index_M]
            if factors := [factor for factor in corrections if factor is not None]:
                factors_T = [
                    factor.expand(length) for factor, length in zip(factors, lengths, strict=True)
                ]
                weights_M = weights_M * torch.cat(factors_T).to(leaf_M)
            loss = (outputs.loss * weights_M).sum()
            if self.trainer.args.beta:
                references = np.concatenate([row.reference_logprobs_T for row in rows])
                log_ratio = leaf_M - torch.from_numpy(references).to(leaf_M)
                kl_M = KL_ESTIMATORS.load(TRL_ESTIMATOR)(log_ratio)
                loss = loss + self.trainer.args.beta * (kl_M * weights_R[index_M]).sum()
            (gradient_M,) = torch.autograd.grad(loss, leaf_M)
        return -gradient_M, float(loss.detach()), int(outputs.clipped.sum())


def _vllm_correction(sample: UnpaddedRollout) -> Tensor | None:
    """TRL's factors of the policy's tokens, [T] or, by sequence, [1]; None without vLLM."""
    factors_T = sample.token_fields.get(VLLM_CORRECTION)
    if factors_T is None or len(factors_T) == 1:
        return factors_T
    return factors_T[torch.from_numpy(sample.is_policy_T)]


def dapo_loss_scale(decision: Decision, step: int) -> float:
    """TRL's `dapo` loss divided by the mean over the step's own tokens.

    TRL divides by the mean number of tokens of the generation's steps, so the ratio is
    N_step / (N_generation / steps).
    """
    tokens_R = [row.loss_tokens for row in decision.rows]
    step_tokens = sum(tokens_R[i] for i in decision.plan.steps[step])
    return step_tokens * len(decision.plan.steps) / max(1, sum(tokens_R))


def learning_rate(trainer: Any) -> float | None:
    """The rate of the coming optimizer step of one of TRL's trainers."""
    scheduler = trainer.lr_scheduler
    return float(scheduler.get_last_lr()[0]) if scheduler else None


def step_end_callback(monitor: StepMonitor) -> Any:
    """Call the monitor when an optimizer step is done and its log is not written yet."""
    from transformers import TrainerCallback

    class AfterStep(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.after_step()

    return AfterStep()
