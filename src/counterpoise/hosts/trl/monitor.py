"""The microscope inside TRL: what an optimizer step did to every token, in TRL's own logs.

Just before a step its rows are read once more, to get hidden states and the pulls -dL/dlogp that
the loss gives their tokens; just after it once more, for the displacement. Process 0 does both with
the native forward (native_rows.py). Losses: those that are our clipped surrogate under one of our
averages, times TRL's correction for vLLM. What else TRL can put into a loss is refused: pushes that
leave a part of it out would look like those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.hosts.trl.batch_rules import Decision, rollout
from counterpoise.hosts.trl.native_rows import MICRO_TOKENS, check_whole
from counterpoise.hosts.trl.samples import Sample
from counterpoise.microscope import monitor_sampling
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import AGGREGATIONS, SURROGATES

if TYPE_CHECKING:
    from counterpoise.hosts.trl.trainer import PoiseGRPOTrainer

AVERAGES = {
    "dapo": "token_mean", "bnpo": "token_mean", "grpo": "sequence_mean", "dr_grpo": "constant",
}  # fmt: skip
LEVELS = {"token": "grpo", "sequence": "gspo"}
PLAIN = {  # options of TRL that put more into the loss, and the value at which they do not
    "beta": 0.0, "entropy_coef": 0.0, "use_adaptive_entropy": False, "delta": None,
    "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
}  # fmt: skip
WATCHED = 2  # groups of a step whose pushes are kept for `poise look`, as in the native engine
CORRECTION = "importance_sampling_ratio"  # [T] or, by sequence, [1]


class StepMonitor:
    """Looks at every `monitor_every`-th optimizer step."""

    def __init__(self, trainer: PoiseGRPOTrainer) -> None:
        options = trainer.args
        if options.loss_type not in AVERAGES:
            raise PoiseError(
                f"monitor_every knows the losses {', '.join(AVERAGES)}, not '{options.loss_type}': "
                "set it to 0"
            )
        for name, plain in PLAIN.items():
            if (value := getattr(options, name)) != plain:
                raise PoiseError(
                    f"monitor_every sees the clipped surrogate alone, not what {name}={value} does "
                    f"to the loss: set {name}={plain}, or monitor_every=0"
                )
        check_whole(trainer, "monitor_every", "set it to 0")
        self.trainer = trainer
        self._open: tuple[Monitor, int, list[int], StepResult] | None = None

    def before(self, decision: Decision, step: int) -> None:
        trainer = self.trainer
        if trainer.state.global_step % trainer.args.monitor_every:
            return
        if not trainer.accelerator.is_main_process:
            return
        places, rows, samples = self._rows(decision, step)
        result = self.read(rows, samples)
        if not result.rows:
            return
        watched = monitor_sampling.first_mixed_groups(rows, WATCHED) if trainer.record else ()
        monitor = Monitor(trainer.temperature, MICRO_TOKENS, watched)
        monitor.before(trainer.policy, rows, result)
        self._open = (monitor, step, places, result)

    def after(self) -> None:
        if self._open is None:
            return
        (monitor, step, places, result), self._open = self._open, None
        monitor.after(self.trainer.policy)
        for name, value in monitor_metrics(monitor.measurements).items():
            if isinstance(value, float | int):
                self.trainer._metrics["train"][f"poise/{name}"].append(float(value))
        if self.trainer.record:
            self.trainer.record.looked(step, places, result, monitor.measurements[0])

    def _rows(self, decision: Decision, step: int) -> tuple[list[int], list[Row], list[Sample]]:
        """The step's rows with their tokens, where in the batch they are and what they are made of;
        rows that are masked out have no tokens to look at."""
        places, rows, samples = [], [], []
        known = not self.trainer.on_policy(decision, step)  # else the pass gives them
        for i in decision.plan.steps[step]:
            row = decision.rows[i]
            sample = self.trainer.shelf[row.group, row.index]
            if row.num_tokens == len(sample.completion_T):
                scored_T = sample.extra.get("old_per_token_logps") if known else None
                old: Floats | None = None if scored_T is None else scored_T.float().numpy()
                places.append(i)
                rows.append(replace(row, rollout=rollout(sample), scored_T=old))
                samples.append(sample)
        return places, rows, samples

    def read(self, rows: Sequence[Row], samples: Sequence[Sample] = ()) -> StepResult:
        """What `update/step.py` would report of these rows; no gradient reaches a weight. `samples`
        are asked for TRL's correction of vLLM's probabilities."""
        policy = self.trainer.policy
        options = self.trainer.args
        average = AGGREGATIONS.load(AVERAGES[options.loss_type])
        coefficients_R = average(rows, self.trainer.max_completion_length) if rows else np.empty(0)
        used = [i for i, row in enumerate(rows) if row.sign]
        seen: dict[int, tuple[Any, ...]] = {}
        loss, clipped = 0.0, 0
        for batch in micro_batches([rows[i] for i in used], MICRO_TOKENS):
            part = [used[k] for k in batch]
            with torch.no_grad():
                passed = forward(policy, [rows[i] for i in part], self.trainer.temperature)
            corrections = [samples[i].extra.get(CORRECTION) for i in part] if samples else []
            found = self._lost(
                passed.logprobs_M, [rows[i] for i in part], coefficients_R[part], corrections
            )
            pulls_M, loss, clipped = found[0], loss + found[1], clipped + found[2]
            tensors = (passed.logprobs_M, passed.entropies_M, pulls_M, passed.hidden_M)
            parts = [tensor.split(passed.lengths) for tensor in tensors]
            seen.update(zip(part, zip(*parts, strict=True), strict=True))
        host = [[t.float().cpu().numpy() for t in seen[i][:3]] for i in used]
        logprobs, entropies, pulls = ([line[k] for line in host] for k in range(3))
        old = [rows[i].scored_T for i in used]
        return StepResult(
            rows=tuple(used),
            logprobs=logprobs,
            old_logprobs=[n if x is None else x for x, n in zip(old, logprobs, strict=True)],
            advantages=[rows[i].advantages_T for i in used],
            entropies=entropies,
            pulls=pulls,
            coefficients=coefficients_R[used].astype(np.float32),
            loss=loss,
            grad_norm=float("nan"),  # TRL's affair
            clipped_share=clipped / max(1, sum(rows[i].num_tokens for i in used)),
            tokens=sum(row.num_tokens for row in rows),
            hidden=[seen[i][3] for i in used],
        )

    def _lost(
        self,
        logprobs_M: Tensor,
        rows: Sequence[Row],
        coefficients_R: Any,
        corrections: Sequence[Tensor | None] = (),
    ) -> tuple[Tensor, float, int]:
        """-dL/dlogp of every token by the surrogate itself, the loss, and tokens it clipped."""
        device, lengths = logprobs_M.device, [row.num_tokens for row in rows]
        index_M = torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)).to(device)
        old = [row.scored_T for row in rows]
        old_M = logprobs_M.detach()
        if all(x is not None for x in old):
            old_M = torch.from_numpy(np.concatenate(old)).to(logprobs_M)  # type: ignore[arg-type]
        advantages_M = torch.from_numpy(np.concatenate([r.advantages_T for r in rows]))
        with torch.enable_grad():
            leaf_M = logprobs_M.detach().requires_grad_()
            made = SURROGATES.load(LEVELS[self.trainer.importance_sampling_level])(
                SurrogateInputs(
                    logprobs=leaf_M,
                    old_logprobs=old_M,
                    advantages=advantages_M.to(leaf_M),
                    row=index_M,
                    num_rows=len(rows),
                    clip_low=self.trainer.epsilon_low,
                    clip_high=self.trainer.epsilon_high,
                )
            )
            weights_R = torch.as_tensor(coefficients_R, device=device, dtype=leaf_M.dtype)
            weights_M = weights_R[index_M]
            if known := [x for x in corrections if x is not None]:
                parts = [x.expand(n) for x, n in zip(known, lengths, strict=True)]
                weights_M = weights_M * torch.cat(parts).to(leaf_M)
            loss = (made.loss * weights_M).sum()
            (gradient_M,) = torch.autograd.grad(loss, leaf_M)
        return -gradient_M, float(loss.detach()), int(made.clipped.sum())


def callback(monitor: StepMonitor) -> Any:
    """TRL's bell: an optimizer step is done, its log is not written yet."""
    from transformers import TrainerCallback

    class AfterStep(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.after()

    return AfterStep()
