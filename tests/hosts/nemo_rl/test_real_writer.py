"""A batch that NeMo-RL at 7ea279ab wrote; skipped where it is not installed."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hosts.importing.foreign import read_lines
from hosts.importing.foreign_nemo_rl import write_config

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.store.folder import RunFolder


def test_nemo_rl_writer(tmp_path: Path) -> None:
    """NeMo-RL masks, filters, pads, scores and writes a batch with two turns, dynamic sampling and
    a leave-one-out baseline, which drops the only right sample of the second prompt.
    """
    reason = "NeMo-RL is not installed: the package of that name in the index is empty"
    grpo = pytest.importorskip("nemo_rl.algorithms.grpo", reason=reason, exc_type=ImportError)
    from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator
    from nemo_rl.algorithms.utils import calculate_baseline_and_std_per_prompt
    from nemo_rl.data.llm_message_utils import batched_message_log_to_flat_message
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.utils.logger import Logger
    from nemo_rl.utils.timer import Timer

    def message(role: str, content: str, tokens: list[int]) -> dict[str, Any]:
        logprobs = torch.tensor([-0.1 * token for token in tokens])
        numbers = {"generation_logprobs": logprobs} if role == "assistant" else {}
        return {
            "role": role, "content": content, "token_ids": torch.tensor(tokens), **numbers
        }  # fmt: skip

    def talk(prompt: int, turns: int) -> list[dict[str, Any]]:
        messages = [message("user", f"How many, {prompt}?", [5, prompt])]
        for reply in range(turns):
            messages.append(message("assistant", f"so {reply}", [20 + reply, 2]))
            messages.append(message("environment", f"reply {reply}", [30 + reply]))
        return messages

    prompts = torch.tensor([[5, 6]] * 4 + [[5, 7]] * 4)
    rewards = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0])
    batch = BatchedDataDict(
        {
            "message_log": [talk(int(prompts[row, 1]), 1 + row % 2) for row in range(8)],
            "total_reward": rewards,
            "loss_multiplier": torch.ones(8),
        }
    )
    baseline, std = calculate_baseline_and_std_per_prompt(prompts, rewards, torch.ones(8))
    options = Namespace(
        grpo=Namespace(
            num_prompts_per_step=7, num_generations_per_prompt=1, use_dynamic_sampling=True
        )
    )
    batch, is_complete, _, _ = grpo.dynamic_sampling(batch, std, baseline, 1, options, Timer())
    assert is_complete
    grpo.add_grpo_token_loss_masks_and_generation_logprobs(batch["message_log"])
    flat, lengths = batched_message_log_to_flat_message(batch["message_log"], {"token_ids": 0}, 8)
    rewards = batch["filtered_reward"]
    estimator = GRPOAdvantageEstimator(
        AdvEstimatorConfig(use_leave_one_out_baseline=True, normalize_rewards=True), None
    )
    mask = flat["token_loss_mask"]
    advantages = estimator.compute_advantage(flat["token_ids"][:, :2], rewards, mask)
    trainer = torch.where(flat["token_ids"] > 0, flat["generation_logprobs"] - 0.05, 0.0)
    columns = {
        "content": flat["content"],
        "rewards": batch["total_reward"].tolist(),
        "filtered_rewards": rewards.tolist(),
        "input_lengths": lengths.tolist(),
        "token_ids": flat["token_ids"].tolist(),
        "token_loss_mask": mask.tolist(),
        "sample_loss_mask": batch["loss_multiplier"].tolist(),
        "advantages": advantages.tolist(),
        "generation_logprobs": flat["generation_logprobs"].tolist(),
        "prev_logprobs": trainer.tolist(),
    }
    folder = tmp_path / "run"
    Logger.log_batched_dict_as_jsonl(
        Namespace(base_log_dir=folder), columns, "train_data_step3.jsonl"
    )
    write_config(folder / "config.yaml", 7, 1, 7)
    result = import_run(folder, tmp_path / "out")
    assert (result.source, result.rollouts, result.groups) == ("NeMo-RL", 7, 2)
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00003.jsonl")
    assert columns["rewards"][4] == 1.0  # of a sample that is not in the file
    assert [line["reward"] for line in lines] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [line["prompt"] for line in lines] == ["How many, 6?"] * 4 + ["How many, 7?"] * 3
    assert [line["response"] for line in lines] == [
        "so 0", "so 0so 1", "so 0", "so 0so 1", "so 0so 1", "so 0", "so 0so 1"
    ]  # fmt: skip
    assert lines[1]["response_tokens"] == [20, 2, 21, 2]
    assert lines[1]["turns"][1]["told"] == [30]
    assert lines[1]["turns"][0]["feedback"] == "reply 0"
    np.testing.assert_allclose(lines[1]["sampled_logprobs"], [-2.0, -0.2, -2.1, -0.2], rtol=1e-6)
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    np.testing.assert_allclose(plan["advantage"], advantages[:, 0].tolist(), rtol=1e-6)
    assert write_report(tmp_path / "out").is_file()
