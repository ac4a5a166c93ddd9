"""The DFPO study: verdicts on made-up chains, its measures by hand, and one small real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import lab

from counterpoise.lab.studies.dfpo import measure as dfpo
from counterpoise.lab.studies.dfpo.judge import (
    CLAIMS,
    CONDITIONS,
    chain_values,
    contrast,
    judge,
    steps_to_score,
)
from counterpoise.lab.studies.records import read_records
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record
from counterpoise.types import Rollout, Row, StepResult

ROOT = Path(__file__).parents[4]


def chains(gain: dict[str, float], seeds: int = 4) -> list[Record]:
    """Chains in which the repaired arms are better by `gain` in success, lower in the rest."""
    records: list[Record] = []
    for seed in range(seeds):
        for cell, rate in CONDITIONS:
            for arm in dfpo.ARMS:
                better = gain[rate] if arm in ("t1", "t2") else 0.0
                noise = 0.001 * ((3 * seed + len(arm)) % 5)
                identity = {"arm": arm, "cell": cell, "rate": rate, "seed": seed}
                level = 0.5 - better + noise
                records.append(
                    {
                        "panel": "iteration", "iteration": 1, **identity,
                        "residual": level, "tax": level, "drift": level,
                    }
                )  # fmt: skip
                for iteration, success in ((0, 0.4), (3, 0.41), (6, 0.4 + better + noise)):
                    records.append(
                        {
                            "panel": "score", "iteration": iteration, **identity,
                            "success": success, "entropy": success,
                        }
                    )  # fmt: skip
    return records


@pytest.mark.parametrize(
    ("stable", "collapsing", "verdict"),
    [
        (0.1, 0.2, "replicated"),
        (0.1, 0.0, "inconclusive"),  # at one of the two rates only
        (0.1, -0.1, "not replicated"),
    ],
)
def test_both_rates_decide(stable: float, collapsing: float, verdict: str) -> None:
    finding = judge(chains({"stable": stable, "collapsing": collapsing}))
    verdicts = {claim.claim: claim.verdict for claim in finding.claims}
    assert verdicts[CLAIMS["success"][0]] == verdict
    assert verdicts[CLAIMS["tax"][0]] == verdict
    assert verdicts[CLAIMS["entropy"][0]] == verdict
    numbers = {number.name: number for number in finding.numbers}
    shown = numbers["success, repaired minus broken, stale, stable"]
    assert shown.value == pytest.approx(stable, abs=0.003)
    assert shown.low < shown.value < shown.high


def test_a_condition_without_runs_decides_nothing() -> None:
    fresh_only = [
        record for record in chains({"stable": 0.1, "collapsing": 0.1}) if record["cell"] == "fresh"
    ]
    assert judge(fresh_only).verdict == "inconclusive"
    assert contrast(chain_values(fresh_only)["tax"], "stale", "stable") is None


def test_steps_to_score() -> None:
    def chain(*scores: tuple[int, float]) -> list[Record]:
        return [{"panel": "score", "iteration": k, "success": value} for k, value in scores]

    assert steps_to_score(chain((0, 0.40), (3, 0.46), (6, 0.5))) == 3
    assert steps_to_score(chain((6, 0.46), (0, 0.40), (3, 0.44))) == 6
    assert steps_to_score(chain((0, 0.40), (3, 0.44), (6, 0.44))) == 9


def row(index: int, advantage: float, tokens: list[int]) -> Row:
    ids = np.array(tokens, dtype=np.int32)
    content = Rollout("p", "", "", "", 0.0, ids[:1], ids, np.zeros(len(ids), np.float32))
    return Row("p", advantage, len(ids), index=index, rollout=content)


def step_result(pulls: list[list[float]]) -> StepResult:
    arrays = [np.array(values, dtype=np.float32) for values in pulls]
    return StepResult(
        rows=tuple(range(len(pulls))), logprobs=arrays, old_logprobs=arrays, advantages=arrays,
        entropies=arrays, pulls=arrays, coefficients=np.ones(len(pulls), np.float32), loss=0.0,
        grad_norm=1.0, clipped_share=0.25, tokens=5,
    )  # fmt: skip


def test_residual_on_the_prefix_that_all_share() -> None:
    rows = [row(0, 1.0, [7, 8, 9]), row(1, -1.0, [7, 8, 3]), row(2, 0.5, [7, 2])]
    # All share the 7: pulls 1 - 0.5 + 0.25 of 1.75; two share the 8: 1 - 0.5 of 1.5.
    found = dfpo.residuals([rows], [step_result([[1, 1, 1], [-0.5, -0.5, 1], [0.25, 1]])])
    assert found["residual"] == pytest.approx(0.75 / 1.75)
    assert found["residual_all"] == pytest.approx((0.75 + 0.5) / (1.75 + 1.5))
    assert found["clipped"] == 0.25
    assert dfpo.common_prefix([np.array([1]), np.array([2])]) == 0


def test_the_stored_records_are_judged_as_the_page_says() -> None:
    stored = read_records(ROOT / "docs" / "data" / "embedded-dfpo.parquet")
    assert stored is not None
    finding = judge(stored[0])
    verdicts = {claim.claim: claim.verdict for claim in finding.claims}
    assert verdicts.pop(CLAIMS["success"][0]) == "not replicated"
    assert set(verdicts.values()) == {"inconclusive"}
    page = (ROOT / "docs" / "results" / "credit.md").read_text(encoding="utf-8")
    assert "-38.0 points [-63.3, -12.7]" in finding.because
    assert "38.0 points [-63.3, -12.7] below GRPO and GSPO" in page
    assert "stable rate: +5.5 points (one seed)" in finding.because
    ends = {
        key: value
        for key, value in chain_values(stored[0])["success"].items()
        if key[2] == "collapsing"
    }
    repaired = [value for key, value in ends.items() if key[0] in ("t1", "t2")]
    broken = [value for key, value in ends.items() if key[0] in ("grpo", "gspo")]
    assert (len(repaired), len(broken)) == (6, 6)
    assert (round(max(repaired), 2), min(repaired)) == (0.06, 0.0)
    assert (round(min(broken), 2), round(max(broken), 2)) == (0.33, 0.52)


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    sizes = {
        "seeds": 1, "prompts": 6, "iterations": 1, "arms": ["grpo", "t2"],
        "collapse": 3.0, "heldout": 2, "samples": 1, "scored": [1], "minutes": 0,
    }  # fmt: skip
    small = lab(tmp_path, **sizes)
    # Half of a study's rollouts: eight chains are trained on them.
    halved = replace(small.config.sample, group_size=4, max_new_tokens=40)
    small.__dict__["config"] = replace(small.config, sample=halved)
    weights = small.policy.decoder.unembedding.detach().clone()
    records = list(dfpo.measure(small))
    assert (small.policy.decoder.unembedding == weights).all()
    iterations = [record for record in records if record["panel"] == "iteration"]
    by_arm = {
        arm: [record for record in iterations if record["arm"] == arm] for arm in sizes["arms"]
    }
    # What the repair is for: nothing is left on what a whole group shares.
    assert all(not record["residual"] > 1e-5 for record in by_arm["t2"])
    # Rollouts of the starting policy: the first stale iteration is that of the fresh cell.
    first = {
        record["cell"]: record["plain_tax"]
        for record in by_arm["grpo"]
        if record["iteration"] == 1 and record["rate"] == "stable"
    }
    assert first["stale"] == pytest.approx(first["fresh"], rel=1e-6)
    assert judge(records).because
    for figure in dfpo.draw(records):
        assert vega_specification(figure)["layer"]
