"""The recorder on a batch by hand: fillers, tools' tokens, and the update's displacement."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from counterpoise.errors import PoiseError
from counterpoise.types import BatchPlan

pytest.importorskip("transfer_queue")
CONFIG: dict[str, Any] = {
    "data": {"train_batch_size": 1, "max_response_length": 4},
    "actor_rollout_ref": {"rollout": {"n": 2}, "actor": {}},
}


class Words:
    name_or_path = "words"

    def __len__(self) -> int:
        return 9

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(str(int(i)) for i in ids)

    def batch_decode(self, rows: list[list[int]]) -> list[str]:
        return [self.decode(row) for row in rows]


def nested(*rows: list[float]) -> Any:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_an_update_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from counterpoise.hosts.verl import queue
    from counterpoise.hosts.verl.recorder import UpdateMeasurement, UpdateRecorder

    data = {
        "prompts": nested([1, 2], [1, 2], [1]),
        "responses": nested([3, 4, 5], [6, 7], [8]),
        "response_mask": nested([1, 0, 1], [1, 1], [0]),
        "rm_scores": nested([0.0, 0.0, 1.0], [0.0, 0.0], [0.0]),
        "advantages": nested([0.5, 0.5, 0.5], [-0.5, -0.5], [0.0]),
        "old_log_probs": nested([-1.0, -9.0, -2.0], [-3.0, -4.0], [0.0]),
    }
    monkeypatch.setattr(queue, "get_fields", lambda batch, *names: data)
    batch: Any = SimpleNamespace(
        keys=["ab-1_1_0", "ab-1_3_0", "pad_0_0"], tags=[{}, {}, {"is_padding": True}]
    )
    after = nested([-0.5, -9.0, -2.5], [-3.0, -5.0], [0.0])
    recorder = UpdateRecorder(tmp_path / "record", CONFIG)
    plan = BatchPlan("verl", ((1,), (0,)))
    numbers = {"actor/grad_norm": [2.0, 4.0], "poise/flipped": 0.25}
    recorder.record(1, batch, plan, Words(), numbers, UpdateMeasurement(after))
    first, second = (
        json.loads(line)
        for line in (tmp_path / "record/rollouts/step_00001.jsonl").read_text().splitlines()
    )
    assert (first["group"], first["reward"], first["response_tokens"]) == ("1:ab-1", 1.0, [3, 5])
    assert first["turns"][1]["told"] == [4]  # a tool's token, read and not trained
    assert second["response_tokens"] == [6, 7]
    (stored_plan,) = map(json.loads, (tmp_path / "record/plans.jsonl").read_text().splitlines())
    assert stored_plan["steps"] == [[1], [0]]
    assert (stored_plan["index"], stored_plan["advantage"]) == ([0, 1], [0.5, -0.5])
    table = pq.read_table(tmp_path / "record/tokens/step_00001.parquet").to_pydict()
    assert (table["row"], table["token"]) == ([1, 1, 0, 0], [6, 7, 3, 5])
    assert table["displacement"] == [0.0, -1.0, 0.5, -0.5]
    assert table["old_logprob"] == [-3.0, -4.0, -1.0, -2.0]
    np.testing.assert_array_equal(table["logprob"], [-3.0, -4.0, np.nan, np.nan])
    (record,) = map(json.loads, (tmp_path / "record/metrics.jsonl").read_text().splitlines())
    assert (record["grad_norm"], record["flipped"], record["success"]) == (3.0, 0.25, 0.5)
    with pytest.raises(PoiseError, match="is not empty: choose another or remove it"):
        UpdateRecorder(tmp_path / "record", CONFIG).record(1, batch, plan, Words(), {}, None)
    resumed = UpdateRecorder(tmp_path / "record", CONFIG)
    resumed.record(2, batch, plan, Words(), {}, None)
    assert len((tmp_path / "record/metrics.jsonl").read_text().splitlines()) == 2
