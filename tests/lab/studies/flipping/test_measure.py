"""The flipping study: verdicts on made-up counts, runs read from metrics.jsonl alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import lab, random_lab

from counterpoise.lab.studies.flipping import measure
from counterpoise.lab.studies.flipping.judge import (
    FULL_BATCH,
    OPTIMIZERS,
    SIGNS,
    MovementCounts,
    run_means,
)
from counterpoise.lab.studies.harness import Lab
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.polarity import without_negative_advantages
from counterpoise.statistics.finding import Finding, Record


def step_records(boosted: dict[tuple[str, str], float], prompts: int = 40) -> list[Record]:
    """100 tokens a prompt and sign, 10 of them stable, `boosted` of the other 90 on average."""
    rng = np.random.default_rng(0)
    records = []
    for optimizer in OPTIMIZERS:
        for (arm, sign), share in boosted.items():
            for p in range(prompts):
                up = int(np.clip(round(90 * share + rng.normal(scale=4)), 0, 90))
                records.append(
                    {"panel": "step", "optimizer": optimizer, "arm": arm, "prompt": p, "sign": sign,
                     "tokens": 100, "boosted": up, "suppressed": 90 - up, "moved": 1.0}
                )  # fmt: skip
    return records


def run_records(boosted: dict[tuple[str, str], float]) -> list[Record]:
    return [
        {"panel": "run", "arm": arm, "sign": sign, "iteration": i, "boosted": 0.9 * share,
         "suppressed": 0.9 * (1 - share), "stable": 0.1, "moved": 0.01}
        for (arm, sign), share in boosted.items()
        for i in (1, 2)
    ]  # fmt: skip


FLIPPED = {
    ("joint", "positive"): 0.52,
    ("joint", "negative"): 0.50,
    ("positive_only", "positive"): 0.70,
    ("positive_only", "negative"): 0.60,
}
ALL_RISE = {
    ("joint", "positive"): 0.90,
    ("joint", "negative"): 0.85,
    ("positive_only", "positive"): 0.95,
    ("positive_only", "negative"): 0.90,
}
FOLLOWS = {**FLIPPED, ("joint", "positive"): 0.90, ("joint", "negative"): 0.10}


def verdicts(found: Finding) -> list[str]:
    """On boosted tokens of negative rollouts, and on suppressed ones of positive rollouts."""
    assert [claim.claim for claim in found.claims] == [
        measure.BOOSTED_CLAIM,
        measure.SUPPRESSED_CLAIM,
    ]
    return [claim.verdict for claim in found.claims]


def test_flipping_is_found() -> None:
    found = measure.judge(step_records(FLIPPED) + run_records(FLIPPED))
    assert found.verdict == "replicated"
    numbers = {n.name: n.value for n in found.numbers}
    assert numbers["flipped, of all moved tokens"] == pytest.approx(0.49, abs=0.02)
    assert numbers["boosted, positive minus negative rollouts"] == pytest.approx(0.018, abs=0.02)
    assert numbers["flipped, positive rollouts, positive-only"] == pytest.approx(0.3, abs=0.02)
    assert numbers["flipped, negative rollouts, joint"] == pytest.approx(0.5, abs=0.02)
    assert verdicts(found) == ["replicated", "replicated"]


def test_each_claim_has_its_own_verdict() -> None:
    """Nearly all that moves rises: negative rollouts are flipped, positive ones are not."""
    found = measure.judge(step_records(ALL_RISE) + run_records(FLIPPED))
    assert verdicts(found) == ["replicated", "not replicated"]
    assert found.verdict == "not replicated"


def test_the_runs_contradict_one_claim_alone() -> None:
    flips_more = {**FLIPPED, ("positive_only", "positive"): 0.4}
    found = measure.judge(step_records(FLIPPED) + run_records(flips_more))
    assert verdicts(found) == ["replicated", "inconclusive"]
    assert found.verdict == "inconclusive"


def test_tokens_that_follow_their_advantage_refute_it() -> None:
    found = measure.judge(step_records(FOLLOWS) + run_records(FLIPPED))
    assert found.verdict == "not replicated"


def test_a_run_that_contradicts_leaves_it_open() -> None:
    found = measure.judge(step_records(FLIPPED) + run_records(FOLLOWS))
    assert found.verdict == "inconclusive"


def test_shares_by_hand() -> None:
    records = [
        {"panel": "step", "optimizer": "sgd", "arm": "joint", "prompt": p, "sign": sign,
         "tokens": 10, "boosted": up, "suppressed": down, "moved": 1.0}
        for p, sign, up, down in ((0, "positive", 6, 2), (1, "positive", 4, 4),
                                  (0, "negative", 5, 3), (1, "negative", 1, 7))
    ]  # fmt: skip
    moved = MovementCounts(records, "sgd", "joint")
    once = np.ones(4)
    assert moved.share("boosted", "positive", once) == pytest.approx(10 / 20)
    assert moved.difference(once) == pytest.approx(10 / 20 - 6 / 20)
    assert moved.flip_share(once, ("positive",)) == pytest.approx(6 / 16)
    assert moved.flip_share(once) == pytest.approx((6 + 6) / 32)
    assert moved.flip_share(np.array([2.0, 0, 2, 0])) == pytest.approx((2 + 5) / 16)


def test_runs_of_ones_own_need_metrics_alone(tmp_path: Path) -> None:
    """No model is loaded and nothing is trained; iterations without an update are passed over."""
    for arm in ("joint", "positive_only"):
        folder = tmp_path / "runs" / arm
        folder.mkdir(parents=True)
        lines = []
        for i, up in ((1, 0.5), (2, None), (3, 0.6)):
            line = {"schema": 1, "iteration": i}
            for sign in SIGNS:
                known = up is not None and (arm == "joint" or sign == "positive")
                line |= {f"boosted_{sign}": up if known else None}
                line |= {f"suppressed_{sign}": 0.9 - up if known else None}
                line |= {f"stable_{sign}": 0.1 if known else None}
                line |= {f"moved_{sign}": 0.02 if known else None}
            lines.append(json.dumps(line) + "\n")
        (folder / "metrics.jsonl").write_text("".join(lines))
    unused = Lab("embedded", "quick", tmp_path, sizes=measure.STUDY.budgets["quick"])
    records = measure._runs(unused)
    assert [(r["arm"], r["sign"], r["iteration"]) for r in records] == [
        ("joint", "positive", 1), ("joint", "negative", 1),
        ("joint", "positive", 3), ("joint", "negative", 3),
        ("positive_only", "positive", 1), ("positive_only", "positive", 3),
    ]  # fmt: skip
    means = run_means(records)
    assert means["positive"] == pytest.approx((4 / 9 + 3 / 9) / 2)
    assert means["flipped"] == pytest.approx(0.5)
    assert means["difference"] == pytest.approx(0)


def test_an_iteration_where_nothing_moved_is_passed_over() -> None:
    records = run_records(FLIPPED)
    still = [{**r, "boosted": 0.0, "suppressed": 0.0, "stable": 1.0} for r in records]
    means, before = run_means(records + still), run_means(records)
    for key in ("flipped", "positive", "positive-only"):
        assert means[key] == pytest.approx(before[key])


def test_a_run_without_monitor_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "success": 0.5}) + "\n")
    assert measure.read_monitor_records(tmp_path) == []


def test_figures() -> None:
    figures = measure.draw(step_records(FLIPPED) + run_records(FLIPPED))
    assert len(figures) == 5
    assert len(measure.draw(step_records(FLIPPED))) == 1


@pytest.mark.slow
def test_single_updates_of_a_small_model(tmp_path: Path) -> None:
    small = random_lab(tmp_path, batches=1)
    records = measure._steps(small)
    tokens = sum(row.num_tokens for row in small.rows(6))
    for optimizer in OPTIMIZERS:
        for arm in ("joint", "positive_only"):
            mine = [r for r in records if (r["optimizer"], r["arm"]) == (optimizer, arm)]
            assert sum(r["tokens"] for r in mine) == tokens
            assert all(r["boosted"] + r["suppressed"] <= r["tokens"] for r in mine)
            assert sum(r["boosted"] for r in mine) > 0


@pytest.mark.slow
def test_the_clip_of_gradients_scales_sgd_steps_and_not_those_of_adamw(
    tmp_path: Path,
) -> None:
    """Updates of other sizes would not be comparable: an SGD step that is clipped is one."""
    small = lab(tmp_path)
    rows = small.rows(6)
    before = take_snapshot(small.policy, rows).logprobs
    for optimizer, lr in small.learning_rates.items():
        for trained_rows in (rows, without_negative_advantages(rows)):
            moved = {}
            for max_grad_norm in (0.01, 0.0):
                with small.unchanged():
                    changes = {"optimizer": optimizer, "lr": lr, "max_grad_norm": max_grad_norm}
                    grad_norm = small.update(trained_rows, **changes).grad_norm
                    after = take_snapshot(small.policy, rows).logprobs
                moved[max_grad_norm] = (after - before).abs().mean().item()
            assert 0.02 < grad_norm < small.config.update.max_grad_norm
            share = moved[0.01] / moved[0.0]
            expected = 1.0 if optimizer == "adamw" else 0.01 / grad_norm
            assert share == pytest.approx(expected, abs=0.05)


def test_the_full_batch_is_both_signs_together() -> None:
    """The third column of Fig. 9."""
    records = [
        {"panel": "step", "optimizer": "adamw", "arm": "joint", "prompt": "0:0", "sign": sign,
         "tokens": tokens, "boosted": boosted, "suppressed": 1, "moved": 0.1}
        for sign, tokens, boosted in (("positive", 10, 6), ("negative", 30, 2))
    ]  # fmt: skip
    counts = MovementCounts(records, "adamw", "joint")
    assert counts.share("boosted", FULL_BATCH, np.ones(2)) == 8 / 40
    assert counts.share("boosted", "positive", np.ones(2)) == 6 / 10
