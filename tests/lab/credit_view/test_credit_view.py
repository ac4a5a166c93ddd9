"""`poise credit`: the weights it shows are those a run trained with; the command and its page."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hosts.importing.foreign import prime_record, trl_file, write_lines
from report.synthetic import PIECES, Page, write_run

from counterpoise.cli import main
from counterpoise.cli.token_view import read_token_view
from counterpoise.config.load import load_config
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.credit_view.charts import histogram_bins
from counterpoise.lab.credit_view.page import write_credit_page
from counterpoise.lab.credit_view.result import compare_weightings
from counterpoise.lab.credit_view.selection import WeightingChoice, parse_weightings
from counterpoise.lab.credit_view.stored_iteration import read_stored_iteration
from counterpoise.lab.credit_view.token_strips import tokens_panel
from counterpoise.loop import train
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import read_trace
from counterpoise.store.credit_tables import CREDIT, credit_file, read_weights

SETS = [
    "loop.iterations=4", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[2]",
    "task.size=40", "task.heldout=4", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=48", "balance.tau=0", "balance.target=0", "batch.steps=1",
    "update.lr=1e-3", "evaluate.prompts=0", "credit.weights='high_entropy'",
    "credit.settings=['share=0.3']",
]  # fmt: skip
NO_POLICY = "gtpo:penalty=0:ceiling=inf"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four iterations; the weights after 0, 3 and 4 are there."""
    return train(load_config("demo", SETS), tmp_path_factory.mktemp("made") / "run").path


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder without a model's passes: every response begins alike."""
    return write_run(tmp_path_factory.mktemp("made") / "run", tau=0.0)


def poise(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", "credit", *map(str, arguments)])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


# -- what a run trained with --------------------------------------------------------------------


def test_the_weights_are_those_the_run_trained_with(run: Path) -> None:
    """Iteration 4 was drawn by the checkpoint after 3: A w is what the loss used, bit for bit."""
    found = compare_weightings("high_entropy", run)  # without settings: the run's own
    assert found.source.iteration == 4
    assert found.weightings[0].choice == WeightingChoice("high_entropy", ("share=0.3",))
    assert found.scored_by == "weights after iteration 3, which sampled them"
    assert found.mean_logprob_error is not None
    assert found.mean_logprob_error < 1e-4
    plan = next(p for p in RunData.read(run).plans if p["iteration"] == 4)
    trace = read_trace(run, 4)
    place = {
        (plan["groups"][group], index): row
        for row, (group, index) in enumerate(zip(plan["group"], plan["index"], strict=True))
    }
    assert len(found.rows) == len(trace.row_spans) > 0
    for row, w_T in zip(found.rows, found.weightings[0].weights, strict=True):
        trained = trace.row_columns(place[row.group, row.index])["advantage"]
        np.testing.assert_array_equal((row.advantage * w_T).astype(np.float32), trained)


def test_an_iteration_whose_weights_are_gone_is_read_by_the_nearest(run: Path) -> None:
    found = compare_weightings("high_entropy", run, iteration=2)  # wants 1; 0, 3 and 4 are there
    assert found.scored_by is not None
    assert found.scored_by.startswith("weights before training, the nearest that were kept")
    assert found.mean_logprob_error is not None
    assert found.mean_logprob_error > 1e-3
    assert "log-probabilities differ from the sampler's by" in found.scored_by


def test_several_at_once_are_as_each_alone(run: Path) -> None:
    both = compare_weightings("cancellation,high_entropy:share=0.5,cancellation", run)
    assert [one.choice.label for one in both.weightings] == [
        "cancellation",
        "high_entropy share=0.5",
    ]
    alone = compare_weightings("high_entropy", run, settings=("share=0.5",)).weightings[0]
    assert alone.statistics == both.weightings[1].statistics
    kept = alone.statistics.ones
    assert kept == pytest.approx(0.5, abs=0.02)
    assert alone.statistics.zeros == pytest.approx(1 - kept)


def test_another_model_may_read(run: Path) -> None:
    found = compare_weightings("high_entropy", run, model="embedded", iteration=4)
    assert found.scored_by is not None
    assert found.scored_by.startswith("model given by --model")
    assert found.mean_logprob_error is not None
    assert found.mean_logprob_error > 1e-3  # four updates away


def test_a_damaged_checkpoint_is_said(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "iteration_00003" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # of one weight: it would be read as another number
    weights.write_bytes(content)
    with pytest.raises(PoiseError, match=r"iteration_00003 is damaged: model.safetensors has ch"):
        compare_weightings("high_entropy", tmp_path / "run")


def test_settings_that_were_defaults_when_the_run_began_are_its_own(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = re.sub(r"option_count = \d+", "option_count = 114", config.read_text("utf-8"))
    text = text.replace('"high_entropy"', '"shear"').replace('["share=0.3"]', "[]")
    config.write_text(text, "utf-8")
    source = read_stored_iteration(tmp_path / "run")
    assert source.config.credit.settings == ["width=100", "stride=25"]


# -- where there is no policy -------------------------------------------------------------------


def test_what_needs_no_policy_loads_none(made_up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loading(*_: object) -> None:
        raise AssertionError("no model is needed")

    monkeypatch.setattr("counterpoise.lab.credit_view.stored_iteration.load_policy", loading)
    found = compare_weightings(f"uniform,{NO_POLICY}", made_up, iteration=2)
    assert found.scored_by is None
    assert found.weightings[0].statistics == found.uniform
    assert found.weightings[1].statistics.residual == pytest.approx(1)  # nothing shared cancels
    view = CreditView(found.rows)
    for i in view.groups[0]:
        assert set(found.weightings[1].weights[i].tolist()) <= {0.0, 1.0, 2.0, 4.0}


def test_imported_runs(tmp_path: Path) -> None:
    trl_file(tmp_path / "theirs", step=12)
    import_run(tmp_path / "theirs", tmp_path / "out", tokenizer="embedded")
    found = compare_weightings(NO_POLICY, tmp_path / "out")
    assert (found.source.iteration, found.rollouts, len(found.rows)) == (12, 4, 4)
    assert found.vocabulary.texts  # of the tokenizer it was imported by
    assert write_credit_page(found).is_file()
    with pytest.raises(PoiseError, match=r"high_entropy needs the policy.*--model"):
        compare_weightings("high_entropy", tmp_path / "out")
    with pytest.raises(PoiseError, match="has no prompt_tokens"):
        compare_weightings("high_entropy", tmp_path / "out", model="embedded")
    with pytest.raises(PoiseError, match=r"was imported: .*no token trace; poise report .*out"):
        read_token_view(tmp_path / "out")


def test_imported_tokens_are_read_by_the_model_that_is_named(tmp_path: Path) -> None:
    right, wrong = prime_record([5, 6], [7, 8, 9], 1.0), prime_record([5, 6], [7, 9], 0.0)
    write_lines(tmp_path / "theirs/token_exports/step_0/rank_0.jsonl", [right, wrong])
    import_run(tmp_path / "theirs", tmp_path / "out")
    found = compare_weightings("high_entropy", tmp_path / "out", model="embedded")
    assert found.weightings[0].needed_policy
    assert found.scored_by is not None
    assert found.scored_by.startswith(
        "model given by --model; log-probabilities differ from the sampler's by"
    )
    assert found.vocabulary.texts  # the model's


def test_advantages_and_temperature_of_another_trainer_are_its_own(
    made_up: Path, tmp_path: Path
) -> None:
    """As PoiseCallback records them: an advantage in every line, the temperature in options."""
    file = made_up / "rollouts" / "step_00002.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    advantages = [(0.9, -0.1, 0.0, -0.1)[i % 4] for i in range(len(lines))]
    stored = [line | {"advantage": A} for line, A in zip(lines, advantages, strict=True)]
    write_lines(tmp_path / "rollouts" / "step_00002.jsonl", stored)
    imported = {"schema": 1, "source": "TRL", "options": {"sample": {"temperature": 0.6}}}
    (tmp_path / "imported.json").write_text(json.dumps(imported))
    source = compare_weightings("uniform", tmp_path).source
    assert sorted(row.advantage for row in source.rows) == sorted(filter(None, advantages))
    assert (source.config.sample.temperature, source.advantage) == (0.6, "as stored")


# -- what is asked for --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ("hihg_entropy", (), "did you mean 'high_entropy'"),
        ("kl_cov", (), "is a step rule"),
        (",", (), "choose one of"),
        ("high_entropy:shear=1", (), "did you mean 'share'"),
        ("uniform", ("share=1",), "has no settings"),
        ("uniform,grail", ("which=both",), "goes with one name"),
        ("high_entropy", ("share=much",), "share is a number"),
    ],
)
def test_a_wrong_wish_is_said_at_once(
    names: str, settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PoiseError, match=message):
        compare_weightings(names, tmp_path / "nowhere", settings)


def test_the_runs_settings_only_where_none_are_given() -> None:
    own = WeightingChoice("high_entropy", ("share=0.3",))
    assert parse_weightings("high_entropy,thr", run_weighting=own) == [own, WeightingChoice("thr")]
    assert parse_weightings("high_entropy", ["share=0.1"], own) == [
        WeightingChoice("high_entropy", ("share=0.1",))
    ]


def test_an_iteration_that_is_not_there(made_up: Path) -> None:
    with pytest.raises(PoiseError, match="no rollouts of iteration 9, only of 1-4"):
        compare_weightings("uniform", made_up, iteration=9)


def test_an_iteration_without_signal(made_up: Path, tmp_path: Path) -> None:
    file = made_up / "rollouts" / "step_00002.jsonl"
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "config.toml").write_text((made_up / "config.toml").read_text())
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    alike = "".join(json.dumps({**line, "reward": 1.0}) + "\n" for line in lines)
    (tmp_path / "rollouts" / "step_00002.jsonl").write_text(alike)
    with pytest.raises(PoiseError, match=r"iteration 2 .*no rollout with signal"):
        compare_weightings("uniform", tmp_path, iteration=2)
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(file.read_text())
    assert compare_weightings("uniform", tmp_path).source.iteration == 1  # the one that has


# -- the command --------------------------------------------------------------------------------


def test_the_terminal(run: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert poise(monkeypatch, "high_entropy,cancellation", run) == 0
    out = capfd.readouterr().out
    assert "iteration 4" in out
    assert "16 rollouts of 4 prompts" in out
    for word in ("high_entropy", "cancellation", "(uniform)", "residual", "rank correlation"):
        assert word in out
    assert any(line.startswith("high_entropy ") for line in out.splitlines())  # at 80 columns too
    assert out.rstrip().endswith(f"page {run / 'credit.html'}")
    comparison = compare_weightings("high_entropy", run)
    name, weights = comparison.rows[0].name, comparison.weightings[0].weights[0]
    stored = read_weights(credit_file(run, 4), name)  # for poise serve
    assert stored.keys() == {"high_entropy share=0.3", "cancellation"}
    assert stored["high_entropy share=0.3"].tolist() == weights.tolist()


def test_as_json(run: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    (run / "credit.html").unlink(missing_ok=True)
    shutil.rmtree(run / CREDIT, ignore_errors=True)
    before = set(run.iterdir())
    assert poise(monkeypatch, "high_entropy", run, "--json", "--settings", "share=0.4") == 0
    out, err = capfd.readouterr()
    assert err == ""
    told = json.loads(out)
    assert set(run.iterdir()) == before  # no page unless --out asks for one
    (one,) = told["weights"]
    assert (one["name"], one["settings"]) == ("high_entropy", ["share=0.4"])
    w_N = np.concatenate([row["weights"][0] for row in told["rows"]])
    assert one["ones"] == pytest.approx(w_N.mean())
    assert all(len(row["tokens"]) == len(row["weights"][0]) for row in told["rows"])


def test_the_page(made_up: Path, tmp_path: Path) -> None:
    found = compare_weightings(f"uniform,{NO_POLICY}", made_up)
    page = Page(write_credit_page(found, tmp_path / "page.html"))
    assert page.sections == ["histograms", "tokens"]  # no kind of token is frequent here
    assert "gtpo penalty=0 ceiling=inf" in page.text
    assert "http" not in page.text
    with pytest.raises(PoiseError, match="cannot be written"):
        write_credit_page(found, tmp_path / "no" / "where.html")


def test_the_page_of_a_real_run(run: Path, tmp_path: Path) -> None:
    page = Page(write_credit_page(compare_weightings("high_entropy", run), tmp_path / "page.html"))
    assert page.sections == ["histograms", "tokens", "kinds"]
    assert "weights after iteration 3, which sampled them" in page.text


def test_histograms_are_shares_of_either_sign(made_up: Path) -> None:
    found = compare_weightings(NO_POLICY, made_up)
    records = histogram_bins(found.rows, found.weightings[0])
    for sign in ("A > 0", "A < 0"):
        assert sum(r["share"] for r in records if r["sign"] == sign) == pytest.approx(1)
    assert all(r["height"] <= 0 for r in records if r["sign"] == "A < 0")
    uniform = compare_weightings("uniform", made_up).weightings[0]
    bins = histogram_bins(found.rows, uniform)
    (one,) = [r for r in bins if r["share"] and r["sign"] == "A > 0"]
    assert one["left"] <= 1 <= one["right"]


def test_what_an_environment_told_is_shown_and_not_weighed(made_up: Path, tmp_path: Path) -> None:
    """Its words stand between the tokens; weights are of the response's own."""
    shutil.copytree(made_up, tmp_path / "run")
    (tmp_path / "run" / "checksums.jsonl").unlink()  # the file below is changed
    file = tmp_path / "run" / "rollouts" / "step_00004.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    turns = [
        {"start": 0, "told": [], "action": [0, 1], "feedback": "less"},
        {"start": 2, "told": [7, 8], "action": [2, 3], "feedback": ""},
    ]
    file.write_text("".join(json.dumps({**line, "turns": turns}) + "\n" for line in lines))
    found = compare_weightings(NO_POLICY, tmp_path / "run", iteration=4)
    data = tokens_panel(found).data
    shown = json.loads(zlib.decompress(base64.b64decode(data["packed"])))["rows"].values()
    assert all(row["environment_tokens"] == [[2, [7, 8]]] for row in shown)
    assert {row["outcome"] for row in shown} == {"✓ reward 1", "✗ reward 0"}
    assert all(len(row["weights"][0]) == len(row["token"]) for row in shown)
    texts = json.loads(zlib.decompress(base64.b64decode(data["vocabulary"])))
    assert texts["7"] == PIECES[7]
