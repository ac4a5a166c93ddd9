"""TRL's gradients and token weights are the native ones: any passes, one process or two."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hosts.trl.trl_compare import EXACT, distance, launch, needs_trl, policy_at, rounding, rows_of

from counterpoise.credit.assign import assign
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.types import Group, Rollout, Row
from counterpoise.variants import TOKEN_WEIGHTS


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(("chat", "most"), [(True, 1e-5), (False, 3e-5)])
@pytest.mark.parametrize("processes", [1, 2])
def test_in_float32_gradients_are_native_but_for_rounding(
    tmp_path: Path, processes: int, chat: bool, most: float
) -> None:
    """For one seed; docs/results/speed.md has the numbers for many."""
    size = {"per_device_train_batch_size": 6 // processes}
    noted = launch(tmp_path, processes, double=False, chat=chat, **size)[0]
    steps = [step for step in noted["steps"] if any(step["advantages"])]
    assert len(steps) > 4
    assert np.median([distance(step) for step in steps]) < 1e-5
    for step in steps:
        assert distance(step) < most
        assert rounding(step) < 3e-5


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "average"),
    [("bnpo", "token_mean"), ("grpo", "sequence_mean"), ("dr_grpo", "constant")],
)
def test_uneven_passes_average_over_the_step(tmp_path: Path, loss: str, average: str) -> None:
    (noted,) = launch(
        tmp_path, generations=1, loss_type=loss, composer="shuffled",
        per_device_train_batch_size=3, gradient_accumulation_steps=2, steps_per_generation=8,
    )  # fmt: skip
    assert max(distance(step, average) for step in noted["steps"]) < EXACT


@needs_trl
@pytest.mark.slow
def test_trls_own_denominator_is_the_generations(tmp_path: Path) -> None:
    (noted,) = launch(tmp_path, generations=1, denominator="trl")
    tokens = [sum(map(len, step["responses"])) for step in noted["steps"]]
    shares = [4 * n / sum(tokens) for n in tokens]
    assert max(shares) > 1.05
    for step, share in zip(noted["steps"], shares, strict=True):
        assert distance(step, scale=share) < EXACT


@needs_trl
@pytest.mark.slow
def test_a_step_with_fewer_rows_than_passes(tmp_path: Path) -> None:
    (noted,) = launch(
        tmp_path, generations=3, composer="by_sign", modulus=3, num_generations=8,
        per_device_train_batch_size=1, gradient_accumulation_steps=4, steps_per_generation=8,
    )  # fmt: skip
    assert [] in noted["passes"]  # a pass had nothing to do
    assert sum(map(len, noted["passes"])) == 24
    assert max(distance(step) for step in noted["steps"]) < EXACT


@needs_trl
@pytest.mark.parametrize(
    ("is_fsdp_enabled", "is_deepspeed_enabled"), [(True, False), (False, True)]
)
def test_token_weights_need_a_whole_model(
    is_fsdp_enabled: bool, is_deepspeed_enabled: bool
) -> None:
    from counterpoise.hosts.trl.native_policy import check_native_forward

    host = SimpleNamespace(
        is_fsdp_enabled=is_fsdp_enabled, is_deepspeed_enabled=is_deepspeed_enabled, model=None
    )
    who = "FSDP" if is_fsdp_enabled else "DeepSpeed"
    said = f"^credit_weights reads a whole model, not one under {who}: use 'uniform'$"
    with pytest.raises(PoiseError, match=said):
        check_native_forward(host, "credit_weights", "use 'uniform'")


@needs_trl
def test_a_tools_words_are_not_weighed() -> None:
    from counterpoise.hosts.trl.padding import UnpaddedRollout
    from counterpoise.hosts.trl.planner import assign_credit

    ones = torch.ones(3, dtype=torch.long)
    sample = UnpaddedRollout(ones, ones, ones, {"tool_mask": ones}, 0.0)
    options = SimpleNamespace(
        num_generations=2, credit="grpo", credit_weights="high_entropy", credit_settings=[]
    )
    with pytest.raises(PoiseError, match="a tool's tokens: use 'uniform'"):
        assign_credit([sample, sample], [0.0, 1.0], 1, options)
    options.credit_weights = "uniform"
    ((low, high),) = assign_credit([sample, sample], [0.0, 1.0], 1, options)
    assert (low.advantage, high.advantage) == pytest.approx((-(0.5**0.5), 0.5**0.5), abs=1e-5)


@needs_trl
@pytest.mark.slow
def test_token_weights_reach_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOKEN_WEIGHTS._entries, "ramp", "hosts.trl.trl_run:ramp")
    (noted,) = launch(tmp_path, generations=1, credit="rloo", credit_weights="ramp")
    assert noted["steps"][0]["weights_T"][0][0] == 0.5
    assert max(distance(step) for step in noted["steps"]) < EXACT


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "settings"), [("high_entropy", ["share=0.3"]), ("cancellation", [])]
)
@pytest.mark.parametrize("processes", [1, 2])
def test_token_weights_are_the_native_ones(
    tmp_path: Path, processes: int, weights: str, settings: list[str]
) -> None:
    """Advantages of every token as the loss gets them, and the gradient that comes of them."""
    runs = launch(
        tmp_path, processes, generations=1, double=False, chat=True, credit_weights=weights,
        credit_settings=settings, per_device_train_batch_size=6 // processes,
    )  # fmt: skip
    noted = runs[0]
    result: dict[str, dict[int, Rollout]] = defaultdict(dict)
    for step in noted["steps"]:
        for row, index in zip(rows_of(step), step["index"], strict=True):
            reward = float(int(row.content.response_tokens.sum()) % 2 == 0)  # as trl_run.by_sum
            result[row.group][index] = replace(row.content, reward=reward)
    groups = [
        Group(key, 1, tuple(result[key][k] for k in range(4)))
        for key in sorted(result, key=lambda key: int(key.split(":")[1]))
    ]
    reader = PolicyReader(policy_at(noted["steps"][0]))
    rows = [row for group in assign(groups, "grpo", weights, settings, reader) for row in group]
    expected = {(*_tokens(row),): row.advantages_T for row in rows}
    options = [line for item in runs for lines in item["given"] for line in lines]
    assert len(options) == len(rows) == 24
    for prompt, response, advantages_T in options:
        np.testing.assert_allclose(
            advantages_T, expected[tuple(prompt), tuple(response)], rtol=0, atol=1e-5
        )
    assert any(len(set(np.abs(advantages_T))) > 1 for _, _, advantages_T in options)
    for step in noted["steps"]:
        if any(step["advantages"]):
            assert distance(step) < max(1e-5, 3 * rounding(step))


def _tokens(row: Row) -> tuple[tuple[int, ...], tuple[int, ...]]:
    content = row.content
    return tuple(content.prompt_tokens.tolist()), tuple(content.response_tokens.tolist())
