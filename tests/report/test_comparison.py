"""Several runs on one page: the numbers of each, what differs, what is missing, what is refused."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from report.synthetic import G, P, Page, evaluation, write_run

from counterpoise.cli import main
from counterpoise.config.load import config_from_tables, to_toml
from counterpoise.errors import PoiseError
from counterpoise.report.charts.render import read_asset
from counterpoise.report.compare.compared_runs import (
    RUN_STYLES,
    distinct_names,
    join_words,
    read_compared_runs,
)
from counterpoise.report.compare.curves import batches_panel, cancellation_panel, learning_panel
from counterpoise.report.compare.numbers import TableCell, table_lines
from counterpoise.report.compare.options import find_option_differences
from counterpoise.report.compare.overlay import axis_ends
from counterpoise.report.compare.page import write_comparison_page
from counterpoise.report.pages.assemble import split_body
from counterpoise.report.panels.buffer import wasted_shares
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import RunFolder

THIN = "\u2009"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """QB and RB for six iterations, and shuffled for four; each was to make nine."""
    made = tmp_path_factory.mktemp("made")
    write_run(made / "qb_rb", iterations=6)
    write_run(made / "shuffled", iterations=4, tau=0.0, composer="shuffled")
    return [made / "qb_rb", made / "shuffled"]


def imported(path: Path, steps: tuple[int, ...] = (10, 20)) -> Path:
    """As `poise import` leaves it: rewards and lengths, and no word of updates."""
    path.mkdir(parents=True)
    known = {"schema": 1, "source": "TRL", "tokenizer": None, "notes": []}
    (path / "imported.json").write_text(json.dumps(known))
    lines = [
        {
            "schema": 1, "iteration": step, "success": step / 100, "reward": step / 100,
            "mixed_groups": 0.5, "rollouts": 32, "groups": 8, "rollout_tokens": 320,
            "response_length": 10.0,
        }
        for step in steps
    ]  # fmt: skip
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def with_options(run: Path, to: Path, **sections: dict[str, Any]) -> Path:
    """The same run, told otherwise."""
    shutil.copytree(run, to)
    config = RunFolder(run).read_config()
    told = {name: vars(getattr(config, name)) | changed for name, changed in sections.items()}
    others = {name: vars(getattr(config, name)) for name in ("loop", "sample", "balance", "batch")}
    (to / "config.toml").write_text(to_toml(config_from_tables(others | told)))
    return to


def charts(page: Page) -> dict[str, dict[str, Any]]:
    """Title -> specification, in the order of the page."""
    found = {}
    for text in page.json:
        spec = json.loads(text)
        if "description" in spec:
            found[re.split(r" of \d runs", spec["description"])[0]] = spec
    return found


def records(spec: dict[str, Any]) -> list[dict[str, Any]]:
    (rows,) = (rows for rows in spec["datasets"].values() if rows and "run" in rows[0])
    return rows


def table(folders: list[Path]) -> dict[str, list[TableCell | None]]:
    return {line.label: line.cells for line in table_lines(read_compared_runs(folders))}


# -- numbers --------------------------------------------------------------------------------------


def test_the_table_has_the_numbers_of_every_run(runs: list[Path]):
    a, b = (RunData.read(run).metrics for run in runs)
    found = table(runs)
    before = TableCell(f"25.0{THIN}%", (f"15.0 to 35.0{THIN}%", "before training"))
    assert found["held-out success, first evaluation"] == [before, before]
    assert found["held-out success, last evaluation"] == [
        TableCell(f"50.0{THIN}%", (f"40.0 to 60.0{THIN}%", f"after iteration {last}"))
        for last in (6, 4)
    ]
    assert found["held-out problems"] == [TableCell("16", ("4 responses each",))] * 2
    assert found["iterations"] == [TableCell("6", ("of 9",)), TableCell("4", ("of 9",))]
    assert (
        found["rollouts sampled"]
        == [TableCell("144"), TableCell("96")]
        == [TableCell(str(n * P * G)) for n in (6, 4)]
    )
    assert found["optimizer steps"] == [
        TableCell(str(sum(r["steps"] for r in of))) for of in (a, b)
    ]
    assert found["optimizer steps"][1] == TableCell("8")  # without RB every iteration has two
    assert found["iterations with an update"][1] == TableCell("4")
    tokens = [sum(r["rollout_tokens"] for r in of) for of in (a, b)]
    assert found["tokens sampled"] == [TableCell(str(n)) for n in tokens]
    assert found["wall time"] == [TableCell("0 s"), TableCell("0 s")]


def test_wasted_rollouts_are_those_no_update_learns_from(runs: list[Path]):
    """Of prompt p, p + now - 3 of four rollouts are right: three groups of six have no spread."""
    shares = wasted_shares(RunData.read(runs[1]))
    assert shares == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5)]
    assert table(runs)["wasted rollouts"][1] == TableCell(f"50.0{THIN}%")
    balanced = RunData.read(runs[0])
    last = balanced.metrics[-1]
    silent = sum(record["rows_without_signal"] for record in balanced.metrics)
    lost = silent + last["dropped_surplus"] + last["dropped_aged"]
    assert wasted_shares(balanced)[-1] == (6, lost / 144)
    waiting = last["buffer_positive"] + last["buffer_negative"]
    assert lost + waiting + sum(r["batch_rows"] for r in balanced.metrics) == 144


def test_a_curve_has_every_iteration_at_what_it_had_cost(runs: list[Path], tmp_path: Path):
    drawn = charts(Page(write_comparison_page(runs, tmp_path / "page.html")))
    wanted = []
    for place, run in enumerate(runs):
        steps = rollouts = 0
        for r in RunData.read(run).metrics:
            steps, rollouts = steps + r["steps"], rollouts + P * G
            cost = {"iteration": r["iteration"], "rollouts": rollouts, "steps": steps}
            wanted.append({"run": place, **cost, "value": r["success"]})
    found = [{k: r[k] for k in wanted[0]} for r in records(drawn["Training success"])]
    assert found == wanted
    held = records(drawn["Held-out success"])
    assert [(r["run"], r["rollouts"], r["value"], r["low"], r["high"]) for r in held] == [
        (0, 0, 0.25, 0.15, 0.35), (0, 144, 0.5, 0.4, 0.6),
        (1, 0, 0.25, 0.15, 0.35), (1, 96, 0.5, 0.4, 0.6),
    ]  # fmt: skip
    params = {p["name"]: p["value"] for p in drawn["Training success"]["params"]}
    assert params["ends"] == {"rollouts": 144, "steps": 8, "iteration": 6}
    assert params["along"] == "rollouts"
    assert params["shown"] == [True, True]


def test_the_quantities_of_a_run_s_own_panels_are_laid_over_each_other(
    runs: list[Path], tmp_path: Path
):
    page = Page(write_comparison_page(runs, tmp_path / "page.html"))
    assert [*charts(page)] == [
        "Held-out success", "Training success", "Mixed groups", "Entropy", "Response length",
        "Gradient norm", "Clipped tokens", "Importance ratio", "Sampler mismatch",
        "Positive share", "Wasted rollouts", "Time of an iteration",
        "Moved against their advantage",
        "Cancelled push", "Push from the token itself", "Push from equal tokens",
        "Output layer predicts the direction",
        "Tokens in shared prefixes", "Advantage left on shared prefixes",
        "Right rollouts that did not rise", "Side effect on shared contexts",
        "Drift between right answers",
    ]  # fmt: skip
    assert page.sections == ["options", "learning", "batches", "cancellation"]
    assert "Missing" not in page.text
    residual = records(charts(page)["Advantage left on shared prefixes"])
    assert {r["value"] for r in residual} == {0.0}  # 1e-9 is what rounding left


def test_a_long_run_is_drawn_as_its_moving_average_and_itself_faintly(tmp_path: Path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b")]
    first = RunData.read(runs[0]).metrics[0]
    lines = [
        {**first, "iteration": i, "success": float(i % 2), "reward": float(i % 2)}
        for i in range(1, 41)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (runs[0] / "metrics.jsonl").write_text(text)
    page = Page(write_comparison_page(runs))
    rows = [r for r in records(charts(page)["Training success"]) if r["run"] == 0]
    assert rows[0]["mean"] == 2 / 3  # 1 0 1: five iterations, cut at the end
    assert [r["mean"] for r in rows[2:4]] == [3 / 5, 2 / 5]
    assert "a centred mean over about an eighth of the run" in page.text


# -- options --------------------------------------------------------------------------------------


def test_only_options_that_differ_are_shown(runs: list[Path], tmp_path: Path):
    differ = find_option_differences(read_compared_runs(runs))
    assert [(option.name, option.values) for option in differ] == [
        ("balance.tau", ["0.25", "0.0"]),
        ("batch.composer", ['"grouped"', '"shuffled"']),
    ]
    text = " ".join(Page(write_comparison_page(runs, tmp_path / "page.html")).text.split())
    assert "They differ in balance.tau and batch.composer." in text
    assert "Options in which the runs differ; all others are equal." in text


def test_functions_of_the_users_are_told_apart(runs: list[Path], tmp_path: Path):
    """By the file's name; by what is stored where two runs had other files of one name."""
    names = [f"/home/ana/{file}.py:rule@{digit * 16}" for file, digit in (("a", "1"), ("b", "2"))]
    again = "/home/ana/a.py:rule@3333333333333333"
    first, second, third = (
        with_options(runs[0], tmp_path / f"run{i}", batch={"composer": name})
        for i, name in enumerate([*names, again])
    )
    (option,) = find_option_differences(read_compared_runs([first, second]))
    assert option.values == ['"a.py:rule"', '"b.py:rule"']
    (option,) = find_option_differences(read_compared_runs([runs[0], first, first.parent / "run1"]))
    assert option.values == ['"grouped"', '"a.py:rule"', '"b.py:rule"']
    (option,) = find_option_differences(read_compared_runs([first, third]))
    assert option.values == [f'"{names[0]}"', f'"{again}"']


def test_runs_of_one_design_are_not_averaged(runs: list[Path], tmp_path: Path):
    other = with_options(runs[0], tmp_path / "other", loop={"seed": 7})
    page = Page(write_comparison_page([runs[0], other], tmp_path / "page.html"))
    text = " ".join(page.text.split())
    assert (
        "They differ only in their seed; each has a line of its own; they are not averaged." in text
    )
    assert "poise experiment trains each configuration with several seeds" in text
    assert {r["run"] for r in records(charts(page)["Entropy"])} == {0, 1}


def test_equal_options_and_another_engine(runs: list[Path], tmp_path: Path):
    same = tmp_path / "same"
    shutil.copytree(runs[0], same)
    text = Page(write_comparison_page([runs[0], same], tmp_path / "page.html")).text
    assert text.count("All options are equal.") == 2
    (same / "engine.json").write_text('{"schema": 1, "engine": "trl", "version": "1.16.0"}')
    (engine,) = find_option_differences(read_compared_runs([runs[0], same]))
    assert (engine.name, engine.values) == ("--engine", ["native", "trl"])


# -- held-out -------------------------------------------------------------------------------------


def test_success_is_compared_where_it_was_sampled_alike(tmp_path: Path):
    """One run judged as in training, without saying so; the other so, and at 0.6/0.95."""
    runs = [write_run(tmp_path / name, evaluations=False) for name in "ab"]
    alike, other = ({"temperature": t, "top_p": p} for t, p in ((1.0, 1.0), (0.6, 0.95)))
    RunFolder(runs[0]).append("evaluations", evaluation(4, 0.5))
    for setting, mean in ((other, 0.7), (alike, 0.4)):
        RunFolder(runs[1]).append("evaluations", evaluation(4, mean) | setting)
    found = table(runs)
    first = [cell and cell.value for cell in found["held-out success at 1/1, first evaluation"]]
    assert first == [f"50.0{THIN}%", f"40.0{THIN}%"]
    second = found["held-out success at 0.6/0.95, first evaluation"]
    assert second[0] is None
    assert second[1] == TableCell(f"70.0{THIN}%", (f"60.0 to 80.0{THIN}%", "after iteration 4"))
    page = Page(write_comparison_page(runs))
    drawn = charts(page)
    assert [r["value"] for r in records(drawn["Held-out success at 1/1"])] == [0.5, 0.4]
    assert [r["run"] for r in records(drawn["Held-out success at 0.6/0.95"])] == [1]
    assert "Missing in a." in page.text


def test_other_problems_are_said_to_be_others(runs: list[Path], tmp_path: Path):
    said = "Not all runs were evaluated on the same problems"
    assert said not in Page(write_comparison_page(runs, tmp_path / "page.html")).text
    fewer = with_options(runs[0], tmp_path / "fewer", evaluate={"prompts": 3})
    assert said in Page(write_comparison_page([runs[0], fewer], tmp_path / "page.html")).text


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (("math", "math"), True),
        (("math", "exact"), False),
        (("math", f"/a/mine.py:score@{'0' * 16}"), False),
        ((f"/a/mine.py:score@{'0' * 16}", f"/b/mine.py:score@{'0' * 16}"), True),
        ((f"/a/mine.py:score@{'0' * 16}", f"/a/mine.py:other@{'0' * 16}"), False),
        ((f"/a/mine.py:score@{'0' * 16}", f"/a/mine.py:score@{'1' * 16}"), False),
    ],
    ids=["one", "two of ours", "ours and own", "a copy", "another function", "an edited file"],
)
def test_another_reward_is_said_to_be_another(
    names: tuple[str, str], same: bool, runs: list[Path], tmp_path: Path
):
    """In the sentence at the top, over the bars, and under both curves of success."""
    told = [
        with_options(runs[0], tmp_path / run, verify={"name": name})
        for run, name in zip("ab", names, strict=True)
    ]
    text = " ".join(Page(write_comparison_page(told, tmp_path / "page.html")).text.split())
    said = "They were not evaluated with the same reward function (verify.name), so their success "
    assert text.count(said + "rates cannot be compared.") == (not same)
    assert text.count("with 95 % intervals, not all with the same reward function") == (not same)
    under = "Not all runs were evaluated with the same reward function: verify.name differs."
    assert text.count(under) == (0 if same else 2)


# -- what is missing ------------------------------------------------------------------------------


def test_an_imported_run_is_drawn_as_far_as_it_tells(runs: list[Path], tmp_path: Path):
    theirs = imported(tmp_path / "theirs")
    page = Page(write_comparison_page([runs[0], theirs], tmp_path / "page.html"))
    text = " ".join(page.text.split())
    found = table([runs[0], theirs])
    assert found["rollouts sampled"] == [TableCell("144"), TableCell("64")]
    assert found["iterations"][1] == TableCell("2", ("imported from TRL",))
    unknown = (
        "optimizer steps",
        "wasted rollouts",
        "wall time",
        "held-out success, first evaluation",
    )
    assert all(found[label][1] is None for label in unknown)
    drawn = charts(page)
    rows = [r for r in records(drawn["Training success"]) if r["run"] == 1]
    assert [(r["iteration"], r["rollouts"], r["steps"], r["value"]) for r in rows] == [
        (10, 32, None, 0.1), (20, 64, None, 0.2),
    ]  # fmt: skip
    assert {r["run"] for r in records(drawn["Entropy"])} == {0}
    assert "2 runs; theirs was imported from another trainer." in text
    assert "Mean over the trained tokens, in nats. Missing in theirs." in text
    assert "Optimizer steps are not known for theirs." in text
    assert "The options of theirs are unknown: there is nothing" in text


def test_a_run_that_the_adapter_planned_tells_its_steps(tmp_path: Path):
    ours, theirs = write_run(tmp_path / "ours"), write_run(tmp_path / "theirs")
    (theirs / "config.toml").unlink()
    (theirs / "imported.json").write_text(json.dumps({"source": "TRL 1.16.0", "notes": []}))
    found, own = table([ours, theirs]), table([ours])
    assert found["iterations"][1] == TableCell("4", ("made by TRL 1.16.0",))
    for label in ("iterations with an update", "optimizer steps", "wasted rollouts"):
        assert found[label] == [own[label][0]] * 2
    compared = read_compared_runs([ours, theirs])
    assert compared[0].costs == compared[1].costs
    page = Page(write_comparison_page([ours, theirs], tmp_path / "page.html"))
    assert "Optimizer steps are not known" not in page.text


def test_two_imported_runs_have_no_axis_of_steps(tmp_path: Path):
    runs = [imported(tmp_path / "a"), imported(tmp_path / "b", (1,))]
    assert axis_ends(read_compared_runs(runs)) == {"rollouts": 64, "iteration": 20}
    page = Page(write_comparison_page(runs))
    assert "optimizer steps" not in page.text.partition("Learning")[0]
    assert "No run has values for this: positive share, wasted rollouts" in page.text
    told = "Not drawn, because no run has values: held-out success, entropy, gradient norm"
    assert told in page.text


def test_runs_without_a_finished_iteration(runs: list[Path], tmp_path: Path):
    empty = write_run(tmp_path / "empty", iterations=0)
    found = table([runs[0], empty])
    assert found["iterations"][1] == TableCell("0", ("of 9",))
    assert found["rollouts sampled"] == [TableCell("144"), None]
    page = Page(write_comparison_page([empty, runs[0]], tmp_path / "page.html"))
    assert "Missing in empty." in page.text
    both = [empty, write_run(tmp_path / "bare", iterations=0, evaluations=False)]
    page = Page(write_comparison_page(both, tmp_path / "page.html"))
    assert "No finished iteration." in page.text
    assert page.sections == ["options"]


def test_without_the_monitor_the_page_says_what_is_absent(tmp_path: Path):
    runs = [write_run(tmp_path / name, microscope="off") for name in "ab"]
    panel = cancellation_panel(compared := read_compared_runs(runs), axis_ends(compared))
    assert panel is not None
    assert panel.body == Markup()
    assert panel.caption.startswith("No run has values for this: moved against their advantage,")


# -- the page -------------------------------------------------------------------------------------


def test_equal_names_are_told_apart():
    paths = [Path("/o/x/run"), Path("/o/y/run"), Path("/o/other"), Path("/o/run")]
    assert distinct_names(paths) == ["x/run", "y/run", "other", "o/run"]
    assert distinct_names([Path("/p/b/run"), Path("/q/b/run")]) == ["p/b/run", "q/b/run"]
    assert distinct_names([Path("/run"), Path("/a/run\u202e")]) == ["run", "run⟨U+202E⟩"]
    assert join_words(["a"]) == "a"
    assert join_words(["a", "b", "c"]) == "a, b and c"


def test_where_the_page_is_written(runs: list[Path], tmp_path: Path, capsys: Any, monkeypatch: Any):
    def poise(*words: Path | str) -> str:
        monkeypatch.setattr(sys, "argv", ["poise", "report", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
        return capsys.readouterr().out.strip()

    page = runs[0] / "comparison.html"
    assert poise(*runs) == str(page)
    assert "<h1><bdi>qb_rb and shuffled</bdi></h1>" in page.read_text(encoding="utf-8")
    assert poise(*runs, "--out", tmp_path / "page.html") == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == page.read_bytes()  # the same, always
    assert poise(runs[1]) == str(runs[1] / "report.html")  # one run has its own page


def test_the_page_asks_for_nothing_and_its_charts_are_valid(runs: list[Path], tmp_path: Path):
    page = Page(write_comparison_page(runs, tmp_path / "page.html"))
    for name, value in page.attributes:
        assert "//" not in value, (name, value)
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), (name, value)
    assert "url(" not in page.styles
    compared = read_compared_runs(runs)
    for panel in (
        of(compared, axis_ends(compared))
        for of in (learning_panel, batches_panel, cancellation_panel)
    ):
        assert panel is not None
        for figure in split_body(panel)[1]:
            figure.chart.to_dict(validate=True)


def test_numbers_that_are_not_finite_are_passed_over(tmp_path: Path):
    runs = [write_run(tmp_path / "a", tau=0.0), write_run(tmp_path / "b", tau=0.0)]
    last = RunData.read(runs[0]).metrics[-1]
    RunFolder(runs[0]).append("metrics", {**last, "iteration": 5, "grad_norm": float("nan")})
    rows = records(charts(Page(write_comparison_page(runs)))["Gradient norm"])
    assert [r["iteration"] for r in rows] == [1, 2, 3, 4, 1, 2, 3, 4]


# -- what is refused ------------------------------------------------------------------------------


def test_faults_are_one_line_and_exit_code_2(
    runs: list[Path], tmp_path: Path, capsys: Any, monkeypatch: Any
):
    link = tmp_path / "link"
    link.symlink_to(runs[0])
    (tmp_path / "evaluation.json").write_text("{}")
    seven = [runs[0], *(tmp_path / str(i) for i in range(6))]
    for words, said in (
        ([runs[0], runs[0]], f"{runs[0]} is named twice: give each run once"),
        ([runs[0], link], f"{link} is the same run as {runs[0]}: give each run once"),
        ([runs[0], tmp_path / "no"], f"{tmp_path / 'no'} does not exist: name the folder of a run"),
        (
            [runs[0].parent, runs[1]],
            f"{runs[0].parent} holds no run: config.toml is missing; {runs[0]} holds one",
        ),
        (
            [runs[0], tmp_path],
            f"{tmp_path} is not a run, and only runs can be compared: poise report {tmp_path} "
            "shows it by itself",
        ),
        (
            seven,
            "7 runs are too many for one page: give at most 6; poise experiment compares arms over "
            "many seeds",
        ),
        (
            [*runs, "--out", tmp_path],
            f"{tmp_path} cannot be written: Is a directory; choose another --out",
        ),
        ([], "missing argument 'FOLDER' (see poise report --help)"),
    ):
        monkeypatch.setattr(sys, "argv", ["poise", "report", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", f"poise: {said}\n")


def test_a_damaged_run_is_named(runs: list[Path], tmp_path: Path):
    broken = imported(tmp_path / "broken")
    (broken / "imported.json").write_text("{")
    with pytest.raises(PoiseError, match=r"imported\.json is damaged: .*; import the run again"):
        write_comparison_page([runs[0], broken])


# -- colours --------------------------------------------------------------------------------------

# What a colour is to eyes without one kind of cone, in linear RGB: Machado, Oliveira and Fernandes,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
EYES = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def lab(colour: str, eyes: str) -> np.ndarray:
    """CIE L*a*b* of #rrggbb as those eyes see it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(EYES[eyes]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_runs_are_told_apart_by_every_eye(theme: int):
    """By colour where the dash is the same; on paper by a contrast of 2 to 1 at least."""
    blocks = re.findall(r":root \{(.*?)\}", str(read_asset("page.css")), re.DOTALL)
    palette = dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", blocks[theme]))
    for a, b in itertools.combinations(RUN_STYLES, 2):
        assert a.shape != b.shape
        for eyes in EYES if a.dash == b.dash else ():
            apart = np.linalg.norm(lab(palette[a.colour], eyes) - lab(palette[b.colour], eyes))
            assert apart > 20, (a.colour, b.colour, eyes)
    for look in RUN_STYLES:
        lightness = lab(palette[look.colour], "all")[0] - lab(palette["paper"], "all")[0]
        assert abs(lightness) > 30, look.colour
