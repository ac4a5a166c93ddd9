"""avg@k, pass@k, maj@k, averages, differences and the choice of a sweep: closed forms."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import cell, evaluation
from rich.console import Console

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.lab.evaluate.page import write_evaluation_page
from counterpoise.lab.evaluate.result_files import read_result_files
from counterpoise.lab.evaluate.score import score_benchmark
from counterpoise.lab.evaluate.summary import summarise, write_summary
from counterpoise.lab.evaluate.table import print_summary
from counterpoise.statistics.prompt_intervals import (
    average_estimates,
    mean_estimate,
    paired_difference,
    share_estimate,
)


def test_one_benchmark_in_closed_form(tmp_path: Path) -> None:
    """c = 4, 1, 0, 3 of 4: avg@4 = 1/2; pass@2 = 1, 1/2, 0, 1; maj@4 = 1, 0, 0, 1."""
    rewards = {"p1": [1, 1, 1, 1], "p2": [0, 1, 0, 0], "p3": [0, 0, 0, 0], "p4": [1, 0, 1, 1]}
    found = score_benchmark(cell(tmp_path, rewards))
    assert found is not None
    assert found.average == share_estimate([1, 0.25, 0, 0.75])
    assert {k: e.mean for k, e in found.pass_at.items()} == {1: 0.5, 2: 0.625, 4: 0.75}
    # maj@2: a pair of one right and one wrong sample is a tie
    assert {k: e.mean for k, e in found.maj_at.items()} == {1: 0.5, 2: 0.5, 4: 0.5}
    assert (found.truncated, found.unboxed, found.mean_tokens) == (0.5, 0.0, 25.0)
    assert (found.measure, found.is_complete, found.problems) == ("avg@4", True, 4)
    assert found.pass_at[1] == found.average


def test_one_sample_is_pass_at_1(tmp_path: Path) -> None:
    found = score_benchmark(cell(tmp_path, {"p1": [1], "p2": [0], "p3": [1]}))
    assert found is not None
    assert found.measure == "pass@1"
    assert found.average.mean == pytest.approx(2 / 3)
    assert list(found.pass_at) == [1]


def test_a_reward_above_zero_is_right_whatever_its_size(tmp_path: Path) -> None:
    graded = score_benchmark(cell(tmp_path, {"p1": [0.2, -1.0], "p2": [3.0, 0.5]}))
    plain = score_benchmark(cell(tmp_path, {"p1": [1, 0], "p2": [1, 1]}, model="b"))
    assert graded is not None
    assert plain is not None
    assert graded.average == plain.average == share_estimate([0.5, 1])


def test_graded_rewards_are_compared_by_their_mean(tmp_path: Path) -> None:
    """Means 0.5, 2, -1 against 0, 1, -1: 0.5 against 0. A problem without a reward is left out."""
    none = math.nan
    results = {
        "a": {"1": [0.0, 0.0], "2": [1.0, 1.0], "3": [-1.0, none], "4": [none, none]},
        "b": {"1": [0.2, 0.8], "2": [3.0, 1.0], "3": [-1.0, -1.0], "4": [none, 7.0]},
    }
    files = [cell(tmp_path, rewards, model=model) for model, rewards in results.items()]
    evaluation(tmp_path, files)
    summary = summarise(read_result_files(tmp_path))  # through the disk, nan included
    first, second = (line.scores["aime24"] for line in summary.lines)
    assert first.average == mean_estimate([0.0, 1.0, -1.0])
    assert (first.problems, first.unscored, first.is_complete) == (3, 1, True)
    assert second.average.mean == pytest.approx((0.5 + 2 - 1 + 7) / 4)
    assert (first.measure, first.pass_at, first.maj_at) == ("mean reward", {}, {})
    assert summary.lines[1].differences["aime24"] == mean_estimate([0.5, 1.0, 0.0])
    assert summary.lines[1].pass_differences == {}
    shown = io.StringIO()
    print_summary(Console(file=shown, width=120), summary)
    assert "0.000" in shown.getvalue()
    assert "-2.484 to 2.484" in shown.getvalue()
    assert "pass@n" not in shown.getvalue()
    page = write_evaluation_page(tmp_path).read_text(encoding="utf-8")
    assert "Mean reward, with the" in page
    assert "pass@n" not in page
    assert "+0.500" in page


def test_one_graded_problem_has_no_interval(tmp_path: Path) -> None:
    files = [cell(tmp_path, {"1": [mean]}, model=model) for model, mean in (("a", 0.5), ("b", 2.0))]
    evaluation(tmp_path, files)
    summary = summarise(read_result_files(tmp_path))
    data = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert [(score["mean"], score["low"], score["high"]) for score in data["scores"]] == [
        (0.5, None, None),
        (2.0, None, None),
    ]
    assert (data["against_first"][0]["difference"], data["against_first"][0]["low"]) == (1.5, None)
    shown = io.StringIO()
    print_summary(Console(file=shown, width=120), summary)
    assert shown.getvalue().count("not known") == 3
    page = write_evaluation_page(tmp_path, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("not known") == 3
    assert "inf" not in shown.getvalue()


def test_an_unfinished_file_says_so(tmp_path: Path) -> None:
    found = score_benchmark(cell(tmp_path, {"p1": [1, 0]}, problems=30))
    assert found is not None
    assert (found.is_complete, found.problems, found.header.problems) == (False, 1, 30)
    assert score_benchmark(cell(tmp_path, {"p1": [1]}, model="b")) is not None


def test_averages_and_differences(tmp_path: Path) -> None:
    results = {
        ("a", "x"): {"1": [1, 0], "2": [0, 0], "3": [1, 1]},
        ("a", "y"): {"1": [0], "2": [1]},
        ("b", "x"): {"3": [1, 1], "1": [1, 1], "2": [1, 0]},  # in another order: paired by id
        ("b", "y"): {"1": [1], "2": [1]},
    }
    cells = [cell(tmp_path, r, model=m, benchmark=b) for (m, b), r in results.items()]
    summary = summarise(cells)
    first, second = summary.lines
    assert first.average == average_estimates([share_estimate([0.5, 0, 1]), share_estimate([0, 1])])
    assert (first.differences, first.average_difference) == ({}, None)
    assert second.differences["x"] == paired_difference([1, 0.5, 1], [0.5, 0, 1])
    assert second.differences["x"].mean == pytest.approx(1 / 3)
    assert second.average_difference is not None
    assert second.average_difference.mean == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert not summary.has_sweep
    # of x, a solved problems 1 and 3 at least once, b all three; y was asked once
    assert second.pass_differences == {"x": paired_difference([1, 1, 1], [1, 0, 1])}


def test_differences_of_files_that_were_not_made_alike_say_so(tmp_path: Path) -> None:
    """a has one sample and 512 tokens, b four samples and 8192, of other problems in part."""
    files = [
        cell(tmp_path, {"1": [0], "2": [1], "3": [0]}, model="a", max_new_tokens=512),
        cell(tmp_path, {"1": [0, 1, 0, 0], "2": [1, 1, 1, 1]}, model="b", max_new_tokens=8192),
        cell(tmp_path, {"1": [1], "2": [1], "3": [1]}, model="c", max_new_tokens=512),
        cell(tmp_path, {"3": [1]}, model="d", max_new_tokens=512),
        cell(tmp_path, {"1": [1]}, model="e", max_new_tokens=512, sampler="vllm", dtype="bfloat16"),
    ]
    problem = files[2].judged["3"]
    files[2].judged["3"] = replace(problem, problem="another problem with the same id")
    files[3].judged["3"] = files[2].judged["3"]
    _, second, third, fourth, fifth = summarise(files).lines
    assert second.differences["aime24"].mean == pytest.approx(0.125)
    assert second.pass_differences == {}  # pass@4 minus pass@1 is no difference of models
    assert second.unequal_settings == {"aime24": {"samples": (4, 1), "max_new_tokens": (8192, 512)}}
    assert third.differences["aime24"] == paired_difference([1, 1], [0, 1])
    assert third.unequal_settings == fourth.differences == {}
    unequal = {"sampler": ("vllm", "native"), "dtype": ("bfloat16", "float32")}
    assert fifth.unequal_settings == {"aime24": unequal}
    shown = io.StringIO()
    print_summary(Console(file=shown, width=120), summarise(files))
    assert (
        "b, aime24: evaluated differently from a (samples 4 instead of 1, max_new_tokens 8192 "
        "instead of 512)"
    ) in shown.getvalue()


def test_the_choice_of_a_sweep(tmp_path: Path) -> None:
    """Table 4's rule: the highest average on the last model; what cannot be told apart is said."""
    cells = []
    for model, best in (("base", 0.7), ("aligned", 0.95)):
        for temperature in (1.0, 0.6):
            for top_p in (0.7, 0.95):
                right = 30 if (temperature, top_p) == (0.6, best) else 29 if top_p == best else 5
                rewards = {str(i): [float(i < right)] for i in range(40)}
                at = {"model": model, "temperature": temperature, "top_p": top_p}
                cells.append(cell(tmp_path, rewards, **at))
    summary = write_summary(evaluation(tmp_path, cells))
    base, aligned = summary.choices
    assert (base.best, aligned.best) == (EvaluationSetting(0.6, 0.7), EvaluationSetting(0.6, 0.95))
    assert aligned.mean == 0.75
    assert aligned.indistinguishable() == [
        EvaluationSetting(1.0, 0.95)
    ]  # one problem of forty apart
    assert "not distinguishable from 1/0.95" in str(aligned)
    told = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(summary.to_json()))
    assert told["sweep"][-1]["not_told_apart"] == [{"temperature": 1.0, "top_p": 0.95}]
    assert len(told["scores"]) == 8
