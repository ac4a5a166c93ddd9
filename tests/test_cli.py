"""The command as users meet it: every fault of theirs is one line and exit code 2, and nothing is
written; help is quick; the dry runs and the plan answer what they promise."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from faults import FAULTS, FILES, KNOWN, MODELS, SMALL

from counterpoise.cli import app, main
from counterpoise.cli.train_at_terminal import command_prefix, find_unused_folder
from counterpoise.config import RunConfig
from counterpoise.config.load import config_from_tables, list_options, load_config
from counterpoise.store.folder import RunFolder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w")
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def contents(*folders: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() else None
        for folder in folders
        for path in sorted(folder.rglob("*"))
    }


def poise(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process; what transformers logs goes to its stderr, as always."""
    logger = logging.getLogger(transformers.__name__)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(sys.stderr)])
    monkeypatch.setattr(sys, "argv", ["poise", *arguments])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param(
            command,
            message,
            id=name,
            marks=pytest.mark.xfail(strict=True, reason=KNOWN[name]) if name in KNOWN else (),
        )
        for name, command, message in FAULTS
    ],
)
def test_a_fault_is_one_line_and_writes_nothing(
    command: str,
    message: str,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "device=cuda" in command and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for name in re.findall(r"\{w\}/(\w+)", command):
        if name in MODELS and not (world / name).exists():
            MODELS[name](world / name)
    monkeypatch.chdir(tmp_path)
    before = contents(world, tmp_path)
    arguments = [a.format(w=world, o=tmp_path / "out") for a in command.split()]
    code = poise(monkeypatch, *arguments)
    error = capfd.readouterr().err
    assert code == 2, error
    assert error.startswith("poise: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert re.search(message, error), error
    assert contents(world, tmp_path) == before


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real thing, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "counterpoise.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        timeout=600,
    )


def test_a_fault_in_a_process_of_its_own(world: Path, tmp_path: Path) -> None:
    done = command("train", str(world / "option.toml"), "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("poise: ")
    assert done.stderr.count("\n") == 1
    assert "did you mean 'prompts'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_fault_found_after_the_model_was_loaded(world: Path, tmp_path: Path) -> None:
    """No progress bar and no log line of a library stands before the message."""
    small, data, out = str(world / "small.toml"), world / "cut.jsonl", tmp_path / "out"
    done = command(
        "train", small, "--out", str(out), "-s", "task.name=jsonl", "-s", f"task.path={data}"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("poise: ")
    assert done.stderr.count("\n") == 1
    assert "cut.jsonl:2: not JSON" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", "--no-such-flag"], "--no-such-flag"),
        (["trian"], "trian"),
        (["plan"], "rollouts"),
        (["plan", "x.jsonl", "--steps", "four"], "--steps"),
        (["warmup", "demo"], "--out"),
        (["train", "a.toml", "b.toml"], "b.toml"),
    ],
)
def test_wrong_usage(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert poise(monkeypatch, *arguments) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert word in printed.err
    assert re.fullmatch(r"poise: .* \(see poise.* --help\)\n", printed.err)


def test_without_arguments_there_is_help(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert poise(monkeypatch) == 2
    assert "demo" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("study", "run the same command again to continue"),
        ("warmup", "to continue, run it again with --resume (not needed if it printed 'saved')"),
        ("doctor", "poise: stopped\n"),
    ],
)
def test_after_ctrl_c(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """typer makes an exit code of KeyboardInterrupt; the line is ours."""
    monkeypatch.setattr("counterpoise.cli.app.registered_commands", [])

    def interrupted() -> None:
        raise KeyboardInterrupt

    for name in (command, "other"):
        app.command(name)(interrupted)
    assert poise(monkeypatch, command) == 130
    assert said in capfd.readouterr().err


GOES_ON = "poise: stopped; resume it from its last checkpoint with: "


@pytest.mark.parametrize(
    ("words", "written", "said"),
    [
        (["demo"], "out/demo", f"{GOES_ON}poise train --resume --out out/demo\n"),
        (["demo", "-o", "a b"], "a b", f"{GOES_ON}poise train --resume --out 'a b'\n"),
        (["train", "demo", "-o", "a"], "a", f"{GOES_ON}poise train --resume --out a\n"),
        (["train", "demo", "-o", "a"], "", "poise: stopped before anything was written\n"),
    ],
)
def test_a_stopped_run_says_the_command_that_goes_on(
    words: list[str],
    written: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    def stopped(run: RunConfig, out: Path, **_: object) -> None:
        if written:
            RunFolder.create(out, run)
        raise KeyboardInterrupt

    monkeypatch.setattr("counterpoise.loop.train", stopped)
    monkeypatch.chdir(tmp_path)
    assert poise(monkeypatch, *words) == 130
    assert capfd.readouterr().err == said
    assert not written or (tmp_path / written / "config.toml").is_file()


def test_the_command_that_goes_on_is_called_as_this_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name where the shell finds this very one, else by its path or through Python."""
    for folder in ("mine", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "poise").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "mine"))
    for called, words in {
        str(tmp_path / "mine" / "poise"): ["poise"],
        str(tmp_path / "other" / "poise"): [str(tmp_path / "other" / "poise")],
        "/x/counterpoise/cli/__main__.py": [sys.executable, "-m", "counterpoise.cli"],
    }.items():
        monkeypatch.setattr(sys, "argv", [called])
        assert command_prefix() == words


def test_a_disk_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Wherever it happens; any other OSError is a fault of ours and keeps its traceback."""
    monkeypatch.setattr("counterpoise.cli.app.registered_commands", [])

    def full(code: int) -> None:
        raise OSError(code, os.strerror(code), "out/x.json")

    for name in ("full", "other"):
        app.command(name)(full)
    assert poise(monkeypatch, "full", str(errno.ENOSPC)) == 2
    said = "poise: out/x.json: No space left on device; correct that or choose another path\n"
    assert capfd.readouterr().err == said
    with pytest.raises(OSError, match="Invalid argument"):
        poise(monkeypatch, "full", str(errno.EINVAL))


@pytest.mark.parametrize(
    "fault", [MemoryError(), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "out/run")]
)
def test_a_failed_allocation_is_one_line(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("counterpoise.cli.app.registered_commands", [])

    def exhaust() -> None:
        raise fault

    for name in ("exhaust", "other"):
        app.command(name)(exhaust)
    assert poise(monkeypatch, "exhaust") == 2
    said = capfd.readouterr().err
    assert said.startswith("poise: out of memory: ")
    assert said.count("\n") == 1


def test_a_demo_never_writes_into_what_is_there(tmp_path: Path) -> None:
    base = tmp_path / "demo"
    assert find_unused_folder(base) == base
    base.mkdir()
    assert find_unused_folder(base) == base  # empty is free
    (base / "config.toml").write_text("")
    assert find_unused_folder(base) == tmp_path / "demo-2"
    (tmp_path / "demo-2").mkdir()
    (tmp_path / "demo-2" / "x").write_text("")
    assert find_unused_folder(base) == tmp_path / "demo-3"


def test_a_demo_beside_a_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    assert find_unused_folder(tmp_path / "demo") == tmp_path / "demo-2"


# -- help ---------------------------------------------------------------------------------------

HELP = {
    "": ["demo", "train", "warmup", "plan", "report", "options", "doctor"],
    "demo": ["--out", "--set", "embedded"],
    "train": [
        "--out", "--set", "--resume", "--from-start", "--accept-missing-logs", "--dry-run",
        "--engine", "--print", "TOML",
    ],
    "warmup": ["--out", "--set", "solutions"],
    "plan": ["--composer", "--steps", "--credit", "--seed", "--json", "prompt_id", "num_tokens"],
    "report": ["--out", "HTML"],
    "track": ["--to", "--out", "tensorboard", "wandb"],
    "credit": ["--settings", "--iteration", "--model", "--out", "--json", "NAME"],
    "options": ["option"],
    "doctor": ["machine"],
    "bench": ["--parts", "--json", "TRL"],
    "experiment": ["--jobs", "--minutes", "--seeds", "--dry-run"],
}  # fmt: skip


@pytest.mark.parametrize("name", HELP)
def test_help_names_what_there_is(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert poise(monkeypatch, *filter(None, [name]), "--help") == 0
    printed = capfd.readouterr()
    assert printed.err == ""
    for word in HELP[name]:
        assert word in printed.out


@pytest.mark.parametrize("words", [["--help"], ["study", "--help"], ["study"]])
def test_help_and_the_list_of_studies_need_no_heavy_import(words: list[str]) -> None:
    """What makes them answer at once."""
    heavy = ("torch", "transformers", "numpy", "pyarrow", "altair", "sympy", "counterpoise.loop")
    code = (
        f"import sys; sys.argv = {['poise', *words]!r}\n"
        "import counterpoise.cli as cli\n"
        "try: cli.main()\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        f"print('HEAVY', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


# -- answers ------------------------------------------------------------------------------------


def answer(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, *arguments: str) -> str:
    assert poise(monkeypatch, *arguments) == 0
    return capfd.readouterr().out


PARAMETERS = {
    "qwen2.5-math-7b": 7615.5,
    "qwen3-1.7b-base": 1720.6,
    "qwen3-4b-base": 4022.5,
    "demo": 1.27,
    "demo-engines": 1.27,
    "tries-warmup": 1.27,
    "embedded-aligned": 1.27,
    "embedded-batching-pilot": 1.27,
    "embedded-batching": 1.27,
    "embedded-balance-dose": 1.27,
    "embedded-credit-pilot": 1.27,
    "embedded-credit": 1.27,
    "embedded-rivals-pilot": 1.27,
    "embedded-rivals": 1.27,
    "embedded": None,  # a model that does not exist yet has no shape to read
    "smollm2-warmup": 134.5,
    "smollm2-gsm8k-warmup": 134.5,
    "smollm2-code": 134.5,
    "smollm2-pilot": None,  # the folder that a warm-up would write
    "smollm2-interventions": None,
    "smollm2-waiting": None,
    "smollm2-waiting-parts": None,
    "smollm2-tuned": None,
    "smollm2-cancellation": None,
    "smollm2-cancellation-dose": None,
    "smollm2-early-warmup": 134.5,
    "smollm2-balance-dose": None,
    "qwen-coder-gsm8k-pilot": None,  # a file of the user's
    "qwen-coder-gsm8k": None,
    "qwen-coder-aligned-pilot": None,
    "qwen-coder-aligned": None,
    "qwen-coder-batching-pilot": None,
    "qwen-coder-batching": None,
    "qwen-coder-balance": None,
    "qwen-coder-engines": None,
    "no-slips-pilot": None,
    "no-slips": None,
    "no-slips-early-warmup": None,
    "no-slips-balance-dose-pilot": None,
    "no-slips-balance-dose": None,
    "scratch-sizes-warmup": None,
    "table2": 1720.6,
}


def test_every_preset_is_known_here() -> None:
    runs = Path(__file__).parents[1] / "runs"
    assert {path.stem for path in runs.glob("*.toml")} == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_dry_runs_of_presets(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = answer(monkeypatch, capfd, "train", name, "--dry-run", "--out", "run")
    config = config_from_tables(tomllib.loads(text))  # what follows the options is comments
    assert config == load_config(name)
    sample = config.sample
    assert f"{sample.prompts} prompts x {sample.group_size}" in text
    assert f"{config.batch.steps} optimizer steps" in text
    told = re.search(r"model +([\d,.]+) M parameters", text)
    if PARAMETERS[name] is None:
        assert told is None
    else:
        assert told is not None
        assert float(told[1].replace(",", "")) == pytest.approx(PARAMETERS[name], rel=0.03)
        assert "GB" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["native", "trl"])
def test_a_dry_run_refuses_a_missing_model_folder(
    engine: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "empty").mkdir(parents=True)
    for name, message in {
        "missing": "no model 'missing': no such folder",
        "./missing": "no model './missing': no such folder",
        "out/missing": "no model 'out/missing': out has no such folder",
        "out/empty": "out/empty holds no model: config.json is missing",
    }.items():
        words = ("train", "demo", "--dry-run", "--engine", engine, "--set", f"model.name={name}")
        assert poise(monkeypatch, *words) == 2
        printed = capfd.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"poise: {message}")
        assert printed.err.count("\n") == 1


def test_the_run_that_train_names_works_in_an_empty_folder(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert poise(monkeypatch, "train") == 2
    message = capfd.readouterr().err
    named = re.search(r"poise (train \w+ --out \S+)", message)
    assert named, message
    answer(monkeypatch, capfd, *named[1].split(), "--dry-run")
    assert poise(monkeypatch, "train", "--help") == 0
    examples = re.findall(r"poise train ([\w.-]+) ", capfd.readouterr().out)
    assert len(examples) >= 4
    for preset in set(examples) - {"--resume"}:
        load_config(preset)  # found without the files of a clone


OF_THE_TASK = {
    "no data path", "data is a folder", "no records", "bad JSON", "missing field", "empty problem",
    "duplicate id", "not UTF-8 data", "all held out", "few records", "no hub path",
    "no gym dataset", "too few prompts",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "message"),
    [pytest.param(c, said, id=name) for name, c, said in FAULTS if name in OF_THE_TASK],
)
def test_a_dry_run_finds_the_faults_of_the_task(
    command: str,
    message: str,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    """Those that a run would find after its model was loaded."""
    words = command.format(w=world, o="none").replace("--out none", "--dry-run").split()
    assert poise(monkeypatch, *words) == 2
    found = capfd.readouterr()
    assert found.out == ""
    assert found.err.startswith("poise: ")
    assert found.err.count("\n") == 1
    assert re.search(message, found.err), found.err


def test_a_dry_run_of_a_run_to_be_resumed(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    before = contents(world)
    run = str(world / "run")
    text = answer(monkeypatch, capfd, "train", "--resume", "--out", run, "--dry-run")
    assert config_from_tables(tomllib.loads(text)) == config_from_tables(SMALL)
    assert contents(world) == before


@pytest.mark.parametrize("with_tokens", [True, False])
def test_the_plan_as_json(
    with_tokens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """Four groups of two: one right, one wrong. Loads 2, 4, 6 and 8 make two steps of 10."""
    path = tmp_path / "rollouts.jsonl"
    lines = []
    for k in range(8):
        length = k // 2 + 1
        size = {"response_tokens": [7] * length} if with_tokens else {"num_tokens": length}
        lines.append(json.dumps({"prompt_id": f"p{k // 2}", "reward": k % 2, **size}))
    path.write_text("\n".join(lines) + "\n")
    arguments = ["plan", str(path), "--composer", "grouped", "--steps", "2", "--json"]
    printed = answer(monkeypatch, capfd, *arguments)
    planned = json.loads(printed)
    assert printed.count("\n") == 1
    assert set(planned) >= {"steps", "describe"}
    assert sorted(sorted(step) for step in planned["steps"]) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    told = planned["describe"]
    assert set(told) >= {
        "split_groups", "token_imbalance", "positive_share", "max_abs_group_advantage_sum",
        "shared_token_share", "rows", "groups", "tokens_per_step",
    }  # fmt: skip
    assert (told["rows"], told["groups"], told["split_groups"]) == (8, 4, 0)
    assert told["tokens_per_step"] == [10, 10]
    assert (told["token_imbalance"], told["positive_share"]) == (1.0, 0.5)
    assert told["max_abs_group_advantage_sum"] == pytest.approx(0.0, abs=1e-9)
    assert told["shared_token_share"] == (1.0 if with_tokens else None)
    again = answer(monkeypatch, capfd, *arguments)
    assert again == printed


def test_the_plan_as_a_table(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    rows = str(world / "rows.jsonl")
    text = answer(monkeypatch, capfd, "plan", rows, "-c", "shuffled", "-k", "2")
    assert "shuffled: 4 rows of 1 groups" in text
    assert "token imbalance             1.0000" in text
    assert len(re.findall(r"^ *[12] +2 +6 ", text, re.MULTILINE)) == 2


def test_options_are_listed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = answer(monkeypatch, capfd, "options")
    for name, _, _ in list_options():
        assert name in text
    some = answer(monkeypatch, capfd, "options", "balance")
    assert "balance.tau" in some
    assert "loop.seed" not in some
    kl = answer(monkeypatch, capfd, "options", "kl")
    assert kl.splitlines()[1].startswith("update.kl ")
    assert "update.micro_tokens" in answer(monkeypatch, capfd, "options", "batch", "size")
