"""The examples run, and the one that stands on its own computes what the library computes."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from itertools import cycle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tiny
import torch

from counterpoise.batch.choose_rollouts import choose_rollouts
from counterpoise.batch.compose import check_plan
from counterpoise.batch.describe import describe_plan
from counterpoise.config import UpdateConfig
from counterpoise.credit import advantages
from counterpoise.model.scoring import score_logprobs
from counterpoise.types import BatchPlan, Row
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.verify.exact import ExactVerifier

EXAMPLE = Path(__file__).parents[1] / "examples" / "grpo_in_one_file.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def own(example: ModuleType, rows: list[Row]) -> list:
    """The library's rows as the example's."""
    numbers = {row.group: n for n, row in enumerate(rows)}
    return [
        example.Row(
            group=numbers[row.group],
            born=row.born,
            prompt_S=torch.from_numpy(row.content.prompt_tokens.astype(np.int64)),
            response_T=torch.from_numpy(row.content.response_tokens.astype(np.int64)),
            old_logprobs_T=torch.from_numpy(row.old_logprobs),
            reward=row.content.reward,
            advantage=row.advantage,
        )
        for row in rows
    ]


@pytest.mark.parametrize("right", range(9))
def test_advantages_are_the_librarys(example: ModuleType, right: int) -> None:
    rewards_G = np.array([1.0] * right + [0.0] * (8 - right))
    np.testing.assert_array_equal(example.advantages(rewards_G), advantages.grpo(rewards_G))


@pytest.mark.parametrize(
    "response",
    [
        r"6 + 6 = 12. The answer is \boxed{12}.",
        r"\boxed{ 12 }",
        r"\boxed{13} no, \boxed{12}",
        r"\boxed{12} no, \boxed{13}",
        r"\boxed{12",
        "12",
        "",
    ],
)
def test_reward_is_the_exact_verifiers(example: ModuleType, response: str) -> None:
    assert [example.reward(response, "12")] == ExactVerifier().score([response], ["12"]).rewards


@pytest.mark.parametrize("seed", range(20))
def test_balance_is_the_librarys(
    example: ModuleType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    tau, target = rng.choice([0.1, 0.25, 0.5]), int(rng.choice([8, 16, 32]))
    monkeypatch.setattr(example, "BATCH", target)
    groups = []
    for g in range(int(rng.integers(1, 16))):
        right = int(rng.choice([1, 2, 6, 7]))
        A_G = advantages.grpo(rng.permutation([1.0] * right + [0.0] * (8 - right)))
        groups.append(tuple(Row(f"g{g}", A, 9, index=i) for i, A in enumerate(A_G.tolist())))
    nothing = torch.empty(0)
    waiting = [
        # `born` is free here: it carries the place in the group
        [example.Row(g, row.index, *[nothing] * 3, 0.0, row.advantage) for row in group]
        for g, group in enumerate(groups)
    ]
    batch, left = example.balance(waiting, tau)
    chosen = choose_rollouts(groups, target, tau)
    if chosen is None:
        assert batch == []
        assert left == waiting
        return
    kept = [row for _, rows in chosen for row in rows]
    assert [(f"g{row.group}", row.born) for row in batch] == [
        (row.group, row.index) for row in kept
    ]
    assert [row.advantage for row in batch] == pytest.approx([row.advantage for row in kept])
    assert len(batch) == target
    assert left == waiting[len(chosen) :]


@pytest.mark.parametrize("seed", range(10))
def test_grouped_never_splits_a_group_and_shuffled_does(example: ModuleType, seed: int) -> None:
    rows = tiny.rows(groups=9, size=4, seed=seed)
    mine, rng = own(example, rows), np.random.default_rng(seed)
    for rule in ("grouped", "shuffled"):
        steps = example.COMPOSERS[rule](mine, rng)
        plan = BatchPlan(rule, tuple(map(tuple, steps)))
        check_plan(
            rows, plan, example.STEPS
        )  # raises unless a partition, and whole groups if grouped
        assert example.count_split_groups(mine, steps) == describe_plan(rows, plan)["split_groups"]
        assert (example.count_split_groups(mine, steps) == 0) == (rule == "grouped")


def test_loss_and_gradient_are_the_librarys(example: ModuleType) -> None:
    policy, rows = tiny.policy(), tiny.rows()
    config = UpdateConfig(aggregate="token_mean")
    result = accumulate_gradient(
        policy, rows, StepSettings(config, temperature=1.0, max_new_tokens=24)
    )
    theirs = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    policy.model.zero_grad(set_to_none=True)
    loss = example.clipped_loss(policy.model, own(example, rows))
    loss.backward()
    ours = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    assert 0 < result.clipped_share < 1
    assert loss.item() == pytest.approx(result.loss, rel=1e-5)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_logprobs_are_the_librarys(example: ModuleType) -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=1)
    with torch.no_grad():
        mine = own(example, rows)
        ours = example.logprobs(
            policy.model, [row.prompt_S for row in mine], [row.response_T for row in mine]
        )
    for a, b in zip(ours, score_logprobs(policy, rows, 1.0, 10_000), strict=True):
        np.testing.assert_allclose(a.numpy(), b, atol=1e-5)


@pytest.fixture
def small(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example with 2 prompts of 4 responses."""
    sizes = {"PROMPTS": 2, "GROUP_SIZE": 4, "BATCH": 4, "STEPS": 1, "MAX_NEW_TOKENS": 48}
    for name, value in sizes.items():
        monkeypatch.setattr(example, name, value)
    return example


def test_it_runs(small: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (success,) = small.main(["--iterations", "1", "--composer", "shuffled", "--tau", "0"])
    header, line, summary = capsys.readouterr().out.splitlines()
    assert header.startswith("iteration  success")
    assert line.split()[:2] == ["1", f"{success:.0%}"]
    assert summary.endswith(f"last 1 {success:.0%}")
    assert success * 8 in range(1, 9)  # the embedded model solves two thirds of them


def test_it_balances_and_waits(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = cycle([1.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(small, "reward", lambda response, answer: next(verdicts))
    assert small.main(["--iterations", "1", "--tau", "0.5"]) == [0.25]
    line = capsys.readouterr().out.splitlines()[1]
    # a batch of 4 needs 2 of each sign: one positive a group, so both groups, trimmed to 1/1
    assert line.split()[1:5] == ["25%", "2/2", "0", "0"]


def run_plain_loop(name: str) -> dict:
    return runpy.run_path(str(EXAMPLE.parent / f"plain_loop_{name}.py"))


@pytest.mark.parametrize("name", ["advantages", "token_weights"])
def test_a_plain_loop_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    success = run_plain_loop(name)["success"]
    assert sum(success[-5:]) > sum(success[:5]) + 0.5  # of 5
    assert capsys.readouterr().out == f"success {success[0]:.0%} -> {success[-1]:.0%}\n"


def test_the_plain_loop_with_batches_keeps_its_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tau 0.25 of 32 rollouts: 8 of each sign at least. Every rollout is accounted for."""
    buffer = run_plain_loop("batches")["buffer"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 10
    for line in lines:
        split, positive, negative = map(int, re.findall(r"\d+", line))
        assert split == 0
        assert positive + negative == 32
        assert min(positive, negative) >= 8
    counts = buffer.counts
    assert counts.added == 640
    assert counts.emitted == 32 * len(lines)
    left = counts.dropped_surplus + counts.dropped_aged + counts.without_signal + len(buffer)
    assert counts.emitted + left == 640


def test_the_plain_loop_with_token_weights_weights_tokens() -> None:
    weights_RT = run_plain_loop("token_weights")["weights_RT"]
    assert weights_RT.shape == (64, 5)
    assert weights_RT.min() >= 0.5
    assert weights_RT.max() <= 1.5
    assert (weights_RT != 1).float().mean() > 0.5


def test_the_plain_loop_with_decompose_predicts_the_step() -> None:
    """To first order: the error is of the size of the change squared."""
    found = run_plain_loop("decompose")
    coupling, change_N = found["coupling"], found["change_N"]
    largest = change_N.abs().max().item()
    assert largest > 1e-3
    assert (coupling.total - change_N).abs().max().item() < largest**2
