"""Two ways of sampling in one run: their lines, a resume in between, the report, what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import train
from counterpoise.report.panels.learning import panel
from counterpoise.report.run_data import RunData
from counterpoise.run import evaluate_heldout
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import RunFolder

SETS = [
    "loop.iterations=2", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=4", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=24", "balance.tau=0", "batch.steps=2", "evaluate.prompts=4",
    "evaluate.samples=2", 'evaluate.settings=["training", "0.6/0.95"]', "verify.workers=1",
    "monitor.every=0",
]  # fmt: skip


def judged(folder: Path) -> list[tuple[int, float, float]]:
    lines = RunFolder.open(folder).read("evaluations")
    return [(line["iteration"], line["temperature"], line["top_p"]) for line in lines]


WHOLE = [(0, 1.0, 1.0), (0, 0.6, 0.95), (2, 1.0, 1.0), (2, 0.6, 0.95)]


def test_a_line_for_each_setting_and_both_in_the_report(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(load_config("demo", SETS), out)
    assert judged(out) == WHOLE
    assert is_finished(out, 2)
    assert not is_finished(out, 3)
    run = RunData.read(out)
    assert [line["iteration"] for line in run.heldout] == [0, 2]
    learning = panel(run)
    assert learning is not None
    assert isinstance(learning.body, tuple)
    assert [meaning for _, meaning in learning.body[0].keys][2:] == [
        "held-out at 1/1, with 95 % interval",
        "held-out at 0.6/0.95, with 95 % interval",
    ]
    assert write_report(out).is_file()


def test_an_evaluation_that_was_cut_in_two_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = evaluate_heldout.evaluate_policy, 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:  # the second setting of the last evaluation
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate_heldout, "evaluate_policy", failing)
    out, config = tmp_path / "run", load_config("demo", SETS)
    with pytest.raises(KeyboardInterrupt):
        train(config, out)
    assert judged(out) == WHOLE[:3]
    train(config, out, resume=True)
    assert judged(out) == WHOLE
    assert calls == 5


def test_a_run_that_leaves_little(tmp_path: Path) -> None:
    """What is needed for its curves, and nothing else; it cannot be taken up by mistake."""
    out = tmp_path / "run"
    small = [f"store.{name}=false" for name in ("rollouts", "tokens", "model", "report")]
    config = load_config("demo", [*SETS, *small])
    train(config, out)
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "metrics.jsonl", "plans.jsonl", "evaluations.jsonl", "finished.json",
        "checksums.jsonl",
    }  # fmt: skip
    (plan, *_) = RunFolder.open(out).read("plans")
    assert 0 <= plan["describe"]["split_share"] <= 1
    with pytest.raises(PoiseError, match="kept no model"):
        train(config, out, resume=True)
    assert len(RunFolder.open(out).read("metrics")) == 2
