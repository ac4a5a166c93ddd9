"""Summaries that tinker-cookbook 0.6.1 wrote; skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hosts.importing.foreign import read_lines
from hosts.importing.foreign_tinker import summary_record, turn

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.store.folder import RunFolder


def test_tinker_cookbook_writer(tmp_path: Path) -> None:
    """Its types, options, cut into optimizer steps and store write what we write by hand."""
    train = pytest.importorskip(
        "tinker_cookbook.rl.train", reason="no tinker-cookbook: pip install tinker-cookbook==0.6.1"
    )
    import tinker
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl import data_processing
    from tinker_cookbook.rl.rollout_logging import RolloutSummaryGroup
    from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
    from tinker_cookbook.utils.misc_utils import split_list
    from tinker_cookbook.utils.ml_log import JsonLogger

    def trajectory(reward: float, tokens: list[int], **metrics: float) -> Trajectory:
        action = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-0.5] * len(tokens))
        prompt = tinker.ModelInput.from_ints([1, 2, 3, 4])
        transition = Transition(prompt, action, reward, True, metrics, {})
        return Trajectory([transition], tinker.ModelInput.empty())

    rewards_PG = [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.25]]
    groups = [
        TrajectoryGroup(
            [
                trajectory(reward - 0.25, [7] * (3 * number + member + 1), correct=reward)
                for member, reward in enumerate(rewards)
            ],
            [0.25] * 3,
            [{}] * 3,
        )
        for number, rewards in enumerate(rewards_PG)
    ]
    folder = tmp_path / "run"
    config = train.Config(
        learning_rate=1e-5,
        dataset_builder=lambda: None,
        model_name="m",
        renderer_name="r",
        recipe_name="none",
        max_tokens=8,
        num_substeps=4,
        remove_constant_reward_groups=True,
        log_path=str(folder),
    )
    logger = JsonLogger(folder)
    logger.log_hparams(config)
    for base_name, split in (("train", "train"), ("eval_gsm8k", "eval/gsm8k")):
        train._maybe_export_rollout_summary_jsonl(
            config=config,
            base_name=base_name,
            split=split,
            iteration=12,
            groups_P=[RolloutSummaryGroup(group, ["maths"], 12) for group in groups],
            store=logger.store,
        )
    written = folder / "iteration_000012" / "train_rollout_summaries.jsonl"
    by_hand = [
        summary_record(
            number, member, reward, turn(3 * number + member + 1, 4, reward - 0.25, correct=reward),
            iteration=12, final_reward=0.25, tags=["maths"],
        )
        for number, rewards in enumerate(rewards_PG)
        for member, reward in enumerate(rewards)
    ]  # fmt: skip
    assert read_lines(written) == by_hand
    result = import_run(folder, tmp_path / "out")
    assert (result.source, result.steps, result.rollouts) == ("tinker-cookbook", 1, 9)
    assert (result.groups, result.tokens) == (3, 45)
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00012.jsonl")
    assert [line["reward"] for line in lines] == [r for rewards in rewards_PG for r in rewards]
    assert [line["finished"] for line in lines] == [True] * 7 + [False] * 2
    # Its own functions: what is trained, by which advantages, and in which optimizer steps.
    kept = data_processing.remove_constant_reward_groups(groups)
    advantages = data_processing.compute_advantages(kept)
    data, _ = data_processing.assemble_training_data(kept, advantages)
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    parts = split_list(range(len(data)), config.num_substeps)
    assert plan["steps"] == [list(part) for part in parts]
    assert plan["advantage"] == pytest.approx(torch.cat(advantages).tolist())
    trained = [int(sum(datum.loss_fn_inputs["mask"].data)) for datum in data]
    assert plan["tokens"] == trained
