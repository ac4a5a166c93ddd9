"""docs/data/claims.csv agrees with the pages, with the rules in the code and with the records."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import cache
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from page_numbers import DATA, ROOT, is_among, page_text, printed_intervals, section
from test_documented_numbers import held_out, stored_runs, tables

from counterpoise.lab import claims, replication
from counterpoise.lab.experiments.dose import dose_responses
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.studies import plants, polarity, removal, trace
from counterpoise.lab.studies.flipping import measure as flipping
from counterpoise.lab.studies.records import read_records, read_table
from counterpoise.lab.studies.study import load_study
from counterpoise.lab.studies.variance import measure as variance
from counterpoise.statistics.finding import Finding, Verdict

CLAIMS = [asdict(claim) for claim in claims.read_claims(ROOT / claims.CLAIMS)]
RECORDS = claims.StoredRecords(ROOT)
NUMBERS = RECORDS.smollm2_numbers
VERDICTS = {
    line["study"]: line["verdict"]
    for line in pq.read_table(ROOT / claims.STORED_NUMBERS).to_pylist()
}
SMOLLM2 = "SmolLM2-135M"
NO_SLIPS = "1.3M without slips"
QWEN = "Qwen2.5-Coder-0.5B"
MODELS = ("embedded", SMOLLM2, NO_SLIPS, QWEN)


def of_model(model: str) -> dict[str, dict[str, str]]:
    return {claim["number"]: claim for claim in CLAIMS if claim["model"] == model}


@cache
def judged(study: str, model: str) -> Finding:
    return RECORDS.judge(study, f"docs/data/{model}-{study}.parquet")


def test_every_claim_has_a_verdict_on_every_model() -> None:
    assert [claim["number"] for claim in CLAIMS] == [str(n) for n in range(1, 19) for _ in MODELS]
    assert [claim["model"] for claim in CLAIMS] == [*MODELS] * 18
    assert {claim["verdict"] for claim in CLAIMS} <= {*get_args(Verdict), "not tested"}
    for claim in CLAIMS:
        assert claim["verdict"] == "not tested" or claim["command"]
        record = claim["record"]
        assert record == "not stored" or (ROOT / record).is_file(), record


def test_the_page_has_the_tables_of_the_file() -> None:
    text = page_text("replication.md")
    lines = claims.read_claims(ROOT / claims.CLAIMS)
    assert text == replication.page_with_tables(text, lines, RECORDS), (
        "run `poise study replication`"
    )


def test_rules_are_those_of_the_code() -> None:
    experiment_rules = {
        f"docs/data/{name}.parquet": read_experiment(name).options.rule
        for name in (
            "smollm2-interventions",
            "smollm2-tuned",
            "embedded-batching",
            "no-slips",
            "no-slips-balance-dose",
        )
    }
    for claim in CLAIMS:
        if claim["number"] in ("12", "13", "18") and claim["model"] == QWEN:
            assert claim["rule"] == read_experiment("qwen-coder-batching").options.rule
        elif claim["record"] in experiment_rules:
            assert claim["rule"] == experiment_rules[claim["record"]]
        elif claim["number"] in claims.STUDIES_OF_CLAIMS:
            study, _ = claims.STUDIES_OF_CLAIMS[claim["number"]]
            assert claim["rule"] == load_study(study).rule


def test_numbers_and_verdicts_follow_from_the_records() -> None:
    """Verdicts of SmolLM2's older studies have tests of their own: only numbers are stored."""
    lines = [claims.Claim(**claim) for claim in CLAIMS]
    named = [line for line in lines if line.record_number]
    assert len(named) >= 16
    for line in named:
        assert claims.recompute_claim(line, RECORDS) == line, "run `poise study replication`"


def test_smollm2_verdicts_follow_from_the_stored_numbers() -> None:
    lines = of_model(SMOLLM2)
    for number in ("3", "4", "6", "7", "8", "9", "11"):  # rules as they were when it was judged
        assert lines[number]["verdict"] == VERDICTS[claims.STUDIES_OF_CLAIMS[number][0]]
    template = NUMBERS["polarity", "template share of boosted mass, positive-only, adamw"]
    changes = [
        NUMBERS["polarity", f"change of {k} share, adamw"] for k in ("template", "reasoning")
    ]
    assert lines["5"]["verdict"] == polarity.verdict_from_shares(template[2], *changes)
    needed = variance.needed_rho(NUMBERS["variance", "C of eq. 14, by_sign"][0])
    assert lines["10"]["verdict"] == variance.verdict_from_noise(
        NUMBERS["variance", "noise, whole groups over cut by sign"],
        NUMBERS["variance", "rho, shared direction"],
        needed,
        closed_form_holds=True,
    )
    assert needed == pytest.approx(0.105, abs=0.001)


def test_smollm2_flipping_follows_from_the_stored_numbers() -> None:
    """Shares of moved tokens are not stored by sign for negative rollouts: made from all tokens."""
    up, down = (
        NUMBERS["flipping", f"{name}, negative rollouts, joint, one adamw step"][0]
        for name in ("boosted", "suppressed")
    )
    lines = of_model(SMOLLM2)
    assert float(lines["1"]["effect"]) == pytest.approx(100 * up / (up + down), abs=0.5)
    interval = tuple(float(lines["1"][key]) / 100 for key in ("effect", "low", "high"))
    step = {
        key: NUMBERS["flipping", flipping.NUMBER_LABELS[key]]
        for key in ("difference", "positive", "lowered")
    }
    run = {
        key: NUMBERS["flipping", f"{flipping.NUMBER_LABELS[key]}, over the runs"][0]
        for key in ("difference", "flipped", "positive", "positive-only")
    }
    run["negative"] = 2 * run["flipped"] - run["positive"]  # `flipped` is the mean of both signs
    verdicts = [
        claim.verdict for claim in flipping.judge_claims({**step, "negative": interval}, run)
    ]
    assert [lines[n]["verdict"] for n in ("1", "2")] == verdicts


def test_the_numbers_of_smollm2s_coupling_are_those_of_its_records() -> None:
    finding = judged("coupling", "smollm2")
    for number in finding.numbers:  # up to rounding, which differs between processors
        stored = [x or 0.0 for x in NUMBERS["coupling", number.name]]  # None: no interval
        judged_again = [x or 0.0 for x in (number.value, number.low, number.high)]
        assert stored == pytest.approx(judged_again, rel=1e-12)
    assert VERDICTS["coupling"] == finding.verdict


@pytest.mark.parametrize(("file", "budget"), [("shared", "full"), ("shared-quick", "quick")])
def test_shared_tokens_on_the_embedded_model_are_judged_again(file: str, budget: str) -> None:
    record = f"docs/data/embedded-{file}.parquet"
    settings = read_table(ROOT / record).settings
    assert (settings["model"], settings["budget"]) == ("embedded", budget)
    assert settings["sizes"] == load_study("shared").budgets[budget]
    finding = RECORDS.judge("shared", record)
    lines = of_model("embedded")
    assert [lines[n]["verdict"] for n in ("15", "16", "17")] == [
        claim.verdict for claim in finding.claims
    ]
    if budget == "quick":
        return
    for n in ("15", "16", "17"):
        assert lines[n]["n"] in finding.notes[0].replace(".", "")
    text = " ".join(page_text("replication.md").split())
    assert finding.notes[0].startswith("424 shared and 1028 specific nodes with p <= 0.5, of 354")
    assert "with p <= 0.5, on the embedded model 1,028 specific to success and 424 shared" in text


def test_how_well_traces_predict_is_judged_again() -> None:
    findings = []
    for file, verdicts in (
        ("embedded-trace.parquet", ["inconclusive", "inconclusive"]),
        ("smollm2-trace.parquet", ["replicated", "inconclusive"]),
        ("qwen-coder-0.5B-trace.parquet", ["replicated", "replicated"]),
    ):
        stored = read_records(DATA / file)
        assert stored is not None
        finding = trace.judge(stored[0])
        assert [claim.verdict for claim in finding.claims] == verdicts
        findings.append(finding)
    guide = (ROOT / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    text = section(guide, "## Trace", "## Summary and Learning")
    assert "inconclusive by the study's rule" in text
    removed = read_records(DATA / "embedded-removal.parquet")
    assert removed is not None
    causes = removal.judge(removed[0])
    by_advantage = [n for n in causes.numbers if n.name.startswith("effect of removing 25 %, adv")]
    assert len(by_advantage) == 2
    assert all(number.low is not None and number.low > 0 for number in by_advantage)
    verdicts = [claim.verdict for claim in causes.claims]
    assert verdicts == ["replicated", "inconclusive"] * 2
    areas = []
    for file, verdicts in (
        ("embedded-plants.parquet", ["replicated", "replicated"]),
        ("embedded-plants-output-layer.parquet", ["not replicated", "inconclusive"]),
    ):
        planted = read_records(DATA / file)
        assert planted is not None
        found_first = plants.judge(planted[0])
        assert [claim.verdict for claim in found_first.claims] == verdicts
        *shares, area = found_first.numbers
        for share in shares:
            bounds = f"[{100 * share.low:.0f}, {100 * share.high:.0f}]"
            assert f"{100 * share.value:.0f} % {bounds}" in text
        areas.append(area)
    printed = [interval for interval in printed_intervals(text) if "." in interval[1]]
    predictions, steering = [*printed[:10], *printed[18:]], printed[10:18]
    numbers = [number for finding in (*findings, causes) for number in finding.numbers]
    known = [(number.value, number.low, number.high) for number in (*numbers, *areas)]
    for interval in predictions:
        assert is_among(interval, known), interval
    judged = tables("embedded-aligned")
    arms = re.findall(r"^- (\w+) is better .*?\*\*not replicated\*\*", judged, re.MULTILINE)
    assert arms == ["aligned", "filter", "tokens", "prompts"]
    on_qwen = tables("qwen-coder-aligned")
    verdicts = re.findall(r"^- (\w+) is better .*?\*\*(.+?)\*\*", on_qwen, re.MULTILINE)
    assert verdicts == [("aligned", "not replicated"), ("prompts", "inconclusive")]
    assert len(steering) == 8
    differences = [tuple(map(float, one)) for one in printed_intervals(judged + on_qwen)]
    for interval in steering:
        assert is_among(interval, differences, 0.001), interval


def test_arms_are_those_of_the_experiment() -> None:
    lines = of_model(SMOLLM2)
    for claim, name, hypothesis in (
        (lines["12"], "smollm2-interventions", "by_sign is worse"),
        (lines["13"], "smollm2-interventions", r"QB\+RB is better"),
        (lines["18"], "smollm2-tuned", r"QB\+RB is better"),
        (of_model("embedded")["12"], "embedded-batching", "by_sign is worse"),
        (of_model("embedded")["13"], "embedded-batching", r"QB\+RB is better"),
        (of_model("embedded")["18"], "embedded-batching", r"QB\+RB is better"),
        (of_model(NO_SLIPS)["12"], "no-slips", "by_sign is worse"),
        (of_model(NO_SLIPS)["13"], "no-slips", r"QB\+RB is better"),
        (of_model(NO_SLIPS)["18"], "no-slips", r"QB\+RB is better"),
    ):
        judged = tables(name)
        known = [tuple(map(float, one)) for one in printed_intervals(judged)]
        assert is_among([claim[key] for key in ("effect", "low", "high")], known, 0.05)
        verdict = re.search(rf"^- {hypothesis} than shuffled: \*\*(.+?)\*\*", judged, re.MULTILINE)
        assert verdict
        assert verdict[1] == claim["verdict"]
    (dose,) = dose_responses(
        stored_runs("no-slips-balance-dose"), read_experiment("no-slips-balance-dose")
    )
    slope, claim = dose.updates, of_model(NO_SLIPS)["14"]
    measured = [f"{100 * value:+.1f}" for value in (slope.value, slope.low, slope.high)]
    assert [claim[key] for key in ("effect", "low", "high")] == measured
    assert claim["verdict"] == dose.verdict


def test_numbers_of_the_text_are_those_of_the_records() -> None:
    findings = [
        RECORDS.judge(claims.STUDIES_OF_CLAIMS[claim["number"]][0], claim["record"])
        for claim in CLAIMS
        if claim["record_number"] and ROOT / claim["record"] != ROOT / claims.STORED_NUMBERS
    ]
    judged_again = [(n.value, n.low, n.high) for finding in findings for n in finding.numbers]
    known = [
        tuple(scale * x for x in interval)
        for interval in (*NUMBERS.values(), *judged_again)
        if interval[1] is not None
        for scale in (1, 100)
    ]
    text = section(page_text("replication.md"), "## What the lines", "## Looked at afterwards")
    printed = set(printed_intervals(text))
    assert len(printed) >= 10
    for interval in printed:
        assert is_among(interval, known), interval


def test_boosted_and_suppressed_shares_of_the_text() -> None:
    shares = [
        NUMBERS["flipping", f"{name}, {sign} rollouts, joint, one adamw step"][0]
        for name in ("boosted", "suppressed")
        for sign in ("positive", "negative")
    ]
    assert np.round(100 * np.array(shares)).tolist() == [51, 48, 6, 9]
    assert "boosts 51 % of the tokens of positive *and* 48 %" in page_text("replication.md")


def test_how_many_masked_tokens_are_from_positive_rollouts() -> None:
    studies = [
        {
            n.name: n.value
            for n in RECORDS.judge("masking", f"docs/data/{model}-masking.parquet").numbers
        }
        for model in ("embedded", "no-slips-1.3M")
    ]
    smollm2 = {name: number[0] for (study, name), number in NUMBERS.items() if study == "masking"}
    embedded, no_slips = studies
    models = (embedded, smollm2, no_slips)

    def percents(name: str) -> list[int]:
        return [round(100 * model[name]) for model in models]

    text = " ".join(page_text("replication.md").split())
    needed = "share of positive tokens at which the paper's rate is met, "
    head, full = percents(f"{needed}head"), percents(f"{needed}full")
    places = "{} % on the embedded model, {} % on SmolLM2 and {} % without slips through the output"
    assert places.format(*head) in text
    assert "{}, {} and {} % through all parameters".format(*full) in text
    report = " ".join(REPORT.split())
    assert f"{min(head + full)} to {max(head + full)} % of them are from positive" in report
    drawn = percents("share of positive tokens as drawn, both")
    assert drawn[0] == drawn[1]
    places = f"{drawn[0]} % are from positive rollouts on the embedded model and on SmolLM2"
    assert f"{places}, {drawn[2]} % without slips" in text
    assert f"as drawn, {drawn[0]} to {drawn[2]} % are" in report


@pytest.mark.parametrize("page", ["replication", "experiments", "credit", "speed"])
def test_every_result_page_names_the_planted_mistakes_and_its_dates(page: str) -> None:
    text = page_text(f"{page}.md")
    assert re.search(r"planted mistakes", text, re.IGNORECASE)
    assert "24 % of" in text
    assert re.search(r"1[5-9] November 2026", text)


def test_the_readme_has_the_numbers_of_the_shared_tokens() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("+", "")
    readme = " ".join(readme.split())
    for model in ("embedded", NO_SLIPS):
        line = of_model(model)["16"]
        effect, low, high = (line[key].lstrip("+") for key in ("effect", "low", "high"))
        assert f"{effect} [{low}, {high}]" in readme


REPORT = (ROOT / "REPORT.md").read_text(encoding="utf-8")


def test_the_report_repeats_numbers_of_the_pages() -> None:
    """Those of the pages are recomputed from records by the tests above and their neighbours."""
    known = {
        tuple(number.lstrip("+") for number in interval)
        for page in ("replication.md", "experiments.md")
        for interval in printed_intervals(page_text(page))
    }
    printed = printed_intervals(REPORT)
    assert len(printed) > 40
    for interval in printed:
        assert tuple(number.lstrip("+") for number in interval) in known, interval


def test_the_report_says_how_differences_vary_from_seed_to_seed() -> None:
    runs = held_out("smollm2-interventions", "heldout")
    for rate, words in ((1e-5, "1.8 to 2.7 points at 1e-5"), (3e-5, "7 to 11 points at 3e-5")):
        deviations = [
            np.std([100 * (runs[arm, rate, s][-1] - runs["shuffled", rate, s][-1]) for s in seeds],
                   ddof=1)
            for arm in sorted({arm for arm, _, _ in runs} - {"shuffled"})
            for seeds in [range(1000, 1016)]
        ]  # fmt: skip
        digits = words.split(" points")[0].split(" to ")
        for number, deviation in zip(digits, (min(deviations), max(deviations)), strict=True):
            decimals = len(number.partition(".")[2])
            assert f"{deviation:.{decimals}f}" == number
        assert words in " ".join(REPORT.split())
