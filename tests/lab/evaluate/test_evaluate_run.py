"""`poise eval` from problems to numbers, on the embedded model: stopped, resumed, cut otherwise."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import forked
import made_up_results
import pytest

from counterpoise import plugins
from counterpoise.cli import main
from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.evaluate import run
from counterpoise.lab.evaluate.plan import EvaluationOptions, plan_jobs
from counterpoise.lab.evaluate.progress import EvaluationProgress
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile, read_result_files
from counterpoise.lab.evaluate.run import evaluate
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy, save_policy
from counterpoise.sample.native import sample
from counterpoise.statistics.prompt_intervals import mean_estimate, share_estimate
from counterpoise.task.benchmarks import benchmark_seeds
from counterpoise.task.word_problems import load
from counterpoise.verify.math.verifier import MathVerifier
from counterpoise.verify.reward_process import shared_process

PROBLEMS, SAMPLES = 4, 2
KILLED_AFTER_TWO_PROBLEMS = """
import os, signal, sys
from counterpoise.cli import main
from counterpoise.lab.evaluate.result_files import ResultFile
write = ResultFile.write
def write_and_kill(file, judged):
    write(file, judged)
    if len(file.judged) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
ResultFile.write = write_and_kill
sys.argv[0] = "poise"
main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word problems of our own task, as files of benchmarks."""
    folder = tmp_path_factory.mktemp("data")
    for level in (1, 3):
        problems = load(levels=[level], size=8, heldout=PROBLEMS).heldout
        records = [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in problems]
        lines = [json.dumps(record) for record in records]
        (folder / f"words{level}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def options(data: Path, out: Path, **changes: object) -> EvaluationOptions:
    made = EvaluationOptions(
        models=["embedded"], out=out, benchmarks=["words1", "words3"], data=data,
        samples={"": SAMPLES}, max_new_tokens=80, rows=3 * SAMPLES, device="cpu",
        verify_workers=1,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    evaluate(options(data, out))
    return out


@pytest.fixture(scope="module")
def cut_short(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with responses of 24 tokens: for tests that need them, but not their rewards."""
    out = tmp_path_factory.mktemp("cut_short")
    evaluate(options(data, out, max_new_tokens=24))
    return out


def lines_of(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.glob("results/*/*"))}


def test_the_numbers_are_those_of_the_responses(data: Path, whole: Path) -> None:
    """Every reward, length and vote again, from the texts; the mean in the summary from those."""
    told = json.loads((whole / "summary.json").read_text(encoding="utf-8"))
    for cell, found in zip(read_result_files(whole), told["scores"], strict=True):
        judged = list(cell.judged.values())
        assert [one.id for one in judged] == [f"word_problems/heldout/{i}" for i in range(PROBLEMS)]
        with MathVerifier(workers=1) as verifier:
            for one in judged:
                assert verifier.score(one.responses, [one.answer] * SAMPLES).rewards == one.rewards
        expected = share_estimate([sum(one.rewards) / SAMPLES for one in judged])
        assert (found["mean"], found["low"], found["high"]) == (
            expected.mean, expected.low, expected.high,
        )  # fmt: skip
        assert found["measure"] == f"avg@{SAMPLES}"
        assert (found["problems"], found["of"]) == (PROBLEMS, PROBLEMS)
    easy, hard = told["scores"]
    assert easy["mean"] > hard["mean"] > 0  # the embedded model solves most of level 1


def test_samples_follow_from_their_seeds_alone(data: Path, whole: Path) -> None:
    """One problem by itself, drawn by the sampler directly."""
    work = plan_jobs(options(data, whole))[1]
    config = SampleConfig(temperature=0.6, top_p=0.95, max_new_tokens=80)
    policy = load_policy(ModelConfig(device="cpu"))
    header = work.result_file.header
    seeds = benchmark_seeds(header.seed, header.benchmark, work.problems[2], header.samples)
    (alone,) = sample(policy, [policy.encode(work.problems[2].problem)], [seeds], config)
    stored = read_result_files(whole)[1].judged[work.problems[2].id]
    assert [response.text for response in alone] == stored.responses
    assert len(set(seeds)) == SAMPLES


@pytest.mark.parametrize("rows", [1, 2 * SAMPLES, 512])
def test_blocks_may_be_cut_in_any_way(
    data: Path, cut_short: Path, tmp_path: Path, rows: int
) -> None:
    evaluate(options(data, tmp_path / "out", rows=rows, max_new_tokens=24))
    found = {c.header.file: c.judged for c in read_result_files(tmp_path / "out")}
    assert found == {c.header.file: c.judged for c in read_result_files(cut_short)}


class StoppedError(Exception):
    """As if the process had been killed there."""


@pytest.mark.parametrize("after", [1, 3, 6])
def test_stopped_and_resumed_is_the_same(
    data: Path, cut_short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """StoppedError after a problem of a block or after a whole one, in the middle of the next
    line."""
    out, write, left = tmp_path / "out", ResultFile.write, iter(range(after))
    asked = options(data, out, max_new_tokens=24)

    def failing(cell: ResultFile, judged: JudgedProblem) -> None:
        if next(left, None) is None:
            with cell.path.open("ab") as file:
                file.write(b'{"id": "half a li')
            raise StoppedError
        write(cell, judged)

    with monkeypatch.context() as patched:
        patched.setattr(ResultFile, "write", failing)
        with pytest.raises(StoppedError):
            evaluate(asked)
    drawn: list[int] = []

    class Counting(EvaluationProgress):
        def advance(self, cell: ResultFile, responses: int, tokens: int) -> None:
            drawn.append(responses)

    evaluate(asked, Counting())
    assert lines_of(out) == lines_of(cut_short)
    assert sum(drawn) == (2 * PROBLEMS - after) * SAMPLES
    assert (out / "summary.json").read_bytes() == (cut_short / "summary.json").read_bytes()


def test_two_commands_on_one_folder(data: Path, whole: Path, tmp_path: Path) -> None:
    """The second is refused while the first writes, before it cuts what it takes for half a line;
    a file that two have written, where folders cannot be locked, is still read."""
    out = shutil.copytree(whole, tmp_path / "out")
    file = next(out.glob("results/*/words1@*"))
    first, half = file.read_bytes(), b'{"id": "half a li'
    file.write_bytes(first + half)
    with (
        folder_lock(out),
        pytest.raises(PoiseError, match="being written by another process: wait"),
    ):
        evaluate(options(data, out))
    assert file.read_bytes() == first + half
    file.write_bytes(first + first)
    evaluate(options(data, out))
    assert (out / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    other = first.replace(b'"seed": 0', b'"seed": 1', 1)
    assert other != first
    file.write_bytes(first + other)
    with pytest.raises(PoiseError, match=r"is damaged: .*; remove it to evaluate again"):
        evaluate(options(data, out))


def test_a_function_of_the_users_judges_and_is_part_of_what_is_resumed(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    """The same responses, other rewards; another content is another evaluation."""
    path, out = tmp_path / "mine.py", tmp_path / "out"
    text = "def score(responses, answers):\n    return [len(r) % 2 - 0.6 for r in responses]\n"
    path.write_text(text)
    asked = options(data, out, benchmarks=["words1"], verifier=f"{path}:score")
    (line,) = evaluate(asked).lines
    (found,), first = read_result_files(out), read_result_files(whole)[0]
    assert found.header.verifier == plugins.pin_plugin(f"{path}:score", Path())
    responses = [one.responses for one in found.judged.values()]
    assert responses == [one.responses for one in first.judged.values()]
    rewards = [[len(text) % 2 - 0.6 for text in texts] for texts in responses]
    assert [one.rewards for one in found.judged.values()] == rewards
    assert line.scores["words1"].measure == "mean reward"
    assert line.scores["words1"].average == mean_estimate([sum(r) / SAMPLES for r in rewards])
    assert len({reward for each in rewards for reward in each}) == 2
    evaluate(asked)
    path.write_text(text.replace("0.6", "0.7"))
    with pytest.raises(PoiseError, match=r"was made with verifier='.*mine\.py:score@\w{16}', not"):
        evaluate(asked)


def test_a_function_of_the_users_has_a_time_limit(data: Path, whole: Path, tmp_path: Path) -> None:
    """What it loses counts as wrong, and a line says so; a function of lists ends the command."""
    path, texts = tmp_path / "mine.py", []
    path.write_text(
        "import time\n"
        "def each(completion, answer, problem):\n"
        "    if problem.startswith(SLOW): time.sleep(3600)\n"
        "    return 0.5\n"
        "def lists(responses, answers): time.sleep(3600)\n".replace(
            "SLOW", repr(json.loads((data / "words1.jsonl").read_text().splitlines()[1])["problem"])
        )
    )

    class Listener(EvaluationProgress):
        def warn(self, message: str) -> None:
            texts.append(message)

    limited = {"benchmarks": ["words1"], "samples": {"": 1}, "reward_timeout_seconds": 1.0}
    try:
        evaluate(options(data, tmp_path / "a", verifier=f"{path}:each", **limited), Listener())
        (results,) = read_result_files(tmp_path / "a")
        rewards = [problem.rewards for problem in results.judged.values()]
        assert rewards == [[0.5], [0.0], *[[0.5]] * (PROBLEMS - 2)]
        assert any("1 answers took too long to verify" in text for text in texts)
        with pytest.raises(PoiseError, match=r"within --reward-timeout=1 .*the same command"):
            evaluate(options(data, tmp_path / "b", verifier=f"{path}:lists", **limited))
    finally:
        shared_process(1.0).close()


def test_a_function_of_the_users_gets_the_columns_of_the_file(data: Path, tmp_path: Path) -> None:
    """They are part of what an evaluation is of: other columns are other problems."""
    path, folder = tmp_path / "mine.py", tmp_path / "data"
    folder.mkdir()
    path.write_text(
        "def score(prompts, completions, marks):\n"
        "    return [m['worth'] + len(p) for p, m in zip(prompts, marks)]\n"
    )
    records = [json.loads(line) for line in (data / "words1.jsonl").read_text().splitlines()]
    file = folder / "words1.jsonl"

    def write(worth: float) -> None:
        lines = [{**r, "marks": {"worth": k + worth}} for k, r in enumerate(records)]
        file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    write(0.5)
    asked = options(folder, tmp_path / "out", benchmarks=["words1"], verifier=f"{path}:score")
    evaluate(asked)
    (cell,) = read_result_files(tmp_path / "out")
    assert [one.rewards for one in cell.judged.values()] == [
        [k + 0.5 + len(record["problem"])] * SAMPLES for k, record in enumerate(records)
    ]
    write(0.25)
    with pytest.raises(PoiseError, match="was made with problems_digest="):
        evaluate(asked)
    asked = options(data, tmp_path / "other", benchmarks=["words1"], verifier=f"{path}:score")
    with pytest.raises(PoiseError, match=r"words1\.jsonl: unknown column 'marks' \(choices: a"):
        evaluate(asked)
    assert not (tmp_path / "other").exists()


def test_nothing_is_loaded_when_all_is_there(
    data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(run.models, "load_model", refuse)
    assert len(evaluate(options(data, whole)).lines) == 1


def test_several_models_and_a_run_s_folder(data: Path, whole: Path, tmp_path: Path) -> None:
    """A further model joins the folder; the same weights elsewhere give the same numbers."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    made = tmp_path / "trained"
    made.mkdir()
    (made / "config.toml").write_text("", encoding="utf-8")
    shutil.copytree(EMBEDDED_FOLDER, made / "model")
    changed = load_policy(ModelConfig(device="cpu"))
    for weight in changed.model.parameters():
        weight.data *= 0.9
    save_policy(changed, tmp_path / "changed")
    names = ["embedded", str(made), str(tmp_path / "changed")]
    summary = evaluate(options(data, out, models=names))
    embedded, trained, other = summary.lines
    assert [line.model for line in summary.lines] == ["embedded", "trained", "changed"]
    assert trained.average == embedded.average
    assert trained.differences["words3"].mean == 0.0
    assert other.scores["words3"].header.weights != embedded.scores["words3"].header.weights
    with pytest.raises(PoiseError, match=r"was made with weights="):
        evaluate(replace_model(options(data, out), tmp_path, made))


def replace_model(asked: EvaluationOptions, tmp_path: Path, made: Path) -> EvaluationOptions:
    """The run's folder now holds other weights."""
    shutil.rmtree(made / "model")
    shutil.copytree(tmp_path / "changed", made / "model")
    return replace(asked, models=[str(made)])


def test_a_sweep(data: Path, tmp_path: Path) -> None:
    grid = [EvaluationSetting(t, p) for t in (1.0, 0.6) for p in (0.7, 0.95)]
    asked = options(data, tmp_path / "out", settings=grid, limit=2, benchmarks=["words1"])
    summary = evaluate(asked)
    assert [line.setting for line in summary.lines] == grid
    assert summary.choices[0].best in grid
    assert len(summary.choices[0].differences) == 3


def test_a_context_too_short(data: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(EMBEDDED_FOLDER, short)
    config = json.loads((short / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 24
    (short / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(
        PoiseError, match=r"words1: its longest prompt has \d+ tokens with template 'chat', and"
    ):
        evaluate(options(data, tmp_path / "out", models=[str(short)]))
    with pytest.raises(PoiseError, match=r"--max-tokens 2,000 exceed the context .*: --max-tokens"):
        evaluate(options(data, tmp_path / "out", max_new_tokens=2000))
    assert not (tmp_path / "out").exists()  # refused before anything was made


def test_the_context_s_room_is_said(data: Path, tmp_path: Path) -> None:
    said: list[str] = []

    class Listening(EvaluationProgress):
        def warn(self, message: str) -> None:
            said.append(message)

    few = {"max_new_tokens": None, "limit": 1, "benchmarks": ["words1"], "samples": {"": 1}}
    summary = evaluate(options(data, tmp_path / "out", **few), Listening())
    room = summary.lines[0].scores["words1"].header.max_new_tokens
    assert 900 < room < 1024
    (message,) = said
    assert message.startswith(f"words1: responses are cut at {room} tokens: the context, or")


def test_a_model_that_is_added_has_the_limit_of_the_others(data: Path, tmp_path: Path) -> None:
    """The folder holds results with 80 and, of another benchmark, 900 tokens."""
    header = plan_jobs(options(data, tmp_path))[0].result_file.header
    for benchmark, limit in (("words1", 80), ("words3", 900)):
        stored = replace(header, benchmark=benchmark, max_new_tokens=limit, samples=1)
        made_up_results.cell(tmp_path, {"1": [1.0]}, **asdict(stored))
    added = tmp_path / "added"
    shutil.copytree(EMBEDDED_FOLDER, added)
    chosen = {"models": [str(added)], "max_new_tokens": None}
    jobs = plan_jobs(options(data, tmp_path, **chosen))
    assert [job.result_file.header.max_new_tokens for job in jobs] == [80, 900]
    config = json.loads((added / "config.json").read_text(encoding="utf-8"))
    (added / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 400}))
    with pytest.raises(PoiseError, match=r"words3: .* of up to 900 tokens, .* give --max-tokens"):
        plan_jobs(options(data, tmp_path, **chosen))
    chosen["max_new_tokens"] = 100  # given by the user
    assert plan_jobs(options(data, tmp_path, **chosen))[1].result_file.header.max_new_tokens == 100


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", "eval", *arguments])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_the_command(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    few = ["--bench", "words1", "--data", str(data), "--limit", "3", "--max-tokens", "80"]
    asked = ["embedded", *few, "--out", out, "--samples", "words1=2", "--device", "cpu"]
    assert command(monkeypatch, *asked, "--json") == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["scores"][0]["samples"] == 2
    assert "3/3 problems" in said.err
    assert not (tmp_path / "out" / "report.html").exists()
    assert command(monkeypatch, *asked) == 0
    assert "6 of 6 responses exist already" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bench", "word1"], "unknown benchmark 'word1'"),
        (["--bench", "aime24"], "aime24: no file aime24.jsonl in"),
        (["--bench", "wrong"], "wrong.jsonl:1: no field 'problem' (fields: answer, id, quest)"),
        (["--bench", "empty"], "empty.jsonl: no records"),
        (["--bench", "words1,words1"], "benchmark 'words1' is named twice"),
        (["--bench", "words1", "--template", "qwen-math"], "needs the token <|im_start|>"),
        (["--bench", "words1", "--max-tokens", "5000"], "exceed the context of 'embedded', 1,024"),
        (["--bench", "words1", "--sampler", "vlm"], "unknown sampler 'vlm': did you mean 'vllm'?"),
        (["--bench", "words1", "--temperature", "1,0.6"], "are a sweep: add --sweep"),
        (
            ["--bench", "words1", "--top-p", "1.5"],
            "--top-p 1.5: give distinct numbers from 0.001 to 1",
        ),
        (
            ["--bench", "words1", "--samples", "none"],
            "--samples: 'none' is not a whole number from 1 to 100,000",
        ),
        (["--bench", "words1", "--samples", "word1=4"], "did you mean 'words1'?"),
        (["--bench", "words1", "--fields", "gold=answer"], "unknown field in --fields 'gold'"),
        (
            ["--bench", "words1", "--fields", "problem="],
            "--fields problem=: write comma-separated NAME=VALUE",
        ),
        (["--bench", ""], "--bench names no benchmark"),
        (["--bench", "words1", "--verifier", "maths"], "unknown verifier 'maths'"),
        (["--bench", "words1", "--verifier", "no.py:f"], "no.py cannot be read: No such file"),
        (["--bench", "words1", "--verifier", "verifiers"], "a benchmark has none: choose another"),
        (["--bench", "words1", "--verifier", "code"], "there are no tests"),
        (["--bench", "words1", "--device", "gpu"], "--device gpu: give auto, cpu or cuda"),
    ],
)
def test_a_fault_of_the_user_s_is_one_line(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    wrong = {"id": 1, "quest": "1 + 1?", "answer": "2"}
    (data / "wrong.jsonl").write_text(json.dumps(wrong), encoding="utf-8")
    (data / "empty.jsonl").write_text("\n", encoding="utf-8")
    out = tmp_path / "out"
    asked = ["embedded", *arguments, "--data", str(data), "--out", str(out)]
    assert command(monkeypatch, *asked) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_fields_need_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["embedded", "--bench", "math500", "--fields", "answer=gold"]
    assert command(monkeypatch, *asked) == 2
    assert "--fields names fields of the files in --data: give" in capsys.readouterr().err


def test_no_such_model(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--bench", "words1", "--data", str(data)]
    assert command(monkeypatch, "out/none/model", *few) == 2
    assert "no model 'out/none/model': no such folder" in capsys.readouterr().err
    assert command(monkeypatch, "embedded", "embedded", *few) == 2
    assert "model 'embedded' is named twice" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_for_real(data: Path, tmp_path: Path) -> None:
    """A process of its own that ends between two problems, then resumed here."""
    out, file = tmp_path / "killed", "results/embedded/words3@0.6-0.95.jsonl"
    arguments = (
        f"eval embedded --bench words3 --data {data} --max-tokens 80 --device cpu --samples 4 "
        f"--rows 4 --limit 4 --out {out} --json"
    )
    killed = forked.run(
        [sys.executable, "-c", KILLED_AFTER_TWO_PROBLEMS, *arguments.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / file).read_bytes().count(b"\n") == 1 + 2
    asked = {"benchmarks": ["words3"], "samples": {"": 4}, "rows": 4, "limit": 4}
    resumed = evaluate(options(data, out, **asked))
    whole = evaluate(options(data, tmp_path / "whole", **asked))
    assert resumed.to_json() == whole.to_json()
    assert lines_of(out) == lines_of(tmp_path / "whole")
