"""The DFPO study: verdicts on made-up chains, its measures by hand, and one small real run."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lab.studies.token_values import random_lab
from page_numbers import page_text, table_rows

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.dfpo import measure as dfpo
from counterpoise.lab.studies.dfpo.judge import (
    BROKEN,
    CLAIMS,
    CONDITIONS,
    REPAIRED,
    chain_values,
    contrast,
    judge,
    steps_to_score,
)
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.records import read_records
from counterpoise.lab.studies.run import is_measured, study_settings
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


DATA = ROOT / "docs" / "data"
STORED = DATA / "embedded-dfpo.parquet"
REPEATED = DATA / "embedded-dfpo-cpu.parquet"  # chains of the GPU, run again on a CPU
PAGE = page_text("credit.md")
TEXT = " ".join(PAGE.split())
ROWS = {  # row of the page -> measure, and what the page shows of it
    "success, points": ("success", 100, "{:+.1f}"),
    "residual": ("residual", 1, "{:+.2f}"),
    "drift, relative": ("drift", 1, "{:+.2f}"),
    "tax, relative": ("tax", 1, "{:+.2f}"),
    "entropy": ("entropy", 1, "{:+.2f}"),
    "iterations to score": ("steps", 1, "{:+.1f}"),
}
COLUMNS = [(cell, rate) for cell in ("stale", "fresh") for rate in ("stable", "collapsing")]


def chain_of(record: Record) -> tuple[str, str, str, int]:
    return record["arm"], record["cell"], record["rate"], record["seed"]


@pytest.fixture(scope="module")
def stored() -> list[Record]:
    records = read_records(STORED)
    assert records is not None
    return records[0]


def test_the_stored_records_are_complete(stored: list[Record], tmp_path: Path) -> None:
    lab_of_page = Lab("embedded", "full", tmp_path)
    sizes = study_settings(dfpo.STUDY, lab_of_page)["sizes"]
    expected = {
        (arm, cell, rate, seed)
        for arm in sizes["arms"]
        for cell, rate in CONDITIONS
        for seed in range(sizes["seeds"])
    }
    scores = Counter(chain_of(record) for record in stored if record["panel"] == "score")
    assert scores == dict.fromkeys(expected, 1 + len(sizes["scored"]))
    rows = [(*chain_of(record), record["panel"], record["iteration"]) for record in stored]
    assert len(rows) == len(set(rows))
    # Only a collapsed policy on fresh rollouts may leave an iteration untrained.
    iterations = Counter(chain_of(record) for record in stored if record["panel"] == "iteration")
    shorter = [chain for chain in expected if iterations[chain] < sizes["iterations"]]
    assert {chain[1:3] for chain in shorter} == {("fresh", "collapsing")}
    assert f"{len(shorter)} fresh chains at 3e-4 trained" in TEXT
    devices = {chain_of(record): record["device"] for record in stored}
    on_device = Counter(devices.values())
    assert f"the {len(expected)} stored chains" in PAGE
    assert f"{on_device['cpu']} chains ran on one CPU core" in TEXT
    assert f"the other {on_device['cuda']} on the H200" in TEXT
    for rate, count in (("stable", 32), ("collapsing", 27)):
        on_cpu = [key for key, device in devices.items() if device == "cpu" and key[2] == rate]
        deciding = [key for key in on_cpu if key[0] in (*REPAIRED, *BROKEN)]
        assert {key[1] for key in on_cpu} == {"stale"}
        assert len(deciding) == count
    assert "all that decide at 1e-4 and 27 of 32 at 3e-4" in TEXT
    # The command of the page finds them measured, and so measures nothing.
    shutil.copy(STORED, tmp_path / "dfpo.parquet")
    assert is_measured(dfpo.STUDY, lab_of_page)


def test_the_stored_records_are_judged_as_the_page_says(stored: list[Record]) -> None:
    finding, values = judge(stored), chain_values(stored)
    verdicts = {claim.claim: claim.verdict for claim in finding.claims}
    heading = "|measure|stale, 1e-4|stale, 3e-4|fresh, 1e-4|fresh, 3e-4|"
    rows = {name: cells for name, *cells in table_rows(PAGE, heading)}
    assert list(rows) == list(ROWS)
    for row_name, (measure_name, unit, style) in ROWS.items():
        *cells, verdict = rows[row_name]
        assert verdict == verdicts[CLAIMS[measure_name][0]]
        for cell, condition in zip(cells, COLUMNS, strict=True):
            mean = contrast(values[measure_name], *condition)
            assert mean is not None
            assert mean.n == 8
            low, high = (style.format(unit * bound) for bound in (mean.low, mean.high))
            shown = f"{style.format(unit * mean.value)} [{low}, {high}]"
            assert cell == re.sub(r"(?<=[+-])0(?=\.\d\d)", "", shown)
    assert f"The verdict is *{finding.verdict}*" in TEXT
    papers = (ROOT / "docs" / "papers.toml").read_text(encoding="utf-8")
    assert f"claim: better in the end | poise study dfpo | {finding.verdict}, 8 seeds" in papers
    assert "poise study dfpo | less drift if stale; rest undecided" in papers
    assert "with the same verdict on every claim" in TEXT
    earlier = judge([record for record in stored if record["device"] == "cpu"])
    assert earlier.claims == finding.claims


def test_the_text_below_the_table(stored: list[Record]) -> None:
    values = chain_values(stored)

    def ends(*arms: str) -> list[float]:
        stale = ("stale", "collapsing")
        return [
            100 * x for key, x in values["success"].items() if key[0] in arms and key[1:3] == stale
        ]

    repaired, broken = ends("t1", "t2"), ends("grpo", "gspo")
    assert len(repaired) == len(broken) == 16
    assert f"end at {min(repaired):.0f} to {max(repaired):.0f} %" in PAGE
    assert f"GRPO and GSPO at {min(broken):.0f} to {max(broken):.0f} %" in PAGE
    starts = [100 * r["success"] for r in stored if (r["panel"], r["iteration"]) == ("score", 0)]
    assert f"({min(starts):.0f} to {max(starts):.0f} % before)" in TEXT
    means = [np.mean(ends(arm)) for arm in ("t1", "t2", "reinforce", "unclipped")]
    assert (
        "reach {:.1f} and {:.1f} %, `reinforce` {:.1f} %, `unclipped` {:.1f} %".format(*means)
        in TEXT
    )
    residuals = {
        arm: [
            np.mean([x for key, x in values["residual"].items() if key[:3] == (arm, *condition)])
            for condition in COLUMNS
        ]
        for arm in ("grpo", "gspo")
    }
    assert "GSPO's, " + ", ".join(f"{x:.2f}"[1:] for x in residuals["gspo"]) in PAGE
    assert max(residuals["grpo"]) < 0.005


def test_what_fresh_rollouts_show(stored: list[Record]) -> None:
    values = chain_values(stored)
    shown = {
        (name, rate)
        for name in CLAIMS
        for rate in ("stable", "collapsing")
        if (mean := contrast(values[name], "fresh", rate)) and (mean.low > 0 or mean.high < 0)
    }
    residual = {("residual", "stable"), ("residual", "collapsing")}
    assert shown == {*residual, ("success", "collapsing")}
    assert "only the residual is shown to be lower, and success at 3e-4" in TEXT


def test_chains_of_cpu_and_gpu_agree(stored: list[Record]) -> None:
    # The first iteration of a fresh chain trains on the rollouts that the stale chain has too.
    first = {
        chain_of(record): record
        for record in stored
        if (record["panel"], record["iteration"]) == ("iteration", 1)
    }
    differences = []
    for (arm, cell, rate, seed), record in first.items():
        other = first[arm, "fresh", rate, seed]
        if record["device"] == "cpu":
            assert (cell, other["device"]) == ("stale", "cuda")
            differences += [
                abs(record[name] / other[name] - 1)
                for name in ("tax", "drift", "moved", "shared")
                if math.isfinite(record[name])
            ]
    assert max(differences) < 5e-5
    repeated, _ = read_records(REPEATED) or ([], 0)
    by_row = {(*chain_of(r), r["panel"], r["iteration"]): r for r in stored}
    for record in repeated:
        other = by_row[(*chain_of(record), record["panel"], record["iteration"])]
        assert (record["device"], other["device"]) == ("cpu", "cuda")
        if record["panel"] == "score":
            assert record["success"] == other["success"]
        else:
            assert record["moved"] == pytest.approx(other["moved"], rel=1e-3)
    assert len({chain_of(record) for record in repeated}) == 5


def test_a_score_after_the_last_iteration_is_refused(tmp_path: Path) -> None:
    """Every chain would have the score of its start, reached after 0 iterations."""
    with pytest.raises(PoiseError, match="iteration 6 is scored, and a chain has only 2"):
        dfpo.measure(random_lab(tmp_path, **{**dfpo.SIZES, "seeds": 1, "iterations": 2}))


@pytest.mark.slow
def test_a_small_run(tmp_path: Path) -> None:
    sizes = {
        "seeds": 1, "prompts": 6, "iterations": 1, "arms": ["grpo", "t2"],
        "collapse": 3.0, "heldout": 2, "samples": 1, "scored": [1], "minutes": 0,
    }  # fmt: skip
    small = random_lab(tmp_path, **sizes)
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
    assert any(math.isfinite(record["residual"]) for record in by_arm["t2"])
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
