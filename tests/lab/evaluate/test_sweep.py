"""The paper's Table 4 leads to the paper's choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import HEADER, judged

from counterpoise.config.evaluation_settings import EvaluationSetting, parse_grid
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.result_files import ResultFile
from counterpoise.lab.evaluate.summary import summarise
from counterpoise.lab.evaluate.sweep import TEMPERATURES, TOP_PS

BENCHMARKS = ("AIME24", "AIME25", "AMC", "Math", "Olymp.", "Minerva")
TABLE_4 = {  # per cent, and the average as printed
    ("qwen3-4b-base", 1.0, 0.7): ((10.6, 6.7, 36.4, 62.8, 33.4, 24.2), 29.0),
    ("qwen3-4b-base", 0.6, 0.7): ((10.0, 8.5, 41.7, 73.6, 36.7, 26.1), 32.8),
    ("qwen3-4b-base", 1.0, 0.95): ((6.6, 3.6, 27.1, 49.0, 23.8, 17.6), 21.3),
    ("qwen3-4b-base", 0.6, 0.95): ((10.2, 6.6, 39.9, 64.8, 34.5, 27.9), 30.7),
    ("hf-4b-step100", 1.0, 0.7): ((16.0, 14.1, 49.5, 82.6, 46.2, 37.5), 41.0),
    ("hf-4b-step100", 0.6, 0.7): ((14.2, 12.3, 49.9, 81.0, 46.9, 37.1), 40.2),
    ("hf-4b-step100", 1.0, 0.95): ((16.8, 13.9, 49.4, 79.8, 44.4, 37.5), 40.3),
    ("hf-4b-step100", 0.6, 0.95): ((15.8, 14.8, 50.6, 82.4, 46.9, 36.7), 41.2),
}


def made_up(model: str, temperature: float, top_p: float, name: str, percent: float) -> ResultFile:
    """A thousand problems of which as many are solved as the table says."""
    header = replace(
        HEADER, model=model, temperature=temperature, top_p=top_p, benchmark=name, title=name,
        problems=1000, samples=1,
    )  # fmt: skip
    cell = ResultFile(Path("nowhere"), header)
    solved = round(10 * percent)
    cell.judged = {str(i): judged(str(i), [float(i < solved)]) for i in range(1000)}
    return cell


def test_the_paper_s_table_gives_the_paper_s_choice() -> None:
    cells = [
        made_up(*key, name, percent)
        for key, (row, _) in TABLE_4.items()
        for name, percent in zip(BENCHMARKS, row, strict=True)
    ]
    summary = summarise(cells)
    for line in summary.lines:
        printed = TABLE_4[line.model, line.setting.temperature, line.setting.top_p][1]
        assert line.average is not None
        assert 100 * line.average.mean == pytest.approx(printed, abs=0.06)
    base, aligned = summary.choices
    assert aligned.best == EvaluationSetting(0.6, 0.95)  # what the paper adopts
    assert base.best == EvaluationSetting(0.6, 0.7)
    grid = {(t, p) for t in TEMPERATURES for p in TOP_PS}
    assert grid == {key[1:] for key in TABLE_4}  # --sweep takes these four by default


def test_settings_are_compared_on_what_all_of_them_have() -> None:
    """0.6 also has a hard benchmark, 1.0 has only some of the easy one's problems."""
    files = [
        made_up("m", 0.6, 0.95, "easy", 80.0),
        made_up("m", 0.6, 0.95, "hard", 0.0),
        made_up("m", 1.0, 0.95, "easy", 50.0),
    ]
    files[-1].judged = dict(list(files[-1].judged.items())[:900])
    (choice,) = summarise(files).choices
    assert (choice.best, choice.benchmarks) == (EvaluationSetting(0.6, 0.95), ("easy",))
    assert choice.mean == pytest.approx(800 / 900)
    assert choice.differences[EvaluationSetting(1.0, 0.95)].mean == pytest.approx(-300 / 900)
    assert "on the problems of easy that all settings have), ahead of the other" in str(choice)
    without_common_problems = summarise(files[1:])
    assert without_common_problems.choices == []
    assert without_common_problems.has_sweep  # the lines still show their settings


@pytest.mark.parametrize("text", ["0", "-1", "a", "0.6,0.6", "0.6,,1", "nan", "inf"])
def test_what_cannot_be_sampled_at(text: str) -> None:
    with pytest.raises(
        PoiseError, match=r"--temperature .*: give distinct numbers from 0.001 to 1000"
    ):
        parse_grid("--temperature", text, (0.6,))
