"""Benchmarks during training: the numbers of `poise eval`, a resume, curves, what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from small_run import small_config

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.plan import EvaluationOptions
from counterpoise.lab.evaluate.result_files import read_result_files
from counterpoise.lab.evaluate.run import evaluate
from counterpoise.lab.evaluate.score import score_benchmark
from counterpoise.loop import train
from counterpoise.report.panels.benchmarks import panel
from counterpoise.report.run_data import RunData
from counterpoise.run import evaluate_heldout
from counterpoise.run.benchmarks import load_run_benchmarks
from counterpoise.run.estimate import describe_task
from counterpoise.run.trackers.panels import name_evaluation
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.run import run_view
from counterpoise.store.folder import RunFolder
from counterpoise.store.missing_logs import find_missing_logs
from counterpoise.task.word_problems import load

SETTING = EvaluationSetting(0.6, 0.95)
WHOLE = [(n, name) for n in (0, 2, 4) for name in ("easy", "hard")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of two benchmarks, and beside them the model and the reward of the small run."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "data").mkdir()
    for name, level in (("easy", 1), ("hard", 2)):
        problems = load(levels=[level], size=8, heldout=9).heldout
        lines = [
            json.dumps({"id": p.id, "problem": p.problem, "answer": p.answer}) for p in problems
        ]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def options(home: Path, *more: str) -> list[str]:
    return [
        'evaluate.benchmarks=["easy=4", "hard"]', f"evaluate.data={home / 'data'}",
        'evaluate.settings=["0.6/0.95"]', "evaluate.limit=8", "store.report=false", "loop.seed=3",
        *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def finished(home: Path) -> Path:
    out = home / "whole"
    train(small_config(home, *options(home)), out)
    return out


def lines_of(out: Path) -> list[dict[str, object]]:
    return RunFolder.open(out).read("benchmarks")


def test_a_line_holds_the_numbers_of_poise_eval(home: Path, finished: Path, tmp_path: Path) -> None:
    lines = lines_of(finished)
    assert [(line["iteration"], line["benchmark"]) for line in lines] == WHOLE
    assert [line["samples"] for line in lines[:2]] == [4, 1]
    assert {line["prompts"] for line in lines} == {8}
    models = {0: home / "model", 2: finished / "checkpoints" / "iteration_00002", 4: finished}
    for iteration, model in models.items():
        out = tmp_path / str(iteration)
        evaluate(
            EvaluationOptions(
                [str(model)], out, ["easy", "hard"], home / "data", [SETTING], {"easy": 4},
                template="auto", max_new_tokens=5, limit=8, seed=3, device="cpu",
                verifier=f"{home}/mine.py:score",
            )
        )  # fmt: skip
        for result_file in read_result_files(out):
            score = score_benchmark(result_file)
            assert score is not None
            (line,) = (
                line
                for line in lines
                if (line["iteration"], line["benchmark"])
                == (iteration, result_file.header.benchmark)
            )
            assert {name: line[name] for name in ("mean", "low", "high")} == asdict(score.average)
            assert line["truncated_share"] == score.truncated
    assert len({line["mean"] for line in lines}) > 1


def test_an_evaluation_that_was_cut_is_continued(
    home: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = evaluate_heldout.evaluate_benchmark, 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:  # the second benchmark after two iterations
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate_heldout, "evaluate_benchmark", failing)
    out, config = tmp_path / "run", small_config(home, *options(home))
    with pytest.raises(KeyboardInterrupt):
        train(config, out)
    assert len(lines_of(out)) == 3
    train(config, out, resume=True)
    assert calls == 7

    def untimed(folder: Path) -> list[dict[str, object]]:
        return [{**line, "evaluate_seconds": 0} for line in lines_of(folder)]

    assert untimed(out) == untimed(finished)
    # A line that is lost is missed.
    log = out / "benchmarks.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[1:]))
    missing = find_missing_logs(RunFolder.open(out), config, 4, expects_evaluations=True)
    assert missing == {"benchmarks.jsonl": [0]}
    # A line without a number that readers need is damage.
    log.write_text(log.read_text().replace('"top_p": 0.95, ', "", 1))
    with pytest.raises(PoiseError, match=r"benchmarks\.jsonl.*top_p is missing"):
        lines_of(out)


def test_curves_in_the_report_the_server_and_trackers(finished: Path) -> None:
    run = RunData.read(finished)
    benchmarks = panel(run)
    assert benchmarks is not None
    assert isinstance(benchmarks.body, tuple)
    assert [figure.title for figure in benchmarks.body] == ["easy", "hard"]
    assert benchmarks.body[0].note == "avg@4 over 8 problems."
    means = [line["mean"] for line in lines_of(finished)[1::2]]
    for points in benchmarks.body[1].chart.to_dict()["datasets"].values():  # of line and marks
        assert [point["mean"] for point in points] == means
    reader = RunReader("whole", finished, [finished.parent])
    reader.refresh(None)
    shown = run_view(reader)["benchmarks"]
    assert [(line["iteration"], line["title"]) for line in shown] == WHOLE
    named = name_evaluation(shown[0], SETTING, SETTING)
    assert named["benchmark_easy/success"] == shown[0]["mean"]
    assert named["benchmark_easy/truncated_share"] == shown[0]["truncated_share"]


def test_they_are_evaluated_without_heldout_problems(home: Path, tmp_path: Path) -> None:
    config = small_config(home, *options(home, "evaluate.prompts=0", "evaluate.every=0"))
    train(config, tmp_path / "run")
    assert [line["iteration"] for line in lines_of(tmp_path / "run")] == [0, 0, 4, 4]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (['evaluate.benchmarks=["easy=0"]'], r"'easy=0' is not a benchmark: write NAME, or"),
        (['evaluate.benchmarks=["easy", "easy=2"]'], "names easy twice"),
        (
            ['evaluate.benchmarks=["easy"]', "verify.name=verifiers"],
            "verify.name=verifiers scores tasks of that package only",
        ),
    ],
)
def test_wrong_entries_are_refused(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        load_config("demo", sets)


def test_unknown_names_and_long_responses_are_refused(home: Path, tmp_path: Path) -> None:
    for sets, message in (
        (['evaluate.benchmarks=["esay"]'], r"did you mean 'easy'\?.*with evaluate\.data, any NAME"),
        (['evaluate.benchmarks=["math500"]'], "no file math500.jsonl in .* evaluate.data must be"),
        (["sample.max_new_tokens=230"], "exceed the 256 positions of the model"),
    ):
        with pytest.raises(PoiseError, match=message):
            train(small_config(home, *options(home, *sets)), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_benchmark_without_any_reward_is_named(home: Path, tmp_path: Path) -> None:
    """Without held-out problems: evaluate.prompts=0 would not help."""
    reward = tmp_path / "mine.py"
    reward.write_text("def score(completion, answer): return None\n")
    sets = [f"verify.name={reward}:score", "evaluate.prompts=0"]
    message = r"every response to the benchmark easy: .* leave the benchmark out of evaluate\.bench"
    with pytest.raises(PoiseError, match=message):
        train(small_config(home, *options(home, *sets)), tmp_path / "run")


def test_answers_of_a_benchmark_that_are_no_tests_are_refused(home: Path) -> None:
    config = small_config(home, *options(home, "verify.name=code"))
    with pytest.raises(PoiseError, match=r"there are no tests: the verifier 'code' takes lines"):
        load_run_benchmarks(config)


def test_a_dry_run_reads_them(home: Path) -> None:
    def described(*sets: str) -> list[str]:
        return describe_task(load_config("demo", [*options(home), *sets]))

    assert "benchmarks     easy, 8 problems x 4; hard, 8 problems x 1" in described()
    with pytest.raises(PoiseError, match=r"unknown benchmark 'esay': did you mean 'easy'"):
        described('evaluate.benchmarks=["esay"]')
    gone = home / "gone"
    not_here = f"               {gone} does not exist: the run would fail"
    assert not_here in described(f"evaluate.data={gone}")
    # Of those on the hub only the names are checked.
    hub = described("evaluate.data=", 'evaluate.benchmarks=["math500"]')
    assert hub[-1].endswith("; the benchmarks of the hub")
    with pytest.raises(PoiseError, match=r"unknown benchmark 'mat500'"):
        described("evaluate.data=", 'evaluate.benchmarks=["mat500"]')
    (home / "probes.jsonl").write_text('{"prompt": "1 + 1?", "response": "2"}\n')
    probes = f"monitor.probe_file={home / 'probes.jsonl'}"
    assert f"probes         1 answer in {home / 'probes.jsonl'}" in described(probes)
