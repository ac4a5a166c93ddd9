"""Numbers of docs/results/experiments.md and README are those of the runs in docs/data/."""

from __future__ import annotations

import json
import re
from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest
from page_numbers import DATA, ROOT, is_among, page_text, printed_intervals, section, table_rows

from counterpoise.lab.experiments import pilot, pilot_rates, verdicts
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dose import DoseResponse, dose_responses
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.pieces import read_piece
from counterpoise.lab.experiments.tuned import TunedComparison, compare_tuned
from counterpoise.lab.experiments.verdicts import judge_hypothesis
from counterpoise.statistics.student import student_mean

PAGE = page_text("experiments.md")
# Columns of the page's tables, and where they stand in the two tables of results.md.
COMPARED, BESIDE = (2, 3, 4, 6, 11), (2, 8)
SECTIONS = {
    "smollm2-interventions": ("## Arms", "## Waiting or balance?"),
    "smollm2-waiting": ("## Waiting or balance?", "## Cancellation itself"),
}
IN_TEXT_ONLY = {  # experiments without a table on the page -> the pieces that hold their runs
    "smollm2-cancellation": ("smollm2-cancellation",),
    "smollm2-cancellation-dose": ("smollm2-cancellation", "smollm2-cancellation-dose"),
    "smollm2-tuned": ("smollm2-interventions", "smollm2-waiting", "smollm2-tuned"),
    "embedded-batching": ("embedded-batching",),
    "no-slips": ("no-slips",),
    "no-slips-balance-dose": ("no-slips-balance-dose",),
}
TEMPERATURE_1, TEMPERATURE_06 = "heldout", "heldout@0.6/0.95"
Rows = dict[tuple[str, str], list[str]]  # (rate, arm) -> cells


def stored_runs(name: str) -> Runs:
    experiment = read_experiment(name)
    runs: Runs = {}
    for piece in IN_TEXT_ONLY.get(name, (name,)):
        runs |= read_piece(DATA / f"{piece}.parquet", experiment).runs
    return runs


def tables(name: str) -> str:
    return verdicts.results_markdown(stored_runs(name), read_experiment(name))


def measured_rows(name: str) -> Rows:
    rows: Rows = {}
    rate = ""
    for line in tables(name).splitlines():
        if begun := re.match(r"Learning rate (\S+):", line):
            rate = f"{float(begun[1]):g}"
        if not rate or not line.startswith("| ") or line.startswith(("| arm", "| ---")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        columns = BESIDE if (rate, cells[0]) in rows else COMPARED
        rows.setdefault((rate, cells[0]), []).extend(cells[i] for i in columns)
    return rows


def printed_rows(name: str) -> Rows:
    rows: Rows = {}
    rate = ""
    for line in section(PAGE, *SECTIONS[name]).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if begun := re.match(r"\|lr ([^|\s]+)", line):
            rate = f"{float(begun[1]):g}"
        elif line.startswith("|") and not line.startswith("|---"):
            rows[rate, cells[0]] = cells[1:]
    return rows


def agree(printed: str, measured: str) -> bool:
    """Every number of a cell, to as many digits as are printed."""
    pairs = [re.findall(r"[-+]?\d+(?:\.\d+)?", text) for text in (printed, measured)]
    return len(pairs[0]) == len(pairs[1]) and all(
        abs(float(a) - float(b)) <= 0.51 * 10.0 ** -len(a.partition(".")[2])
        for a, b in zip(*pairs, strict=True)
    )


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_are_those_of_the_runs(name: str) -> None:
    printed, measured = printed_rows(name), measured_rows(name)
    assert printed.keys() == measured.keys()
    assert len(printed) >= 6
    for key, cells in printed.items():
        for cell, truth in zip(cells, measured[key], strict=True):
            assert agree(cell, truth), (key, cell, truth)


def held_out(name: str, setting: str) -> dict[tuple[str, float, int], list[float]]:
    """Held-out success of every (arm, rate, seed), in the order of the iterations."""
    curves: dict[tuple[str, float, int], list[float]] = defaultdict(list)
    for record in pq.read_table(DATA / f"{name}.parquet").to_pylist():
        if record[setting] is not None:
            curves[record["arm"], record["rate"], record["seed"]].append(record[setting])
    return curves


def final_mean(name: str, setting: str, arm: str, rate: float) -> float:
    curves = held_out(name, setting)
    return 100 * float(np.mean([c[-1] for key, c in curves.items() if key[:2] == (arm, rate)]))


def looked_at_afterwards(rate: float) -> tuple[float, float, float]:
    """QB minus by_sign in the first experiment, a plain 95 % interval in points."""
    curves = held_out("smollm2-interventions", TEMPERATURE_1)
    seeds = sorted({seed for _, _, seed in curves})
    mean = student_mean(
        [100 * (curves["QB", rate, s][-1] - curves["by_sign", rate, s][-1]) for s in seeds]
    )
    return mean.value, mean.low, mean.high


def dose_response(seeds: range) -> DoseResponse:
    """The slope of success on eq. 14's cross term, over these seeds only."""
    name = "smollm2-cancellation-dose"
    runs = {key: curve for key, curve in stored_runs(name).items() if key.seed in seeds}
    (response,) = dose_responses(runs, read_experiment(name))
    return response


def tuned_comparisons(column: str) -> list[TunedComparison]:
    return compare_tuned(stored_runs("smollm2-tuned"), read_experiment("smollm2-tuned"), column)


@pytest.mark.parametrize("page", ["README.md", "docs/results/experiments.md"])
def test_differences_in_the_text_are_those_of_the_runs(page: str) -> None:
    judged = "".join(map(tables, [*SECTIONS, *IN_TEXT_ONLY]))
    known = [tuple(map(float, one)) for one in printed_intervals(judged)]
    known += [looked_at_afterwards(rate) for rate in (1e-5, 3e-5)]
    first_reading = dose_response(range(2000, 2011)).rollouts
    known.append(
        tuple(100 * x for x in (first_reading.value, first_reading.low, first_reading.high))
    )
    for tuned in tuned_comparisons(TEMPERATURE_06):
        mean = tuned.comparison.rollouts
        known.append(tuple(100 * x for x in (mean.value, mean.low, mean.high)))
    if page == "README.md":
        text = (ROOT / page).read_text(encoding="utf-8")
        bullets = section(text, "## What was measured").split("\n- ")
        about = "\n".join(bullet for bullet in bullets if "results/experiments.md#" in bullet)
    else:
        about = section(PAGE, "## Arms", "## LoRA, KL")
    printed = printed_intervals(about)
    assert len(printed) >= 4
    for one in printed:
        assert is_among(one, known, 0.05), one


def test_the_dose_is_judged_by_its_rule_on_all_runs() -> None:
    experiment = read_experiment("smollm2-cancellation-dose")
    runs = stored_runs("smollm2-cancellation-dose")
    assert runs.keys() == set(experiment.design.run_keys())
    assert len(runs) == 64
    response = dose_response(range(2000, 2016))
    assert (response.rollouts.n, response.verdict) == (16, "inconclusive")
    margin = -experiment.options.dose_margin
    assert all(s.low < margin and s.high > 0 for s in (response.rollouts, response.updates))
    text = " ".join(section(PAGE, "- **Dose**", "## Every arm").split())
    assert f"64 runs: **{response.verdict}**" in text
    for slope, cost in ((response.rollouts, "rollouts"), (response.updates, "updates")):
        low, high = (f"{100 * bound:+.1f}" for bound in (slope.low, slope.high))
        assert f"{100 * slope.value:+.1f} points per unit [{low}, {high}] at equal {cost}" in text
    assert "|inconclusive, both|" in section(PAGE, "|`smollm2-cancellation-dose.toml`", "\n")


def test_what_the_page_says_about_the_doses() -> None:
    text = " ".join(section(PAGE, "- **Dose**", "## Every arm").split())
    doses = dose_response(range(2000, 2016)).doses
    printed = re.search(r"\(QB (\S+), half groups (\S+), shuffled (\S+), by_sign (\S+)\)", text)
    assert printed
    for dose, arm in zip(
        printed.groups(), ("QB", "half_groups", "shuffled", "by_sign"), strict=True
    ):
        assert float(dose) == pytest.approx(doses[arm], abs=0.0051), arm
    mean = np.mean(list(doses.values()))
    squares = {arm: (dose - mean) ** 2 for arm, dose in doses.items()}
    of_e1 = 100 * (squares["QB"] + squares["by_sign"]) / sum(squares.values())
    assert f"{of_e1:.0f} % of the variance in dose" in text
    collapsed = re.findall(r" (\d+) of 16 ", tables("smollm2-cancellation-dose"))
    assert f"{sum(map(int, collapsed))} of 64 runs collapsed" in text


def test_tuned_arms_are_judged_by_their_rule_on_all_runs() -> None:
    experiment = read_experiment("smollm2-tuned")
    runs = stored_runs("smollm2-tuned")
    assert runs.keys() == set(experiment.design.run_keys())
    assert len(runs) == 192
    assert {curve[-1]["iteration"] for curve in runs.values()} == {100}
    judged_section = section(PAGE, "## Every arm", "## LoRA, KL")
    rows = {row[0]: row[1:] for row in table_rows(judged_section, "||best rate|")}
    verdicts_by_arm = {
        hypothesis.arm: judge_hypothesis(hypothesis, runs, experiment)
        for hypothesis in experiment.hypotheses
    }
    for tuned in tuned_comparisons(TEMPERATURE_1):
        rates, *differences, verdict = rows.pop(tuned.arm)
        assert rates == ", ".join(f"{rate:g}".replace("-0", "-") for rate in sorted({*tuned.rates}))
        assert tuned.baseline_rates == (6e-6, 6e-6)
        for cell, mean in zip(
            differences, (tuned.comparison.rollouts, tuned.comparison.updates), strict=True
        ):
            low, high = (f"{100 * bound:+.1f}" for bound in (mean.low, mean.high))
            assert cell == f"{100 * mean.value:+.1f} [{low}, {high}]"
        assert verdict == verdicts_by_arm[tuned.arm]
        if tuned.arm == "QB+RB":
            upper = f"+{100 * tuned.comparison.updates.high:.2f}"
            assert f"{upper}, misses the margin" in judged_section
    assert not rows


def test_what_the_page_says_about_single_rates() -> None:
    assert "At 1e-5 shuffled is two points behind QB+RB" in PAGE
    assert "at 1e-6 QB+RB is six behind" in PAGE
    measured = measured_rows("smollm2-tuned")
    differences = [measured[rate, "QB+RB"][1].split()[0] for rate in ("1e-06", "1e-05")]
    assert differences == ["-6.0", "+2.4"]


def test_the_pilot_chooses_the_rates_of_the_experiment() -> None:
    experiment = read_experiment("smollm2-pilot")
    piece = read_piece(DATA / "smollm2-pilot.parquet", experiment)
    choice = pilot.choose_rates(piece.runs, experiment)
    assert f"**stable {choice.stable:.0e}, edge {choice.edge:.0e}**".replace("e-0", "e-") in PAGE
    assert (choice.stable, choice.edge) == tuple(read_experiment("smollm2-waiting").options.rates)


def test_the_pilot_on_gsm8k_chooses_a_rate_for_each_arm() -> None:
    name = "qwen-coder-aligned-pilot"
    rates = pilot_rates.choose(stored_runs(name), {}, read_experiment(name)).rates
    assert rates == {"uniform": 3e-6, "aligned": 1e-6, "prompts": 3e-6}
    assert "rates: uniform, prompts 3e-6, aligned 1e-6" in PAGE
    trained = pq.read_table(DATA / "qwen-coder-aligned.parquet", columns=["arm", "lr"]).to_pylist()
    assert {run["arm"]: run["lr"] for run in trained} == rates


def test_the_pilot_of_token_credit_chooses_no_rate_at_the_edge() -> None:
    name = "embedded-credit-pilot"
    rates = pilot_rates.choose(stored_runs(name), {}, read_experiment(name)).rates
    assert rates.keys() == read_experiment("embedded-credit").design.arms.keys()
    assert rates["uniform"] == 1e-4
    assert set(rates.values()) == {5e-5, 1e-4}


def test_the_model_without_slips_improves() -> None:
    name = "no-slips-pilot"
    runs = stored_runs(name)
    rates = pilot_rates.choose(runs, {}, read_experiment(name)).rates
    assert rates == {"shuffled": 5e-5, "QB+RB": 5e-5}
    assert read_experiment("no-slips").design.rates == [5e-5]
    at_best = [runs[RunKey("shuffled", 5e-5, seed)] for seed in (7900, 7901)]
    for values, said in (
        ([curve[0]["heldout"] for curve in at_best], "from 42.1 and 43.3 %"),
        ([curve[-1]["heldout"] for curve in at_best], "to 54.3 and 56.5 %"),
    ):
        assert said in PAGE
        assert re.findall(r"\d\d\.\d", said) == [f"{100 * value:.1f}" for value in values]
    for key, curve in runs.items():
        assert (curve[-1]["heldout"] < curve[0]["heldout"]) == (key.rate == 2e-4)


def test_the_batching_rules_on_the_model_without_slips() -> None:
    name = "no-slips"
    experiment, runs = read_experiment(name), stored_runs(name)
    assert runs.keys() == set(experiment.design.run_keys())
    part = section(PAGE, "## Without planted mistakes", "## On the embedded model")
    text = " ".join(part.split())
    for hypothesis in experiment.hypotheses:
        assert judge_hypothesis(hypothesis, runs, experiment) == "not replicated"
    assert "Both are **not replicated**" in text
    cross_terms, shares = defaultdict(list), defaultdict(list)
    for key, curve in runs.items():
        for record in curve[1:]:
            if record["cross_advantage_ratio"] is not None:
                cross_terms[key.arm].append(record["cross_advantage_ratio"])
                shares[key.arm].append(record["rarer_sign_share"])
    means = {arm: f"{np.mean(values):.2f}" for arm, values in cross_terms.items()}
    assert f"QB+RB {float(means['QB+RB']):.0f}, shuffled {means['shuffled']}, " in text
    assert f"by_sign +{means['by_sign']}" in text
    percents = [100 * float(np.mean(values)) for values in shares.values()]
    assert {f"{percent:.0f}" for percent in percents} == {"43"}
    assert "43 % in every arm" in text


def test_the_batching_rules_on_the_embedded_model() -> None:
    name = "embedded-batching"
    experiment, runs = read_experiment(name), stored_runs(name)
    assert runs.keys() == set(experiment.design.run_keys())
    pilot = read_experiment(f"{name}-pilot")
    rates = pilot_rates.choose(stored_runs(pilot.name), {}, pilot).rates
    assert rates == dict.fromkeys(experiment.design.arms, 1e-4)
    verdicts_by_arm = {
        hypothesis.arm: judge_hypothesis(hypothesis, runs, experiment)
        for hypothesis in experiment.hypotheses
    }
    assert verdicts_by_arm.pop("QB") == "inconclusive"
    assert set(verdicts_by_arm.values()) == {"not replicated"}
    assert verdicts_by_arm.keys() == {"QB+RB", "RB", "waits", "by_sign"}
    part = section(PAGE, "## On the embedded model", "## A dose of balance")
    start = 100 * np.mean([curve[0]["heldout"] for curve in runs.values()])
    assert f"From {start:.1f} % before training" in part
    judged = tables(name)
    rows = table_rows(part, "|lr 1e-4|")
    assert [arm for arm, *_ in rows] == list(experiment.design.arms)
    for arm, success, *differences, updates in rows:
        (measured,) = re.findall(rf"^\| {re.escape(arm)} \| 16 \| (.*)$", judged, re.MULTILINE)
        cells = [cell.strip() for cell in measured.split("|")]
        for cell, truth in zip([success, *differences], cells, strict=False):
            assert agree(cell, truth), (arm, cell, truth)
        last = [curve[-1]["updates"] for key, curve in runs.items() if key.arm == arm]
        assert updates == f"{np.mean(last):.0f}"
    shares = defaultdict(list)
    for key, curve in runs.items():
        shares[key.arm] += [record["rarer_sign_share"] for record in curve[1:]]
    percents = [round(100 * float(np.nanmean(np.array(v, float)))) for v in shares.values()]
    assert f"{min(percents)} to {max(percents)} % in every arm" in " ".join(part.split())


def test_seconds_on_the_pages_are_those_of_the_records() -> None:
    curves = stored_runs("embedded-batching-pilot").values()
    seconds = [
        sum((line["iteration_seconds"] or 0) + (line["evaluate_seconds"] or 0) for line in curve)
        for curve in curves
    ]
    guide = " ".join((ROOT / "docs/guide/evaluate.md").read_text(encoding="utf-8").split())
    assert f"`embedded-batching-pilot` took {np.mean(seconds):.0f} s on an H200" in guide
    looks = json.loads((DATA / "cpu-probe-through.json").read_text(encoding="utf-8"))
    assert looks["rows"] + looks["answers"] * looks["steps"] == 156
    output, middle, every = (values[1] for values in looks["probe_seconds"].values())
    report = " ".join((ROOT / "docs/guide/report.md").read_text(encoding="utf-8").split())
    assert "at 15 answers after four steps of 96 rows, 156 such passes" in report
    assert f"takes {middle:.1f} and {every:.1f} s on one CPU core" in report
    assert f"the output layer takes {output:.1f} s" in report
    speed = section(page_text("speed.md"), "Tried on 19 November", "|monitor|")
    forms = json.loads((DATA / "h200-decode-forms.json").read_text(encoding="utf-8"))["steps"]
    separate = {one["rows"]: one["milliseconds"] for one in forms if one["form"] == "separate"}
    for one in forms:
        if "tile" not in one["form"]:
            assert f"{one['milliseconds']:.3f}" in speed
    slower = [
        one["milliseconds"] / separate[one["rows"]] - 1
        for one in forms
        if one["form"] != "separate"
    ]
    assert f"{100 * min(slower):.0f} to {100 * max(slower):.0f} % slower" in speed


def test_the_dose_of_balance_on_the_model_without_slips() -> None:
    name = "no-slips-balance-dose"
    experiment, runs = read_experiment(name), stored_runs(name)
    assert runs.keys() == set(experiment.design.run_keys())
    pilot = read_experiment(f"{name}-pilot")
    best_rates = pilot_rates.choose(stored_runs(pilot.name), {}, pilot).rates
    assert [best_rates["waits"]] == experiment.design.rates
    part = section(PAGE, "## A dose of balance", "## LoRA, KL")
    text = " ".join(part.split())
    (response,) = dose_responses(runs, experiment)
    assert f"rarer sign*: **{response.verdict}**" in text
    for slope, cost in ((response.rollouts, "rollouts"), (response.updates, "updates")):
        low, high = (f"{100 * bound:+.1f}" for bound in (slope.low, slope.high))
        assert f"{100 * slope.value:+.1f} points per unit [{low}, {high}] at equal {cost}" in text
    assert response.rollouts.high < experiment.options.dose_margin < response.updates.high
    verdicts_by_arm = {
        hypothesis.arm: judge_hypothesis(hypothesis, runs, experiment)
        for hypothesis in experiment.hypotheses
    }
    assert verdicts_by_arm == {"RB_50": "not replicated", "anti_10": "inconclusive"}
    gains = []
    for arm, share, success, *_, updates in table_rows(part, "|lr 5e-5|"):
        curves = [curve for key, curve in runs.items() if key.arm == arm]
        assert share == f"{100 * response.doses[arm]:.0f} %"
        assert updates == f"{np.mean([curve[-1]['updates'] for curve in curves]):.0f}"
        final = student_mean([100 * curve[-1]["heldout"] for curve in curves])
        assert success == f"{final.value:.1f} [{final.low:.1f}, {final.high:.1f}]"
        gains.append(final.value - 100 * np.mean([curve[0]["heldout"] for curve in curves]))
    assert len(gains) == 3
    assert f"gain {min(gains):.1f} to {max(gains):.1f} points" in text
    start = 100 * np.mean([curve[0]["heldout"] for curve in runs.values()])
    assert f"from {start:.1f} % before training" in text


def test_the_demo_learns_as_well_inside_trl() -> None:
    experiment, runs = read_experiment("demo-engines"), stored_runs("demo-engines")
    assert runs.keys() == set(experiment.design.run_keys())
    (hypothesis,) = experiment.hypotheses
    assert judge_hypothesis(hypothesis, runs, experiment) == "not replicated"
    judged = tables("demo-engines")
    known = [tuple(map(float, one)) for one in printed_intervals(judged)]
    guide = (ROOT / "docs" / "guide" / "trl.md").read_text(encoding="utf-8")
    speed = section(page_text("speed.md"), "- **TRL's runs**", "- **TRL on an H200**")
    printed = [*printed_intervals(speed), *printed_intervals(section(guide, "## Is it the same"))]
    assert len(printed) == 4
    for one in printed:
        assert is_among(one, known), one
    assert "seconds of an iteration |\n" in judged
    seconds = [
        re.findall(rf"^\| {arm} .* ([\d.]+) \|$", judged, re.M)[-1] for arm in ("native", "trl")
    ]
    words = "An iteration took {:.1f} and {:.1f} s".format(*map(float, seconds))
    assert words in " ".join(speed.split())


def test_the_table_of_the_pilot() -> None:
    at_1, at_06 = (held_out("smollm2-pilot", name) for name in (TEMPERATURE_1, TEMPERATURE_06))
    rows = list(table_rows(PAGE, "|rate|"))
    assert len(rows) == 4
    for rate, *cells in rows:
        runs = [("shuffled", float(rate), seed) for seed in (900, 901)]
        measured = (
            [max(at_1[run]) for run in runs],
            [at_1[run][-1] for run in runs],
            [at_06[run][-1] for run in runs],
        )
        assert cells == [", ".join(f"{100 * x:.1f}" for x in pair) for pair in measured]
        assert [f"{100 * at_1[run][0]:.1f}" for run in runs] == ["40.7", "39.1"]


def test_with_the_decoding_of_the_paper_little_is_left_to_gain() -> None:
    curves = {
        key: curve
        for name in ("smollm2-interventions", "smollm2-waiting", "smollm2-tuned")
        for key, curve in held_out(name, TEMPERATURE_06).items()
    }
    ends: dict[tuple[str, float], list[float]] = defaultdict(list)
    for (arm, rate, seed), curve in curves.items():
        ends[arm, rate].append(100 * curve[-1])
        if rate == 3e-5:  # near collapse every arm is best before training
            assert max(curve) == curve[0], (arm, seed)
    start = 100 * float(np.mean([curve[0] for curve in curves.values()]))
    means = {key: float(np.mean(of_seeds)) for key, of_seeds in ends.items()}
    text = " ".join(PAGE.replace("\n>", "\n").split())
    assert (
        f"it already solves {start:.1f} %, and no arm ends above {max(means.values()):.1f} %"
        in text
    )
    gains = {arm: mean - start for (arm, rate), mean in means.items() if rate == 1e-5}
    waiting = {arm: gains.pop(arm) for arm in ("RB", "QB+RB", "waits")}
    assert f"end {-max(gains.values()):.1f} to {-min(gains.values()):.1f} points *below*" in text
    low, high = min(waiting.values()), max(waiting.values())
    assert f"`waits` {low:.1f} to {high:.1f} above" in text
    at_1e6, at_6e6 = (f"{means['shuffled', rate]:.1f}" for rate in (1e-6, 6e-6))
    assert f"Shuffled rows end at {at_1e6} % at 1e-6 and at {at_6e6} % at 6e-6" in text
    at_1 = held_out("smollm2-interventions", TEMPERATURE_1).values()
    assert f"the start solves {100 * np.mean([curve[0] for curve in at_1]):.1f} %" in text


def test_first_runs_of_adapters_are_the_stored_ones() -> None:
    stored = [
        [100 * record[column] for column in ("success", "low", "high")]
        for record in pq.read_table(DATA / "first-adapters.parquet").to_pylist()
    ]
    printed = printed_intervals(section(PAGE, "## LoRA, KL", "## Running one"))
    assert len(printed) == 8
    for interval in printed:
        assert is_among(interval, stored), interval


def rarer_sign_shares() -> dict[tuple[str, float], float]:
    """The rarer sign's share of the rows with signal: mean over iterations, then over seeds."""
    shares: dict[tuple[str, float], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in pq.read_table(DATA / "smollm2-waiting.parquet").to_pylist():
        if (share := record["positive_share"]) is not None:
            shares[record["arm"], record["rate"]][record["seed"]].append(min(share, 1 - share))
    return {
        key: float(np.mean([np.mean(of_seed) for of_seed in by_seed.values()]))
        for key, by_seed in shares.items()
    }


def test_balance_hardly_differs_between_the_arms() -> None:
    shares = rarer_sign_shares()
    text = " ".join(PAGE.replace("\n>", "\n").split())
    printed = re.search(
        r"is (\S+) in RB and (\S+) in `waits` at 1e-5, (\S+) and (\S+) at 3e-5, "
        r"and (\S+) and (\S+) in shuffled rows",
        text,
    )
    assert printed
    for share, key in zip(
        printed.groups(),
        [(arm, rate) for rate in (1e-5, 3e-5) for arm in ("RB", "waits")]
        + [("shuffled", 1e-5), ("shuffled", 3e-5)],
        strict=True,
    ):
        assert float(share.rstrip(".")) == pytest.approx(shares[key], abs=0.00051), key


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("smollm2-balance-dose", "{runs} of {planned} runs, no verdict yet"),
        ("embedded-rivals-pilot", "{runs} of {planned} runs of its pilot"),
    ],
)
def test_unfinished_experiments_have_as_many_runs_as_the_page_says(name: str, printed: str) -> None:
    finished, planned = stored_runs(name), read_experiment(name).design.run_keys()
    assert 0 < len(finished) < len(planned)
    assert finished.keys() <= set(planned)
    assert printed.format(runs=len(finished), planned=len(planned)) in page_text("experiments.md")


def test_how_many_tokens_flip_in_the_runs_of_smollm2() -> None:
    """The guide's range is that of the means by arm and rate, rounded down and up to percents."""
    runs = pq.read_table(DATA / "smollm2-interventions.parquet", columns=["arm", "rate", "flipped"])
    means = runs.group_by(["arm", "rate"]).aggregate([("flipped", "mean")])["flipped_mean"]
    low, high = (100 * limit(means.to_pylist()) for limit in (min, max))
    text = (ROOT / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    printed = re.search(r"(\d+) to (\d+) % of all tokens in our SmolLM2 runs", text)
    assert printed
    assert (int(low), round(high)) == tuple(map(int, printed.groups()))
