"""Numbers of docs/results/credit.md are recomputed from the records in docs/data/."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from page_numbers import DATA, ROOT, is_among, page_text, printed_intervals, section, table_rows

from counterpoise.lab.studies.credit.arms import EXPLICIT_KINDS
from counterpoise.lab.studies.credit.iteration_cost import SUM_NAMES
from counterpoise.lab.studies.credit.judge import verdict_from_gains
from counterpoise.lab.studies.credit.training import TrainingResult, training_results
from counterpoise.lab.studies.credit.value_correlation import (
    ArmCorrelations,
    ComparedTokens,
    correlate_arms,
)
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Record
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.statistics.student import bonferroni_level

pytestmark = pytest.mark.slow  # tens of thousands of resamples of 35 and 26 arms: 20 s

PAGE = page_text("credit.md")
MODELS = ("embedded", "smollm2")
NO_SLIPS = "no-slips-1.3M"
VALUES_HEADING = "|method|A w, embedded|more than A|A w, SmolLM2, older defaults|more than A|"
NAMED_ARMS = {  # as the page writes them
    "`shear`, width=16, stride=4": "shear_16",
    "`cancellation`, strength=1": "cancellation_1",
    "`cancellation`, scope=batch": "cancellation_batch",
    "`grail`, which=both": "grail_both",
    "`grail`, released_indexing": "grail_released",
}
# Names in the records of 15 and 16 November, when defaults were others.
OLDER_ARMS = {
    **NAMED_ARMS,
    "`shear`, width=100, stride=25": "shear",
    "`oar_g`, draws=1": "oar_g",
    "`oar_p_approximate`": "oar_p",
}
CHANGED_SINCE = ("`shear`", "`oar_g`", "`oar_p`")
ARMS_OF = {"embedded": NAMED_ARMS, "smollm2": OLDER_ARMS}


def arm_of(cell: str, model: str) -> str | None:
    """The arm of a row in the records of a model; None if the model has no such row."""
    if model == "smollm2" and cell in CHANGED_SINCE:
        return None
    arm = ARMS_OF[model].get(cell, cell.strip("`"))
    return arm if arm in correlations(model) else None


@cache
def records_of(model: str) -> list[Record]:
    return list(pq.read_table(DATA / f"credit-{model}.parquet").to_pylist())


def token_column(name: str, arm: str, column: str) -> NDArray[Any]:
    return np.array(
        [r[column] for r in records_of(name) if r["panel"] == "token" and r["arm"] == arm]
    )


@cache
def compared_tokens(model: str) -> ComparedTokens:
    return ComparedTokens(records_of(model))


@cache
def correlations(model: str) -> dict[str, ArmCorrelations]:
    return {r.arm: r for r in correlate_arms(records_of(model), compared_tokens(model))}


@cache
def trained() -> dict[str, TrainingResult]:
    return {result.arm: result for result in training_results(records_of("training"))}


def check(cell: str, interval: tuple[float, float, float] | None) -> None:
    """A cell such as ".44 [.38, .48]", or "-" for nothing."""
    if interval is None:
        assert cell in ("", "-"), cell
        return
    (printed,) = printed_intervals(cell.strip("*"))
    assert is_among(printed, [interval]), (cell, interval)


def check_row(name: str, cells: list[str], *fields: str) -> None:
    """The cells of both models, `fields` of each; a row that a model does not have is empty."""
    for index, model in enumerate(MODELS):
        mine = cells[len(fields) * index : len(fields) * (index + 1)]
        arm = arm_of(name, model)
        for cell, field in zip(mine, fields, strict=True):
            if arm is None:
                assert cell == "", (name, model)
            else:
                check(cell, getattr(correlations(model)[arm], field))


def test_what_was_measured() -> None:
    compared = [compared_tokens(model) for model in MODELS]
    prompts, tokens, moving = (
        " and ".join(str(count) for count in counts)
        for counts in (
            [len(set(c.prompts)) for c in compared],
            [len(c.prompts) for c in compared],
            [c.subsets["moving"].sum() for c in compared],
        )
    )
    assert f"{prompts} have signal" in PAGE
    assert f"{tokens} tokens. The table" in PAGE
    assert f"({moving} tokens)" in PAGE
    assert {f"{c.ceiling:.2f}" for c in compared} == {"0.95"}


def test_the_values_table() -> None:
    rows = [row for row in table_rows(PAGE, VALUES_HEADING) if row[0].startswith("`")]
    for name, *cells in rows:
        check_row(name, cells, "credit", "gain")
    for model, gain_cell in zip(MODELS, (2, 4), strict=True):
        results = correlations(model)
        gains = {arm: row[gain_cell] for row in rows if (arm := arm_of(row[0], model))}
        explicit = {arm for arm, result in results.items() if result.credit}
        assert explicit - gains.keys() == {"dr_grpo", "maxrl"} & explicit
        for arm, cell in gains.items():
            gain = results[arm].gain
            assert cell.startswith("**") == (gain is not None and gain[1] > 0), (arm, cell)


def test_methods_that_rank_tokens_alike() -> None:
    results = correlations("embedded")
    for arm, other in (("maxrl", "positive_only"), ("dr_grpo", "uniform")):
        assert results[arm].credit == results[other].credit
    credit = {arm: token_column("embedded", arm, "credit") for arm in ("oar_p", "oar_g")}
    compared = compared_tokens("embedded")
    draws = compared.draw_correlations("all", credit)
    (printed,) = printed_intervals(section(PAGE, "`oar_p` less `oar_g`", "\n\n"))
    difference = compared.interval(draws["oar_p"] - draws["oar_g"], "all")
    assert difference is not None
    assert is_among(printed, [difference])


def test_tokens_and_values_are_those_of_the_older_measurement() -> None:
    for column in ("prompt", "rollout", "position", "p", "weight", "value"):
        older, today = (token_column(name, "uniform", column) for name in ("training", "embedded"))
        assert (older == today).all(), column


def test_the_trivial_baselines_beat_every_method() -> None:
    rows = [row for row in table_rows(PAGE, VALUES_HEADING) if row[0].startswith("*")]
    assert len(rows) == 2
    for index, model in enumerate(MODELS):
        tokens = [r for r in records_of(model) if r["panel"] == "token" and r["arm"] == "uniform"]
        p, A = (np.array([r[name] for r in tokens]) for name in ("p", "credit"))
        right = np.array([r["sign"] == "positive" for r in tokens])
        compared = compared_tokens(model)
        trivial = [
            compared.interval(draws_D, "all")
            for draws_D in compared.draw_correlations(
                "all", {"p": p, "signed p": A * np.where(right, p, 1 - p)}
            ).values()
        ]
        for row, interval in zip(rows, trivial, strict=True):
            assert interval is not None
            check(row[1 + 2 * index], interval)
        best = max(r.credit[0] for r in correlations(model).values() if r.credit)
        assert best < min(interval[0] for interval in trivial if interval)
        assert f"{best:.2f}".lstrip("0") == (".44", ".49")[index]


def test_how_many_weightings_gain() -> None:
    for model, counts in (("embedded", (14, 8, 1)), ("smollm2", (10, 6, 0))):
        gains = counted_gains(model)
        better = sum(low > 0 for _, low, _ in gains.values())
        worse = [arm for arm, (_, _, high) in gains.items() if high < 0]
        assert (len(gains), better, len(worse)) == counts
        assert verdict_from_gains(list(gains.values())) == "replicated"
        assert f"{better} of {len(gains)}" in PAGE
        assert worse in ([], ["rsi_s"])
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "8 of 14 weightings on the embedded model and 6 of 10 on SmolLM2 rank tokens" in readme
    both = [arm for arm, gain in counted_gains("embedded").items() if gain[1] > 0]
    both = [arm for arm in both if counted_gains("smollm2").get(arm, (0, 0, 0))[1] > 0]
    assert sorted(both) == ["cancellation", "grail", "gtpo", "oar_g", "thr"]


def test_the_model_without_planted_mistakes() -> None:
    model = NO_SLIPS
    results, compared = correlations(model), compared_tokens(model)
    part = section(PAGE, "## Without planted mistakes", "## What one iteration does")
    rows = list(table_rows(part, "|method|A w|more than A|"))
    for name, credit, gain in rows:
        if name.startswith("`"):
            result = results[NAMED_ARMS.get(name, name.strip("`"))]
            check(credit, result.credit)
            check(gain, result.gain)
            assert gain.startswith("**") == (result.gain is not None and result.gain[1] > 0)
    tokens = [r for r in records_of(model) if r["panel"] == "token" and r["arm"] == "uniform"]
    p, A = (np.array([r[name] for r in tokens]) for name in ("p", "credit"))
    right = np.array([r["sign"] == "positive" for r in tokens])
    by_arm = {arm: token_column(model, arm, "credit") for arm in ("cancellation", "cancellation_1")}
    draws = compared.draw_correlations(
        "all", {"p": p, "signed p": A * np.where(right, p, 1 - p), **by_arm}
    )
    for row, name in zip(rows, ("p", "signed p"), strict=False):
        check(row[1], compared.interval(draws[name], "all"))
    printed = printed_intervals(part.partition("**Verdict**")[2])
    for interval, arm in zip(printed, by_arm, strict=True):
        difference = compared.interval(draws[arm] - draws["p"], "all")
        assert difference is not None
        assert is_among(interval, [difference])
    gains = counted_gains(model)
    better = sorted(arm for arm, (_, low, _) in gains.items() if low > 0)
    assert (len(gains), better) == (14, ["cancellation", "nthr", "thr"])
    assert [arm for arm, (_, _, high) in gains.items() if high < 0] == ["rsi_s"]
    assert verdict_from_gains(list(gains.values())) == "inconclusive"
    assert f"{len(compared.prompts)} tokens of {len(set(compared.prompts))} prompts" in part
    assert f"{compared.ceiling:.2f}".lstrip("0") in part


def counted_gains(model: str) -> dict[str, Interval]:
    results = correlations(model)
    return {arm: r.gain for arm, r in results.items() if r.counts_for_verdict and r.gain}


def test_the_verdict_with_the_older_width_of_shear() -> None:
    gains = counted_gains("embedded")
    explicit = [r for r in correlations("embedded").values() if r.gain]
    level = bonferroni_level(0.95, len(explicit))
    compared = compared_tokens("embedded")
    draws = compared.draw_correlations(
        "all",
        {
            "A": token_column("embedded", "uniform", "credit"),
            "older": token_column("training", "shear", "credit"),
        },
        level,
    )
    older = compared.interval(draws["older"] - draws["A"], "all", level)
    assert older is not None
    counted = [*(gain for arm, gain in gains.items() if arm != "shear"), older]
    assert sum(low > 0 for _, low, _ in counted) == 7
    assert "7 of 14 gain" in " ".join(PAGE.split())
    assert verdict_from_gains(counted) == "replicated"


def test_right_and_wrong_rollouts() -> None:
    rows = list(table_rows(PAGE, "|method|w, right, embedded"))
    assert len(rows) >= 9
    for name, *cells in rows:
        check_row(name, cells, "right", "wrong")


def test_movement() -> None:
    rows = list(table_rows(PAGE, "|method|movement, embedded"))
    assert len(rows) >= 9
    for name, *cells in rows:
        check_row(name, cells, "moved")
    for model in MODELS:
        listed = {arm_of(name, model) for name, *_ in rows}
        baseline = correlations(model)["uniform"].moved
        assert baseline is not None
        for arm, result in correlations(model).items():
            if arm not in listed and result.moved:
                assert abs(result.moved[0] - baseline[0]) < 0.045, (arm, result.moved)
            assert arm == "uniform" or result.lift is None or result.lift[1] <= 0, arm


def test_differences_of_the_movement_text() -> None:
    text = section(PAGE, "- No method is shown to move", "## Which trains better?")
    known = [
        interval
        for model in MODELS
        for result in correlations(model).values()
        for interval in (result.lift, result.hidden)
        if interval
    ]
    lowered = {
        (model, arm)
        for model in MODELS
        for arm, result in correlations(model).items()
        if result.lift and result.lift[2] < 0
    }
    assert lowered == {("embedded", "rsi_s"), ("smollm2", "cancellation_1")}
    printed = printed_intervals(text)
    assert len(printed) == 4
    for one in printed:
        assert is_among(one, known), one


def trained_arm(cell: str) -> str:
    return OLDER_ARMS.get(cell, cell.strip("`"))


def test_training() -> None:
    rows = list(table_rows(PAGE, "||success, %|"))
    results = trained()
    assert len(rows) == len(results) - 18
    for name, success, difference in rows:
        result = results[trained_arm(name)]
        mean = result.success
        check(success, tuple(100 * x for x in (mean.value, mean.low, mean.high)))
        other = result.by_rollouts
        check(difference, other and tuple(100 * x for x in (other.value, other.low, other.high)))
    unlisted = results.keys() - {trained_arm(name) for name, *_ in rows}
    differences = [results[arm].by_rollouts for arm in unlisted]
    assert max(abs(100 * d.value) for d in differences if d) < 0.75
    above = [arm for arm, r in results.items() if r.by_rollouts and r.by_rollouts.low > 0]
    below = [arm for arm, r in results.items() if r.by_rollouts and r.by_rollouts.high < 0]
    assert (above, below) == ([], ["grail"])


def test_success_against_what_was_measured_before() -> None:
    success = {arm: r.by_rollouts.value for arm, r in trained().items() if r.by_rollouts}
    measured = older_measures()

    def correlation(name: str) -> tuple[int, float]:
        pairs = [(measured[name][arm], success[arm]) for arm in success if arm in measured[name]]
        values, differences = (list(column) for column in zip(*pairs, strict=True))
        return len(pairs), float(
            rank_correlations(values, differences, np.ones((1, len(pairs))))[0]
        )

    assert correlation("gain") == (17, pytest.approx(-0.33, abs=0.006))
    assert correlation("moved") == (25, pytest.approx(0.54, abs=0.006))
    assert correlation("residual") == (25, pytest.approx(-0.52, abs=0.006))
    assert correlation("cancellation") == (25, pytest.approx(0.16, abs=0.006))


def older_measures() -> dict[str, dict[str, float]]:
    """Measure -> arm -> its value at the settings that were trained, without intervals."""
    costs = [record for record in records_of("training") if record["panel"] == "cost"]
    compared = ComparedTokens(records_of("training"))

    def correlate(column: str, subset: str, arms: list[str]) -> dict[str, float]:
        member_N = compared.subsets[subset]
        weight_1N = compared.weight_N[member_N][None]
        value_N = compared.value_N[member_N]
        columns = {arm: token_column("training", arm, column)[member_N] for arm in arms}
        return {
            arm: float(rank_correlations(x_N, value_N, weight_1N)[0])
            for arm, x_N in columns.items()
        }

    all_arms = [cost["arm"] for cost in costs]
    credit = correlate("credit", "all", [c["arm"] for c in costs if c["kind"] in EXPLICIT_KINDS])
    sums = {arm: Counter[str]() for arm in all_arms}
    for record in records_of("training"):
        if record["panel"] == "prompt":
            sums[record["arm"]].update({name: record[name] for name in SUM_NAMES})
    return {
        "gain": {arm: rho - credit["uniform"] for arm, rho in credit.items()},
        "moved": correlate("delta", "moving", all_arms),
        "residual": {arm: total["left"] / total["gross"] for arm, total in sums.items()},
        "cancellation": {arm: 1 - total["net"] / total["pushed"] for arm, total in sums.items()},
    }
