"""A dataset's column `trajectory` reaches composers, and survives a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoise.batch.buffer import BufferCounts
from counterpoise.batch.compose import compose
from counterpoise.hosts.trl.padding import UnpaddedRollout, read_trajectories, unpad
from counterpoise.types import Row


def trl_batch(rows: int) -> dict[str, torch.Tensor]:
    return {
        "prompt_ids": torch.arange(2 * rows).reshape(rows, 2),
        "prompt_mask": torch.ones(rows, 2, dtype=torch.long),
        "completion_ids": torch.arange(3 * rows).reshape(rows, 3),
        "completion_mask": torch.ones(rows, 3, dtype=torch.long),
        "advantages": torch.zeros(rows),
    }


def test_the_column_is_read_row_by_row() -> None:
    examples = [{"prompt": "a", "trajectory": "t1"}, {"prompt": "b", "trajectory": 2}, {}]
    samples = unpad(trl_batch(3), -1, read_trajectories(examples))
    assert [sample.trajectory for sample in samples] == ["t1", "2", ""]
    assert [sample.trajectory for sample in unpad(trl_batch(2), -1)] == ["", ""]


def test_a_completion_that_trl_masks_out_has_its_length_and_no_sign() -> None:
    pytest.importorskip("trl", reason="the trl extra is not installed")
    from counterpoise.hosts.trl.planner import assign_credit
    from counterpoise.trl import PoiseConfig

    batch = trl_batch(4)
    batch["completion_mask"] = torch.tensor([[0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]])
    batch["completion_ids"] = torch.tensor([[5, 6, 7], [5, 6, 9], [5, 6, 7], [5, 6, 9]])
    batch["old_per_token_logps"] = torch.zeros(4, 3)
    batch["advantages"] = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    samples = unpad(batch, pad_token=9)
    assert [len(sample.completion_T) for sample in samples] == [3, 2, 3, 2]
    assert [sample.old_logprobs is None for sample in samples] == [True, False, False, True]
    for credit, positive in (("trl", 1.0), ("dr_grpo", 0.5)):
        options = PoiseConfig(
            num_generations=4, per_device_train_batch_size=4, credit=credit, tau=0.25,
            mask_truncated_completions=True, use_cpu=True, bf16=False,
        )  # fmt: skip
        (rows,) = assign_credit(samples, [0.0, 1.0, 1.0, 0.0], 1, options)
        assert [row.advantage for row in rows] == [0.0, positive, positive, 0.0]
        assert [(row.masked, row.num_tokens) for row in rows] == [
            (True, 0), (False, 2), (False, 3), (True, 0),
        ]  # fmt: skip


def test_tokens_of_tools_stand_between_turns() -> None:
    pytest.importorskip("trl", reason="the trl extra is not installed")
    from counterpoise.hosts.trl.planner import to_rollout

    batch = trl_batch(1)
    batch["completion_ids"] = torch.tensor([[5, 6, 7, 8]])
    batch["completion_mask"] = torch.ones(1, 4, dtype=torch.long)
    batch["tool_mask"] = torch.tensor([[1, 0, 0, 1]])
    batch["old_per_token_logps"] = torch.tensor([[-1.0, -2.0, -3.0, -4.0]])
    (sample,) = unpad(batch, pad_token=9)
    rollout = to_rollout(sample)
    assert (rollout.response_tokens.tolist(), sample.num_tokens) == ([5, 8], 2)
    assert rollout.sampled_logprobs.tolist() == [-1.0, -4.0]
    assert [(turn.observation.tolist(), turn.action) for turn in rollout.turns] == [
        ([], (0, 1)),
        ([6, 7], (1, 2)),
    ]


def test_prompts_of_one_agent_share_a_step() -> None:
    pytest.importorskip("trl", reason="the trl extra is not installed")
    from counterpoise.hosts.trl.planner import rows_by_trl

    # Four agents of two calls; every call is a prompt with two completions.
    examples = [{"trajectory": f"agent {call // 2}"} for call in range(8) for _ in range(2)]
    samples = unpad(trl_batch(16), -1, read_trajectories(examples))
    rows = [row for group in rows_by_trl(samples, 2, generation=1) for row in group]
    for step in compose("grouped", rows, 2, seed=0).steps:
        assert len(step) == 8
        assert len({rows[i].trajectory for i in step}) == 2


def test_what_waits_keeps_its_trajectory(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the trl extra is not installed")
    from counterpoise.hosts.trl.checkpoint import CheckpointExtras, load_extras, save_extras

    row = Row("1:0", 0.5, 2, index=1, born=1, trajectory="agent 3")
    prompt, completion = torch.tensor([4, 5]), torch.tensor([6, 7])
    sample = UnpaddedRollout(prompt, completion, torch.ones(2), {}, 0.5, trajectory="agent 3")
    counts = BufferCounts(0, 0, 0, 0, 0)
    save_extras(tmp_path, CheckpointExtras(1, [row], counts, {row.name: sample}))
    loaded = load_extras(tmp_path)
    assert loaded is not None
    assert loaded.rows[0].trajectory == "agent 3"
    assert loaded.rollouts_by_key[row.name].trajectory == "agent 3"
