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
    from counterpoise.hosts.verl.recorder import MonitoredUpdate, UpdateRecorder, VerlUpdate

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
    before = nested([-1.0, -9.0, -2.0], [-3.5, -4.0], [0.0])
    monitored = MonitoredUpdate(before, after)
    update = VerlUpdate(1, batch, plan, numbers, monitored, keys_with_older_scores={"ab-1_3_0"})
    recorder.record(update, Words())
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
    # By the update alone, also where the old scores are those of older weights.
    assert table["displacement"] == [0.5, -1.0, 0.5, -0.5]
    assert table["old_logprob"] == [-3.0, -4.0, -1.0, -2.0]
    assert np.isnan(table["logprob"]).all()
    (record,) = map(json.loads, (tmp_path / "record/metrics.jsonl").read_text().splitlines())
    assert (record["grad_norm"], record["flipped"], record["success"]) == (3.0, 0.25, 0.5)
    assert (record["turns"], record["turn_success"]) == (2.0, None)  # no tool said which was right
    with pytest.raises(PoiseError, match="is not empty: choose another or remove it"):
        UpdateRecorder(tmp_path / "record", CONFIG).record(VerlUpdate(1, batch, plan, {}), Words())
    resumed = UpdateRecorder(tmp_path / "record", CONFIG)
    resumed.record(VerlUpdate(2, batch, plan, {}), Words())
    assert len((tmp_path / "record/metrics.jsonl").read_text().splitlines()) == 2
    table = pq.read_table(tmp_path / "record/tokens/step_00002.parquet").to_pydict()
    np.testing.assert_array_equal(table["logprob"], [-3.0, -4.0, np.nan, np.nan])


def test_entropies_that_are_sums_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.hosts.verl import queue
    from counterpoise.hosts.verl.recorder import UpdateRecorder, VerlUpdate

    data = {
        "prompts": nested([1], [1], [1]),
        "responses": nested([3], [4], [5]),
        "response_mask": nested([1], [1], [1]),
        "rm_scores": nested([1.0], [0.0], [0.0]),
        "advantages": nested([0.5], [-0.5], [-0.5]),
        "old_log_probs": nested([-1.0], [-3.0], [-3.0]),
    }
    monkeypatch.setattr(queue, "get_fields", lambda batch, *names: data)
    # Two outputs of one session: each is a row of its own.
    batch: Any = SimpleNamespace(keys=["ab_1_0", "ab_0_1", "ab_0_0"], tags=[{}, {}, {}])
    plan, entropies = BatchPlan("verl", ((0, 1, 2),)), []
    for mode in ("token-mean", "seq-mean-token-sum"):
        actor = {"loss_agg_mode": mode}
        config = {**CONFIG, "actor_rollout_ref": {"rollout": {"n": 2}, "actor": actor}}
        UpdateRecorder(tmp_path / mode, config).record(
            VerlUpdate(1, batch, plan, {"actor/entropy": 700.0}), Words()
        )
        entropies.append(json.loads((tmp_path / mode / "metrics.jsonl").read_text())["entropy"])
    assert entropies == [700.0, None]
    assert json.loads((tmp_path / mode / "plans.jsonl").read_text())["index"] == [2, 1, 0]
    lines = (tmp_path / mode / "rollouts/step_00001.jsonl").read_text().splitlines()
    assert [json.loads(line)["response_tokens"] for line in lines] == [[5], [4], [3]]


def test_rb_is_recorded_with_all_that_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update 3 trains on a group that waited since update 2; of its own groups one is dropped."""
    from counterpoise.batch.buffer import RewardBalancedBuffer
    from counterpoise.hosts.verl import queue
    from counterpoise.hosts.verl.recorder import UpdateRecorder, VerlUpdate
    from counterpoise.hosts.verl.sampler import SampledForUpdate
    from counterpoise.types import Row

    class Sampled(dict[str, Any]):
        def __len__(self) -> int:
            return 4

    fields = {
        "prompts": nested([1], [1], [2], [2]),
        "responses": nested([3], [4], [5], [6]),
        "response_mask": nested([1], [1], [1], [1]),
        "rm_scores": nested([1.0], [0.0], [0.0], [0.0]),
    }
    trained = {
        "prompts": nested([9], [1]),
        "responses": nested([7], [4]),
        "response_mask": nested([1], [1]),
        "rm_scores": nested([1.0], [0.0]),
        "advantages": nested([0.5], [-0.5]),
        "old_log_probs": nested([-1.0], [-3.0]),
    }
    monkeypatch.setattr(queue, "get_fields", lambda batch, *names: trained)
    keys = ["old_1_0", "new_1_0"]
    batch: Any = SimpleNamespace(keys=keys, tags=[{}, {}])
    rows = {
        "new_0_0": Row("new", 0.5, 1, 0), "new_1_0": Row("new", -0.5, 1, 1),
        "same_0_0": Row("same", 0.0, 1, 0), "same_1_0": Row("same", 0.0, 1, 1),
    }  # fmt: skip
    sampled = SampledForUpdate(
        buffer=RewardBalancedBuffer(tau=0.5, target=2),
        batch_rows={"old_1_0": Row("old", 0.5, 1, 1), "new_1_0": rows["new_1_0"]},
        update_of_group={"old": 2, "new": 3, "same": 3},
        sampled_rows=rows,
        sampled_fields=[Sampled(fields)],
        drops={"no_signal": [("same", 0), ("same", 1)]},
        sampling_rounds=2,
    )
    config = {**CONFIG, "poise": {"tau": 0.5}}
    recorder = UpdateRecorder(tmp_path / "record", config)
    plan = BatchPlan("grouped", ((0, 1),))
    recorder.record(VerlUpdate(3, batch, plan, {}, sampled=sampled), Words())
    (record,) = map(json.loads, (tmp_path / "record/metrics.jsonl").read_text().splitlines())
    assert (record["success"], record["rollouts"], record["mixed_groups"]) == (0.25, 4, 0.5)
    assert (record["batch_rows"], record["rows_without_signal"]) == (2, 2)
    assert record["sampling_rounds"] == 2
    (plan,) = map(json.loads, (tmp_path / "record/plans.jsonl").read_text().splitlines())
    assert (plan["born"], plan["groups"], plan["index"]) == ([2, 3], ["2:old", "3:new"], [1, 1])
    lines = (tmp_path / "record/rollouts/step_00003.jsonl").read_text().splitlines()
    assert [json.loads(line)["group"] for line in lines] == ["3:new"] * 2 + ["3:same"] * 2
    (drops,) = map(json.loads, (tmp_path / "record/drops.jsonl").read_text().splitlines())
    assert drops["no_signal"] == {"3:same": [0, 1]}
    balance = json.loads((tmp_path / "record/imported.json").read_text())["options"]["balance"]
    assert balance == {"tau": 0.5, "target": 2, "max_age": 4}
    # An update of rows that waited alone: nothing is written as if it were sampled again.
    waited = sampled._replace(sampled_rows={}, sampled_fields=[], drops={})
    plan = BatchPlan("grouped", ((0, 1),))
    recorder.record(VerlUpdate(4, batch, plan, {}, sampled=waited), Words())
    record = json.loads((tmp_path / "record/metrics.jsonl").read_text().splitlines()[1])
    assert (record["success"], record["rollouts"], record["batch_rows"]) == (0.25, 0, 2)
    assert not (tmp_path / "record/rollouts/step_00004.jsonl").exists()
