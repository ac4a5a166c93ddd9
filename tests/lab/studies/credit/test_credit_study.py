"""The credit study: its arms, what it measures, and what it concludes from made-up tokens."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from lab.experiments.made_up import run
from lab.studies import token_values as made

from counterpoise.config.load import load_config
from counterpoise.lab.studies.credit import measure
from counterpoise.lab.studies.credit import tokens as credit_tokens
from counterpoise.lab.studies.credit.arms import (
    BASELINE,
    COMMON_OPTIONS,
    CreditArm,
    credit_arms,
    distinct_advantages,
)
from counterpoise.lab.studies.credit.iteration_cost import prompt_sums, run_one_iteration
from counterpoise.lab.studies.credit.judge import MARGIN, judge, verdict_from_gains
from counterpoise.lab.studies.credit.training import (
    OUT_OF_TIME,
    measure_training,
    read_timed_run,
    training_results,
    untrained_notes,
)
from counterpoise.lab.studies.credit.value_correlation import ComparedTokens, correlate_arms
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.selection import parse_sizes
from counterpoise.microscope.monitor_records import monitor_metrics as monitor_numbers
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Record
from counterpoise.store.folder import RunFolder
from counterpoise.variants import STEP_RULES, TOKEN_WEIGHTS, TRAJECTORY_WEIGHTS

SIZES = {
    "iterated": 3, "steps": 2, "repeats": 1, "open": 2, "closed": 0, "every": list(credit_arms()),
}  # fmt: skip

# -- arms ------------------------------------------------------------------------------------------


def test_every_method_of_the_registries_is_an_arm() -> None:
    every = credit_arms()
    assert next(iter(every)) == BASELINE
    names = {*TOKEN_WEIGHTS, *STEP_RULES, *TRAJECTORY_WEIGHTS} - {"off", "aligned", "crpo"}
    assert names <= set(every)
    assert {"coupled", "dr_grpo", "positive_only", "w_reinforce"} <= set(every)


def test_an_advantage_that_is_another_times_a_number_is_left_out() -> None:
    """rloo is 8/7 of dr_grpo."""
    assert distinct_advantages()[0] == "grpo"
    assert "rloo" not in distinct_advantages()


@pytest.mark.parametrize("name", [name for name in credit_arms() if name != "serl"])
def test_the_options_of_an_arm_make_a_run(name: str) -> None:
    load_config("demo", list(credit_arms()[name].options))


def test_the_budgets_name_the_arms() -> None:
    for sizes in measure.STUDY.budgets.values():
        assert sizes["every"] == list(credit_arms())
        assert set(sizes["training"]["arms"]) <= set(credit_arms())
    full = measure.STUDY.budgets["full"]["training"]
    assert full["seeds"] >= 3
    assert full["arms"] == list(credit_arms())


def test_the_pages_command_measures_what_the_full_budget_does_and_trains_nothing() -> None:
    page = (Path(__file__).parents[4] / "docs" / "results" / "credit.md").read_text("utf-8")
    (line,) = [line for line in page.splitlines() if "# trains nothing" in line]
    budgets = measure.STUDY.budgets
    sizes = {**budgets["quick"], **parse_sizes(re.findall(r"--size (\S+)", line), budgets.values())}
    assert sizes["training"] == {"arms": []}
    for name in (*credit_tokens.SETTING_SIZES, "closed", "every"):
        assert sizes[name] == budgets["full"][name], name


# -- measuring -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[str], Path]:
    """Three arms, and one that is refused."""
    out = tmp_path_factory.mktemp("credit")
    lab, said = made.random_lab(out, **SIZES), []
    lab.progress = lambda doing, share: said.append(doing)
    with pytest.MonkeyPatch.context() as patch:
        few = {name: credit_arms()[name] for name in (BASELINE, "gtpo", "serl", "w_reinforce")}
        patch.setattr(credit_tokens, "credit_arms", lambda: few)
        return credit_tokens.measure_tokens(lab), said, out


def test_tokens_carry_the_credit_of_their_arm(measured: tuple[list[Record], ...]) -> None:
    by_arm: dict[str, list[Record]] = {}
    for r in measured[0]:
        if r["panel"] == "token":
            by_arm.setdefault(r["arm"], []).append(r)
    assert list(by_arm) == [BASELINE, "gtpo", "w_reinforce"]
    for mine in by_arm.values():
        assert [r["value"] for r in mine] == [r["value"] for r in by_arm[BASELINE]]
    assert {r["w"] for r in by_arm[BASELINE]} == {1.0}
    for plain, weighed in zip(by_arm[BASELINE], by_arm["gtpo"], strict=True):
        assert weighed["credit"] == pytest.approx(plain["credit"] * weighed["w"])
    for r in by_arm["w_reinforce"]:
        assert r["credit"] == (0.1 if r["sign"] == "positive" else -1.0)
    assert any(r["delta"] for r in by_arm["gtpo"])


def test_what_a_task_has_no_use_for_is_refused_by_reason(
    measured: tuple[list[Record], ...],
) -> None:
    (refused,) = [r for r in measured[0] if r["panel"] == "refused"]
    assert refused["arm"] == "serl"
    assert "environment" in refused["reason"]


def test_a_stopped_measurement_goes_on(
    measured: tuple[list[Record], list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, _, out = measured
    few = {
        name: credit_arms()[name] for name in (BASELINE, "gtpo", "serl", "w_reinforce", "reinforce")
    }
    monkeypatch.setattr(credit_tokens, "credit_arms", lambda: few)
    lab, said = made.random_lab(out, **SIZES), []
    lab.progress = lambda doing, share: said.append(doing)
    again = credit_tokens.measure_tokens(lab)
    assert [r["arm"] for r in again[: len(records)]] == [r["arm"] for r in records]
    assert {r["arm"] for r in again[len(records) :]} == {"reinforce"}
    assert said == ["credit and one iteration of reinforce"]
    monkeypatch.setattr(credit_tokens, "ArmMeasurer", None)  # all is known: no batch, no model
    known = credit_tokens.measure_tokens(made.random_lab(out, **SIZES))
    some = made.random_lab(out, **{**SIZES, "every": ["gtpo"]})
    assert {r["arm"] for r in credit_tokens.measure_tokens(some)} == {BASELINE, "gtpo"}
    assert [r["arm"] for r in known] == [r["arm"] for r in again]


def test_an_arm_that_fails_leaves_the_others_and_is_tried_again(
    measured: tuple[list[Record], list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, out = measured
    few = {name: credit_arms()[name] for name in (BASELINE, "gtpo", "thr", "reinforce")}
    monkeypatch.setattr(credit_tokens, "credit_arms", lambda: few)
    look = credit_tokens.ArmMeasurer.measure_arm

    def fails(glass: credit_tokens.ArmMeasurer, arm: CreditArm) -> list[Record]:
        if arm.name == "thr":
            raise RuntimeError("CUDA error: out of luck\nand more")
        return look(glass, arm)

    monkeypatch.setattr(credit_tokens.ArmMeasurer, "measure_arm", fails)
    found = credit_tokens.measure_tokens(made.random_lab(out, **SIZES))
    assert {"panel": "refused", "arm": "thr", "kind": "weights",
            "reason": "thr failed: CUDA error: out of luck"} in found  # fmt: skip
    assert "reinforce" in {r["arm"] for r in found}
    monkeypatch.setattr(credit_tokens.ArmMeasurer, "measure_arm", look)
    again = credit_tokens.measure_tokens(made.random_lab(out, **SIZES))
    assert {r["panel"] for r in again if r["arm"] == "thr"} == {"token", "prompt", "cost"}


@pytest.fixture(scope="module")
def glass(measured: tuple[list[Record], list[str], Path]) -> credit_tokens.ArmMeasurer:
    """The same batch; its values are known."""
    return credit_tokens.ArmMeasurer(made.random_lab(measured[2], **SIZES))


def test_sums_over_prompts_are_the_monitors_numbers(glass: credit_tokens.ArmMeasurer) -> None:
    arm = CreditArm("gtpo", "weights", (*COMMON_OPTIONS, "credit.weights=gtpo"))
    with glass.lab.unchanged():
        one = run_one_iteration(glass.lab, glass.groups, glass.configure(arm))
    sums, expected = prompt_sums(one), monitor_numbers(one.measurements)
    left, gross, net, pushed = (
        sum(r[name] for r in sums) for name in ("left", "gross", "net", "pushed")
    )
    assert left / gross == pytest.approx(expected["exchangeability"], rel=1e-6)
    assert 1 - net / pushed == pytest.approx(expected["cancellation"], rel=1e-6)
    assert one.seconds > 0


@pytest.mark.parametrize("name", ["min_replace", "orthogonal"])
def test_trajectory_weights_leave_nothing_of_a_whole_group(
    glass: credit_tokens.ArmMeasurer, name: str
) -> None:
    with glass.lab.unchanged():
        one = run_one_iteration(glass.lab, glass.groups, glass.configure(credit_arms()[name]))
    sums = prompt_sums(one)
    assert len(one.measurements) == 2
    assert sum(r["whole"] for r in sums) > 0
    assert sum(r["rest"] for r in sums) < 1e-6 * sum(r["whole"] for r in sums)


def test_other_models_are_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tokens(BASELINE, 0.0)
    monkeypatch.setattr(measure, "measure_tokens", lambda lab: found)
    full = measure.STUDY.budgets["full"]
    lab = Lab("shape:smollm2-135m", "full", tmp_path, sizes=full)
    assert measure.measure(lab) == found
    assert any("No arm was trained" in note for note in judge(found).notes)


# -- judging ---------------------------------------------------------------------------------------


def tokens(arm: str, weight: float, seed: int = 0, **more: object) -> list[Record]:
    """Right rollouts hold tokens of value +v, wrong ones of -v; w = 1 + weight |value|."""
    rng = np.random.default_rng(seed)
    found: list[Record] = []
    for p in range(24):
        for t in range(12):
            sign = "positive" if t % 2 else "negative"
            A = 1.0 if t % 2 else -1.0
            value = A * rng.uniform(0.0, 1.0)
            even, odd = value + rng.normal(scale=0.05, size=2)
            w = 1 + weight * abs(value)
            found.append(
                {
                    "panel": "token", "arm": arm, "kind": "weights", "prompt": f"1:{p}",
                    "rollout": 0, "position": t, "sign": sign, "weight": 1.0, "value": value,
                    "even": even, "odd": odd, "w": w, "credit": A * w, "delta": A * w, **more,
                }
            )  # fmt: skip
    found += [
        {"panel": "prompt", "arm": arm, "prompt": f"1:{p}", "left": 1.0, "gross": 4.0,
         "rest": 0.0, "whole": 3.0, "net": 1.0, "pushed": 2.0}
        for p in range(24)
    ]  # fmt: skip
    cost = {"panel": "cost", "arm": arm, "kind": "weights", "seconds": 2.0 + weight}
    return [*found, {**cost, "sampling": 2.0, "ones": weight == 0}]


def test_the_weights_that_know_the_value_are_found() -> None:
    records = tokens(BASELINE, 0.0) + tokens("good", 0.5) + tokens("bad", -0.5)
    base, good, bad = correlate_arms(records, ComparedTokens(records))
    assert base.right is None
    assert base.gain is None
    assert good.credit == pytest.approx((1.0, 1.0, 1.0))
    assert good.right == pytest.approx((1.0, 1.0, 1.0))
    assert good.wrong == pytest.approx((1.0, 1.0, 1.0))
    assert good.gain
    assert base.credit
    assert good.gain[0] == pytest.approx(1.0 - base.credit[0])
    assert bad.right == pytest.approx((-1.0, -1.0, -1.0))
    assert bad.gain
    assert bad.gain[2] < 0
    assert good.moved == good.credit
    assert good.hidden == pytest.approx((0.0, 0.0, 0.0))
    assert good.residual == pytest.approx((0.25, 0.25, 0.25))
    assert good.group == pytest.approx((0.0, 0.0, 0.0))
    assert good.cancellation == pytest.approx((0.5, 0.5, 0.5))
    assert good.overhead == pytest.approx(0.5 / 4.0)


def test_the_correlation_of_two_signs_by_hand() -> None:
    """A = +-1 against values of the same sign: a half of each, so rho = sqrt(3) / 2."""
    records = tokens(BASELINE, 0.0)
    (base,) = correlate_arms(records, ComparedTokens(records))
    assert base.credit
    assert base.credit[0] == pytest.approx(math.sqrt(3) / 2, rel=1e-4)


ABOVE, TINY = (0.1, 0.02, 0.2), (0.01, 0.005, 0.02)
OPEN, SMALL = (0.02, -0.05, 0.1), (0.0, -0.03, 0.04)
UNKNOWN = (0.1, math.nan, math.nan)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([ABOVE] * 2 + [SMALL] * 2, "replicated"),
        ([TINY] * 2 + [SMALL] * 2, "replicated"),  # small gains are gains
        ([ABOVE] + [OPEN] * 3, "inconclusive"),
        ([OPEN] * 4, "inconclusive"),  # not shown, and not excluded
        ([SMALL] * 2 + [OPEN] * 2, "inconclusive"),  # the other half may gain
        ([SMALL] * 3 + [OPEN], "not replicated"),
        ([SMALL] * 3 + [ABOVE], "not replicated"),  # one of four is not half
        ([UNKNOWN] * 4, "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_verdicts(gains: list[Interval], verdict: str) -> None:
    assert verdict_from_gains(gains) == verdict


def test_one_prompt_concludes_nothing() -> None:
    records = tokens(BASELINE, 0.0) + tokens("good", 0.5)
    found = judge([{**r, "prompt": "1:0"} if "prompt" in r else r for r in records])
    assert found.verdict == "inconclusive"


def test_a_gain_that_is_not_shown_is_not_excluded() -> None:
    """Weights that know the value of every second prompt's tokens and take the others' for their
    contrary: of eight prompts a gain and a loss are both within reach."""
    good, bad = tokens("torn", 0.5), tokens("torn", -0.5)
    torn = [both[n // 12 % 2] for n, both in enumerate(zip(good, bad, strict=True))]
    eight = {f"1:{p}" for p in range(8)}
    found = judge([r for r in tokens(BASELINE, 0.0) + torn if r.get("prompt", "1:0") in eight])
    gain = next(n for n in found.numbers if n.name == "torn: A w and value, less A alone")
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < 0
    assert gain.high > MARGIN
    assert found.verdict == "inconclusive"


def test_judge_names_who_is_better_and_who_is_worse() -> None:
    records = tokens(BASELINE, 0.0) + tokens("good", 0.5) + tokens("bad", -0.5)
    records += [{"panel": "refused", "arm": "serl", "kind": "weights", "reason": "no turns"}]
    found = judge(records)
    assert found.verdict == "replicated"
    assert "1 follow it more closely with A w (good) and 1 less (bad)" in found.because
    assert any("no turns" in note for note in found.notes)
    names = {n.name for n in found.numbers}
    assert "good: A w and value, less A alone" in names
    assert "good: overhead, share of an iteration" in names


def test_noise_alone_is_not_replicated() -> None:
    rng = np.random.default_rng(1)
    noise = tokens("noise", 0.1)
    for r in noise:
        if r["panel"] == "token":
            r["credit"] = math.copysign(1 + 1e-3 * rng.uniform(), r["credit"])
    assert judge(tokens(BASELINE, 0.0) + noise).verdict == "not replicated"


def training(gain: float, seeds: int) -> list[Record]:
    """The arm learns more for its rollouts and needs twice the time."""
    found: list[Record] = []
    for seed in range(seeds):
        jitter = 0.002 * (seed % 3 - 1)
        for arm, end, each in ((BASELINE, 0.6, 1.0), ("good", 0.6 + gain + jitter, 2.0)):
            curve = run(arm, seed, [0.4, (0.4 + end) / 2, end], 4, residual=0.5)
            found += [
                {"panel": "training", **r, "cancellation": 0.3, "seconds": each * r["iteration"]}
                for r in curve
            ]
    return found


def test_training_at_equal_rollouts_and_at_equal_seconds() -> None:
    base, good = training_results(training(0.1, 4))
    assert base.by_rollouts is None
    assert good.by_rollouts
    assert good.by_seconds
    assert good.by_rollouts.value == pytest.approx(0.1, abs=0.002)
    assert good.by_seconds.value == pytest.approx(0.5 + 0.05 - 0.6, abs=0.002)
    assert good.slowdown
    assert good.slowdown.value == pytest.approx(1.0)
    assert good.cancellation == pytest.approx(0.3)
    assert good.residual == pytest.approx(0.5)


def test_seconds_of_a_run_are_its_median_iterations_without_the_monitor(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", load_config("demo"))
    for i, (whole, looked) in enumerate([(3.0, 1.0), (9.0, 0.0), (2.5, 0.5)], 1):
        line = {"iteration": i, "steps": 4, "rollouts": 64, "exchangeability": 0.1 * i}
        folder.append("metrics", {**line, "iteration_seconds": whole, "monitor_seconds": looked})
    curve = read_timed_run(folder)
    assert [r["seconds"] for r in curve] == [0.0, 2.0, 4.0, 6.0]
    assert [r["residual"] for r in curve] == [None, *(pytest.approx(0.1 * i) for i in (1, 2, 3))]


@pytest.mark.slow
def test_arms_of_credit_are_trained(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    sizes = {"rates": [1e-4], "seeds": 1, "iterations": 1, "prompts": 4, "target": 16, "steps": 2,
             "evaluate_every": 0, "heldout": 4, "samples": 2, "monitor_every": 1,
             "arms": [BASELINE, "gtpo", "serl"]}  # fmt: skip
    shares: list[float] = []
    _, model, options = made.random_model()
    budgets = {"training": sizes, "train_minutes": 1e-3}
    lab = Lab(model, "quick", tmp_path, sizes=budgets, options=(*options, "store.report=false"))
    lab.progress = lambda doing, share: shares.append(share)
    none = measure_training(lab, {"serl"}, slow={BASELINE})
    assert [(r["panel"], r["arm"], r["reason"]) for r in none] == [
        ("untrained", "gtpo", OUT_OF_TIME), ("untrained", BASELINE, OUT_OF_TIME),
    ]  # fmt: skip
    assert training_results(none) == []
    # Only now: a forked run would be in its first iteration, and finish it, when time is up.
    request.getfixturevalue("forked_runs")
    lab.sizes = {"training": sizes, "train_minutes": 0}
    base, gtpo = training_results(measure_training(lab, {"serl"}))
    assert (base.arm, gtpo.arm) == (BASELINE, "gtpo")
    assert gtpo.by_rollouts
    assert gtpo.by_rollouts.n == 1
    assert gtpo.residual == pytest.approx(1.0)  # right and wrong rollouts never share a pull
    assert all(credit_tokens.ARMS_PROGRESS <= share <= 1 for share in shares)


def test_few_seeds_say_nothing_about_success() -> None:
    records = tokens(BASELINE, 0.0) + tokens("good", 0.5) + training(0.1, 2)
    assert any("says nothing about success" in note for note in judge(records).notes)


def test_figures_with_and_without_training() -> None:
    values = tokens(BASELINE, 0.0) + tokens("good", 0.5)
    assert len(measure.draw(values)) == 6
    assert [f.title for f in measure.draw(values + training(0.1, 3))][-1] == "After training"


def test_idle_arms_are_not_trained_and_slow_ones_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight of 5 makes an iteration of 4 s one of 9 s."""
    found = tokens(BASELINE, 0.0) + tokens("gtpo", 0.0) + tokens("oar_p", 5.0) + tokens("thr", 3.0)
    asked: list[tuple[set[str], list[str]]] = []
    monkeypatch.setattr(measure, "measure_tokens", lambda lab: found)
    monkeypatch.setattr(
        measure,
        "measure_training",
        lambda lab, excluded, slow: asked.append((set(excluded), slow)) or [],
    )
    full = measure.STUDY.budgets["full"]
    measure.measure(Lab("embedded", "full", tmp_path, sizes=full))
    assert asked == [({"gtpo"}, ["oar_p"])]
    quick = Lab("embedded", "quick", tmp_path, sizes=measure.STUDY.budgets["quick"])
    assert measure.measure(quick) == found
    assert len(asked) == 1


def test_what_is_not_trained_is_said() -> None:
    """Of four seeds of two arms two of one are missing, and all of a third arm."""
    runs = [r for r in training(0.1, 4) if r["arm"] == BASELINE or r["seed"] < 2]
    late = [
        ("good", 2, OUT_OF_TIME),
        ("good", 3, OUT_OF_TIME),
        *(("bad", s, "out of memory") for s in range(4)),
    ]
    missing: list[Record] = [
        {"panel": "untrained", "arm": arm, "rate": 1e-4, "seed": seed, "reason": reason}
        for arm, seed, reason in late
    ]
    assert untrained_notes(runs) == []
    assert untrained_notes(runs + missing) == [
        f"2 of 12 runs are not trained, {OUT_OF_TIME}: good 2, 3 (seeds).",
        "4 of 12 runs are not trained, out of memory: bad 0, 1, 2, 3 (seeds).",
    ]
    records = tokens(BASELINE, 0.0) + tokens("good", 0.5) + runs + missing
    assert set(untrained_notes(missing + runs)) <= set(judge(records).notes)
    base, good = training_results(records)
    assert (base.success.n, good.success.n) == (4, 2)
    assert good.by_rollouts
    assert good.by_rollouts.n == 2
    only = tokens(BASELINE, 0.0) + missing
    assert not any("No arm was trained" in note for note in judge(only).notes)
    assert len(measure.draw(only)) == 6
