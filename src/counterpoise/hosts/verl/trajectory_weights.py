"""DFPO's trajectory weights inside verl: A_{i,t} becomes A_{i,t} w~_i at every optimizer step.

    w_i = exp(mean_t (log pi(o_t) - log pi_old(o_t)))        pi: the weights before the step

`update/trajectory.py` turns the w of a group into w~. That needs the current policy and the whole
group, and verl's loss sees one micro-batch of one rank. So before a step every rank scores its rows
once more, the ranks exchange one number for each row, and the advantages of the step are
multiplied; verl's loss `gpg`, -A log pi, has neither ratio nor clip. At the first step of an update
no pass is needed if the weights that scored the rows are still the current ones.

plugin.py installs the wrappers below in verl's workers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from counterpoise.hosts.verl.weight_request import ROLLOUT_ADVANTAGES
from counterpoise.types import Floats, Row, rows_by_group
from counterpoise.update.trajectory import Doubles, mean_ratio, weigh_groups

REQUEST_KEY = "poise_trajectory"  # in the extra information of verl's batch


@dataclass(frozen=True, slots=True)
class TrajectoryRequest:
    """How the steps of an update are weighted; it travels to the workers as JSON.

    Example:
        TrajectoryRequest("orthogonal", starts_on_policy=True)
    """

    weighting: str  # a name of TRAJECTORY_WEIGHTS
    starts_on_policy: bool  # at the first step all ratios are 1

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def trajectory_weights(
    rows: Sequence[Row], ratios_R: Sequence[float], weighting: str, group: Any
) -> Doubles:
    """w~ [R] of this rank's rows, with groups over all ranks; 1 for rows without signal."""
    own = [(row, ratio) for row, ratio in zip(rows, ratios_R, strict=True) if row.sign]
    by_rank: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(by_rank, own, group=group)
    step_rows = [row for rank_rows in by_rank for row, _ in rank_rows]
    weights_S = weigh_groups(
        list(rows_by_group(step_rows).values()),
        np.array([ratio for rank_rows in by_rank for _, ratio in rank_rows]),
        np.array([row.advantage for row in step_rows]),
        weighting,
    )
    first = sum(map(len, by_rank[: torch.distributed.get_rank(group)]))
    weights_R = np.ones(len(rows))
    weights_R[[row.sign != 0 for row in rows]] = weights_S[first : first + len(own)]
    return weights_R


# -- in verl's workers ---------------------------------------------------------------------------


class TrajectoryWeighting:
    """Weights the optimizer steps of one update on one rank."""

    def __init__(self, request: TrajectoryRequest) -> None:
        self.request = request
        self.steps_taken = 0

    def weigh_step(self, worker: Any, data: Any) -> None:
        """Multiply the advantages of a step's rows, which are changed in place."""
        is_on_policy = self.request.starts_on_policy and self.steps_taken == 0
        self.steps_taken += 1
        masks = [mask_T.bool() for mask_T in data["response_mask"].unbind()]
        # With token weights, the advantage of the rollout is in a field of its own.
        field = ROLLOUT_ADVANTAGES if ROLLOUT_ADVANTAGES in data else "advantages"
        rows = [
            _as_row(uid, advantages_T[mask_T])
            for uid, advantages_T, mask_T in zip(
                data["uid"], data[field].unbind(), masks, strict=True
            )
        ]
        ratios_R = [1.0] * len(rows) if is_on_policy else _ratios(worker, data, masks)
        weights_R = trajectory_weights(
            rows, ratios_R, self.request.weighting, worker.engine.get_data_parallel_group()
        )
        data["advantages"] = torch.nested.as_nested_tensor(
            [
                advantages_T * weight
                for advantages_T, weight in zip(
                    data["advantages"].unbind(), weights_R.tolist(), strict=True
                )
            ],
            layout=torch.jagged,
        )


def _as_row(uid: Any, advantages_T: torch.Tensor) -> Row:
    advantage = float(advantages_T[0]) if len(advantages_T) else 0.0
    return Row(str(getattr(uid, "data", uid)), advantage, len(advantages_T))


def _ratios(worker: Any, data: Any, masks: Sequence[torch.Tensor]) -> list[float]:
    """exp(mean_t log rho) of this rank's rows, by a pass of the current weights."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import response_from_nested

    scored = data.clone(recurse=False)  # the pass notes its micro-batch sizes in it
    tensordict_utils.assign_non_tensor(scored, compute_loss=False, calculate_entropy=False)
    output = worker.infer_batch(scored)
    current = response_from_nested(output["log_probs"], data["response_mask"].cpu())

    def trained(column: Any) -> list[Floats]:
        return [
            values_T.cpu()[mask_T.cpu()].float().numpy()
            for values_T, mask_T in zip(column.unbind(), masks, strict=True)
        ]

    return [
        mean_ratio(current_T, old_T) if len(old_T) else 1.0
        for current_T, old_T in zip(trained(current), trained(data["old_log_probs"]), strict=True)
    ]


def install_in_workers() -> None:
    """Wrap the training methods of verl's workers."""
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import TrainingWorker

    train_mini_batch, train_batch = TrainingWorker.train_mini_batch, TrainingWorker.train_batch

    @functools.wraps(train_mini_batch)
    def weighted_mini_batches(self: Any, data: Any) -> Any:
        text = tensordict_utils.pop(data, key=REQUEST_KEY, default=None)
        if text is None:
            return train_mini_batch(self, data)
        request = TrajectoryRequest(**json.loads(text))
        self.poise_trajectory = TrajectoryWeighting(request)
        try:
            return train_mini_batch(self, data)
        finally:
            self.poise_trajectory = None

    @functools.wraps(train_batch)
    def weighted_batch(self: Any, data: Any) -> Any:
        if getattr(self, "poise_trajectory", None) is not None:
            self.poise_trajectory.weigh_step(self, data)
        return train_batch(self, data)

    TrainingWorker.train_mini_batch = weighted_mini_batches
    TrainingWorker.train_batch = weighted_batch
