"""The KL from the initial policy: estimators, the reference, penalised rewards, whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import by_autograd as by
import numpy as np
import pytest
import tiny
import torch
from safetensors.numpy import load_file
from small_run import small_model, write_model

from counterpoise.config import RunConfig, UpdateConfig
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.credit.assign import assign_advantages
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.store import checkpoint
from counterpoise.store.resume import forbidden_differences
from counterpoise.types import BatchPlan, Group
from counterpoise.update.kl_penalty import (
    estimate_kl,
    penalize_rewards,
    with_reference_logprobs,
)
from counterpoise.update.reference import copy_weights, score_reference
from counterpoise.variants import KL_ESTIMATORS


def test_estimators_by_hand() -> None:
    new, reference = np.log([0.5, 0.2]).astype("f4"), np.log([0.25, 0.4]).astype("f4")
    log2 = np.log(2)
    np.testing.assert_allclose(estimate_kl("k1", new, reference), [log2, -log2], atol=1e-6)
    np.testing.assert_allclose(estimate_kl("k2", new, reference), [log2**2 / 2] * 2, atol=1e-6)
    np.testing.assert_allclose(
        estimate_kl("k3", new, reference), [0.5 - 1 + log2, 2 - 1 - log2], atol=1e-6
    )


def test_expected_gradients() -> None:
    """In expectation: 0 for k1, that of KL(pi || ref) for k2, that of KL(ref || pi) for k3."""
    z = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.2, -0.4, 0.0], dtype=torch.float64).log_softmax(0)
    logprobs = z.log_softmax(0)
    pi = logprobs.exp()
    divergences = {
        "k1": 0 * pi.sum(),
        "k2": (pi * (logprobs - reference)).sum(),
        "k3": (reference.exp() * (reference - logprobs)).sum(),
    }
    for name, divergence in divergences.items():
        estimate = (pi.detach() * KL_ESTIMATORS.load(name)(logprobs - reference)).sum()
        (found,) = torch.autograd.grad(estimate, z, retain_graph=True)
        (expected,) = torch.autograd.grad(divergence, z, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        if name != "k2":
            exact = (pi * (logprobs - reference)).sum()
            torch.testing.assert_close(estimate, exact, rtol=1e-10, atol=1e-12)


def test_the_reference_is_the_policy_until_it_is_trained() -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=1)
    reference, reader = copy_weights(policy), by.reader(policy)
    plan = BatchPlan("grouped", ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)))
    rows[3] = replace(rows[3], masked=True, advantage=0.0)
    assert with_reference_logprobs(reader, UpdateConfig(), None, rows, plan) == rows
    scored = with_reference_logprobs(reader, UpdateConfig(kl=0.1), reference, rows, plan)
    assert [row.reference_logprobs_T is None for row in scored] == [i == 3 for i in range(12)]
    config = replace(by.PLAIN, kl=0.1)
    result, _ = by.stepped(policy, [scored[i] for i in plan.steps[1]], None, config)
    assert result.kl == 0.0  # exactly: both passes have the same layout
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)
    again = score_reference(reader, reference, [scored[0]])
    np.testing.assert_allclose(again[0], scored[0].reference_logprobs_T, atol=2e-5)
    result, _ = by.stepped(policy, [scored[i] for i in plan.steps[1]], None, config)
    assert result.kl is not None
    assert result.kl > 1e-3


def make_groups(rewards: Sequence[float] = (1.0, 0.0, 0.0, 1.0)) -> list[Group]:
    rows = tiny.rows(groups=2, seed=4)
    return [
        Group(
            f"g{g}",
            1,
            tuple(
                replace(row.content, reward=reward)
                for row, reward in zip(rows[4 * g : 4 * g + 4], rewards, strict=True)
            ),
        )
        for g in range(2)
    ]


def test_penalised_rewards_by_hand() -> None:
    policy, groups = tiny.policy(), make_groups()
    reference = copy_weights(tiny.policy(seed=7))
    reader, options = by.reader(policy), UpdateConfig(kl=0.05, kl_estimator="k1", kl_in="reward")
    penalties = penalize_rewards(groups, options, reader, reference)
    credited = assign_advantages(groups, "dr_grpo", penalties=penalties.by_group)
    for group, rows in zip(groups, credited, strict=True):
        rewards = []
        for row in rows:
            new, first = (
                by.of_tokens(by.logprobs_TV(policy, row, model=model), row).detach().numpy()
                for model in (policy.model, tiny.policy(seed=7).model)
            )
            rewards.append(row.content.reward - 0.05 * float((new - first).sum()))
            np.testing.assert_allclose(reader.scores[row.name], new, atol=2e-5)
        expected = np.array(rewards) - np.mean(rewards)
        np.testing.assert_allclose([row.advantage for row in rows], expected, atol=1e-4)
        assert [rollout.reward for rollout in group.rollouts] == [1.0, 0.0, 0.0, 1.0]


def test_without_distance_rewards_stay_exactly() -> None:
    """So that groups with equal rewards have no signal before the first update."""
    policy, groups = tiny.policy(), make_groups((1.0, 1.0, 1.0, 1.0))
    options = UpdateConfig(kl=0.05, kl_estimator="k1", kl_in="reward")
    penalties = penalize_rewards(groups, options, by.reader(policy), copy_weights(policy))
    assert penalties.kl == 0.0
    credited = assign_advantages(groups, "grpo", penalties=penalties.by_group)
    assert all(row.advantage == 0.0 for rows in credited for row in rows)


RUN = [
    "loop.iterations=3", "loop.checkpoint_every=1", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=12", "task.levels=[1]", "task.size=16", "batch.steps=2",
    "evaluate.prompts=0", "update.lr=1e-3", "update.warmup_steps=1", "update.schedule=cosine",
    "update.kl=0.01", "store.report=false",
]  # fmt: skip
VARIANTS = {
    "in the loss": ["balance.tau=0", "balance.target=0", "update.mask_truncated=true"],
    "in the loss, with reward balance": ["balance.tau=0.25", "balance.target=8"],
    "in the reward": [
        "balance.tau=0", "balance.target=0", "update.kl_in=reward", "update.kl_estimator=k1",
        "update.entropy_bonus=0.001",
    ],
}  # fmt: skip


class StopAfter(RunObserver):
    """Ends the process's work after an iteration, as a signal between two iterations would."""

    def __init__(self, iteration: int) -> None:
        self.last = iteration

    def on_iteration(self, record: dict[str, Any]) -> None:
        if record["iteration"] == self.last:
            raise KeyboardInterrupt


def final_weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "checkpoints" / checkpoint.folder_name(3) / "model.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_ends_as_one_that_was_not(variant: str, tmp_path: Path) -> None:
    masks = "update.mask_truncated=true" in VARIANTS[variant]
    write_model(tmp_path / "model", ends=masks)  # masking would leave nothing of endless texts
    config = load_config("demo", [*RUN, *small_model(tmp_path), *VARIANTS[variant]])
    whole = train(config, tmp_path / "whole")
    finished = [line["finished"] for i in (1, 2, 3) for line in whole.read_rollouts(i)]
    assert (sum(finished) > len(finished) / 2) == masks
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=StopAfter(2))
    cut = train(config, tmp_path / "cut", resume=True)
    weights, resumed = final_weights(whole.path), final_weights(cut.path)
    assert all(np.array_equal(weights[name], resumed[name]) for name in weights)
    lines = whole.read("metrics")
    names = ("kl", "lr", "loss", "entropy", "flipped")
    assert [[line[n] for n in names] for line in lines] == [
        [line[n] for n in names] for line in cut.read("metrics")
    ]
    assert lines[-1]["kl"] > 0 or config.update.kl_estimator == "k1"
    if variant == "in the loss":
        # Six steps, one of them warm-up: the last of each iteration are steps 1, 3 and 5.
        decay = [(1 + np.cos(np.pi * k / 5)) / 2 for k in (0, 2, 4)]
        assert [line["lr"] for line in lines] == pytest.approx([1e-3 * x for x in decay])


def test_a_schedule_fixes_the_number_of_iterations() -> None:
    for schedule, forbidden in (("constant", []), ("linear", ["loop.iterations"])):
        config = config_from_tables({}, [f"update.schedule={schedule}", "loop.iterations=3"])
        longer = config_from_tables({}, [f"update.schedule={schedule}", "loop.iterations=4"])
        assert [name for name, _, _ in forbidden_differences(config, longer)] == forbidden


def test_probes_that_steer_the_run_are_fixed() -> None:
    for choose, forbidden in (
        ("epochs", []),
        ("aligned", ["monitor.probe", "monitor.probe_every", "monitor.probe_refresh"]),
    ):
        options = [f"sample.choose={choose}", "monitor.probe=64"]
        config = config_from_tables({}, options)
        changes = ["monitor.probe=8", "monitor.probe_every=3", "monitor.probe_refresh=1"]
        changed = config_from_tables({}, [*options, *changes])
        assert [name for name, _, _ in forbidden_differences(config, changed)] == forbidden


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["update.clip_dual=1.2"], r"update\.clip_dual=1\.2 must be above 1 \+ update\.clip_high"),
        (["update.clip_dual=3", "update.surrogate=dppo"], r"dppo has no dual clip: set"),
        (["update.kl=0.1", "credit.rule=sdpg"], r"sdpg adds a term of its own.*update\.kl=0"),
        (
            ["update.trajectory=orthogonal", "update.surrogate=reinforce",
             "update.mask_truncated=true"],
            r"needs whole groups.*update\.mask_truncated=false",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_one_line(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, sets)


def test_defaults_are_off() -> None:
    options = RunConfig().update
    assert not options.trains_all_rows
    assert not options.kl_in_reward
    assert not options.mask_truncated
