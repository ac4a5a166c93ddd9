"""Inside the workers: what every optimizer step was given, a JSON line for each rank and step.

Named in VERL_USE_EXTERNAL_MODULES; writes to $VERL_CPU_NOTES. A row is what the loss gets of it:
its uid, its trained tokens and their advantages, and how far its old log-probabilities are from
those of the server that sampled it, which had the same weights.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import torch


def _rows(data: Any) -> list[dict[str, Any]]:
    names = ("responses", "response_mask", "advantages", "old_log_probs", "rollout_log_probs")
    columns = zip(list(data["uid"]), *(data[name].unbind() for name in names), strict=True)
    rows = []
    for uid, ids_T, mask_T, advantages_T, old_T, sampled_T in columns:
        trained = mask_T.bool()
        gap = (old_T - sampled_T).abs()[trained]
        rows.append(
            {
                "uid": str(getattr(uid, "data", uid)),
                "ids": ids_T[trained].tolist(),
                "tokens": int(trained.sum()),
                "advantages": advantages_T[trained].tolist(),
                "advantage": float(advantages_T[trained][0]) if trained.any() else 0.0,
                "old_gap": float(gap.max()) if trained.any() else 0.0,
            }
        )
    return rows


def watch() -> None:
    from verl.workers.engine_workers import TrainingWorker

    plain = TrainingWorker.train_batch

    @functools.wraps(plain)
    def noting(self: TrainingWorker, data: Any) -> Any:
        rank = torch.distributed.get_rank()
        line = {"rank": rank, "rows": _rows(data)}
        with (Path(os.environ["VERL_CPU_NOTES"]) / f"rank_{rank}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        return plain(self, data)

    TrainingWorker.train_batch = noting


if "RANK" in os.environ:  # a worker, and not one of Ray's many other processes
    watch()
