"""Inside the workers: what every optimizer step was given, a JSON line for each rank and step.

Named in VERL_USE_EXTERNAL_MODULES; writes to $VERL_CPU_NOTES. A row is what the loss gets of it:
its uid, its trained tokens with their advantages and old log-probabilities, the advantage of the
rollout, and how far the old log-probabilities are from those of the server that sampled it.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import torch


def _rows(data: Any) -> list[dict[str, Any]]:
    unweighted = "poise_advantages" if "poise_advantages" in data else "advantages"
    names = (
        "responses", "response_mask", "advantages", unweighted, "old_log_probs",
        "rollout_log_probs",
    )  # fmt: skip
    columns = zip(list(data["uid"]), *(data[name].unbind() for name in names), strict=True)
    rows = []
    for uid, ids_T, mask_T, advantages_T, unweighted_T, old_T, sampled_T in columns:
        trained = mask_T.bool()
        gap = (old_T - sampled_T).abs()[trained]
        rows.append(
            {
                "uid": str(getattr(uid, "data", uid)),
                "ids": ids_T[trained].tolist(),
                "tokens": int(trained.sum()),
                "advantages": advantages_T[trained].tolist(),
                "old_logprobs": old_T[trained].tolist(),
                "advantage": float(unweighted_T[trained][0]) if trained.any() else 0.0,
                "old_gap": float(gap.max()) if trained.any() else 0.0,
            }
        )
    return rows


def watch() -> None:
    from verl.workers.engine_workers import TrainingWorker

    plain = TrainingWorker.train_batch

    @functools.wraps(plain)
    def noting(self: TrainingWorker, data: Any) -> Any:
        output = plain(self, data)
        rank = torch.distributed.get_rank()
        # After the step, since trajectory weights are multiplied to the advantages at its start.
        line = {"rank": rank, "rows": _rows(data)}
        with (Path(os.environ["VERL_CPU_NOTES"]) / f"rank_{rank}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        return output

    TrainingWorker.train_batch = noting


if "RANK" in os.environ:  # a worker, and not one of Ray's many other processes
    watch()
