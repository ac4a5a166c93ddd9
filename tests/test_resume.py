"""A run that is killed and resumed ends as one that was not: bit for bit, on the CPU."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forked
import pytest
import torch
from power_cut import PowerCut
from safetensors.torch import load_file
from small_run import SETS as SMALL_SETS
from small_run import checksum_reward, small_config

from counterpoise import loop
from counterpoise.config import ModelConfig, RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.model.load import load_policy
from counterpoise.run import evaluate_heldout
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder

ITERATIONS = 7
# Of the random model of small_run.py: what a checkpoint has to hold does not depend on the weights.
SETS = [
    f"loop.iterations={ITERATIONS}", "evaluate.every=3", "balance.target=12",
]  # fmt: skip
# One run of the embedded model, whose rollouts end by themselves.
EMBEDDED_SETS = [
    "loop.iterations=2", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=40", "task.heldout=8", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=48", "balance.tau=0", "batch.steps=2", "evaluate.prompts=2",
    "evaluate.samples=1", "evaluate.every=3",
]  # fmt: skip
CHILD = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from counterpoise.loop import train
from counterpoise.config.load import load_config
out = Path(sys.argv[1])
print("ready", flush=True)
train(load_config("demo", sys.argv[2:]), out, resume=(out / "config.toml").exists())
"""


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves behind, less times."""

    def timeless(record: dict) -> dict:
        return {k: v for k, v in record.items() if not k.endswith(("_seconds", "_per_second"))}

    logs = {
        log: [timeless(json.loads(x)) for x in (folder / f"{log}.jsonl").read_text().splitlines()]
        for log in ("metrics", "plans", "drops", "evaluations")
        if (folder / f"{log}.jsonl").exists()
    }
    last = checkpoint.list_checkpoints(folder / "checkpoints")[-1]
    weights = {
        f"{name}/{k}": v.flatten().view(torch.uint8).numpy().tobytes()
        for name in ("model", "optimizer", "buffer")
        for k, v in load_file(last / f"{name}.safetensors").items()
    }
    rollouts = {p.name: p.read_text() for p in sorted((folder / "rollouts").iterdir())}
    tokens = {p.name: p.read_bytes() for p in sorted((folder / "tokens").iterdir())}
    return {**logs, **weights, "rollouts": rollouts, "tokens": tokens, "last": last.name}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the random model and of the reward function."""
    folder = tmp_path_factory.mktemp("source")
    small_config(folder)
    return folder


@pytest.fixture(scope="module")
def config(source: Path) -> RunConfig:
    return small_config(source, *SETS)


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("resume") / "whole"
    train(config, out)
    return out


@pytest.fixture(scope="module")
def undisturbed(finished: Path) -> dict[str, object]:
    result = outcome(finished)
    assert len(result["metrics"]) == ITERATIONS
    assert [r["iteration"] for r in result["evaluations"]] == [0, 3, 6, 7]
    assert {"metrics", "plans", "drops"} <= result.keys()
    assert any(r["steps"] == 2 for r in result["metrics"])
    assert any(r["steps"] == 0 for r in result["metrics"])  # rows wait in the buffer
    return result


def same(a: dict[str, object], b: dict[str, object]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert a[key] == b[key], f"{key} differs"


class StopError(Exception):
    pass


class Listen(RunObserver):
    """What a run says, less the line about the reward function, which every run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, message: str) -> None:
        if not message.startswith("reward mine.py:score: "):
            self.said.append(message)


@pytest.mark.parametrize("stage", ["sample_groups", "update", "save_state", "evaluate"])
def test_interrupted_in_any_stage(
    stage: str,
    tmp_path: Path,
    config: RunConfig,
    undisturbed: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as until:
        fail_at_call(until, stage, 3)
        with pytest.raises(StopError):
            train(config, out)
    train(config, out, resume=True)
    same(outcome(out), undisturbed)


def fail_at_call(monkeypatch: pytest.MonkeyPatch, stage: str, call: int) -> None:
    """Let a stage of the loop raise StopError when it is called for the given time."""
    real, calls = getattr(loop, stage), 0

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise StopError
        return real(*args, **options)

    monkeypatch.setattr(loop, stage, failing)


@pytest.mark.slow
def test_a_run_of_the_embedded_model_is_resumed_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("demo", EMBEDDED_SETS)
    train(config, tmp_path / "whole")
    with monkeypatch.context() as until:
        fail_at_call(until, "update", 2)
        with pytest.raises(StopError):
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    expected = outcome(tmp_path / "whole")
    assert [record["steps"] for record in expected["metrics"]] == [2, 2]
    same(outcome(tmp_path / "run"), expected)


@pytest.mark.parametrize(
    ("module", "stage", "call"),
    [(loop, "update", 2), (checkpoint, "remove_superseded", 2), (loop, "evaluate", 5)],
    ids=["in an update", "after a checkpoint", "in an evaluation"],
)
def test_a_power_cut_loses_nothing_that_a_checkpoint_promises(
    module: Any,
    stage: str,
    call: int,
    tmp_path: Path,
    config: RunConfig,
    undisturbed: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run goes on with what was flushed to the disk, from its last checkpoint."""
    real, calls, listen = getattr(module, stage), 0, Listen()

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise StopError
        return real(*args, **options)

    (tmp_path / "disk").mkdir()
    with monkeypatch.context() as until:
        power = PowerCut(until)
        until.setattr(module, stage, failing)
        with pytest.raises(StopError):
            train(config, tmp_path / "disk" / "run")
        power.leaves(tmp_path / "disk", tmp_path / "cut")
    out = tmp_path / "cut" / "run"
    saved = checkpoint.list_checkpoints(out / "checkpoints")
    assert saved
    train(config, out, resume=True, observer=listen)
    assert listen.said == [f"resuming after iteration {int(saved[-1].name[-5:])}"]
    same(outcome(out), undisturbed)


def test_a_power_cut_after_the_end_leaves_everything(
    tmp_path: Path,
    config: RunConfig,
    undisturbed: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "disk").mkdir()
    power = PowerCut(monkeypatch)
    out = train(config, tmp_path / "disk" / "run").path
    power.leaves(tmp_path / "disk", tmp_path / "cut")
    left = tmp_path / "cut" / "run"
    same(outcome(left), undisturbed)
    whole = [path for path in out.rglob("*") if path.is_file()]
    assert out / "finished.json" in whole
    assert out / "model" / "model.safetensors" in whole
    for path in whole:
        assert (left / path.relative_to(out)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize(
    ("module", "stage", "call", "behind"),
    [(loop, "update", 2, 4), (evaluate_heldout, "evaluate_policy", 2, 3)],
)
def test_stopped_by_ctrl_c_it_loses_no_iteration(
    module: ModuleType,
    stage: str,
    call: int,
    behind: int,
    tmp_path: Path,
    source: Path,
    undisturbed: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of an iteration it is finished, in an evaluation it is not; either way a
    checkpoint is there that was not due."""
    real, calls, finished = getattr(module, stage), 0, []

    def stopping(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
            finished.append(True)
        return real(*args, **options)

    monkeypatch.setattr(module, stage, stopping)
    out, config = tmp_path / "run", small_config(source, *SETS, "loop.checkpoint_every=100")
    with pytest.raises(KeyboardInterrupt):
        train(config, out)
    assert bool(finished) == (stage == "update")
    kept = [path.name for path in checkpoint.list_checkpoints(out / "checkpoints")]
    assert kept == [checkpoint.folder_name(behind)]
    train(config, out, resume=True)
    same(outcome(out), undisturbed)


def test_weights_that_are_not_finite_end_the_run_before_they_are_stored(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iteration 1 is whole; the update of iteration 2 leaves one weight at infinity."""
    update = loop.update

    def diverging(state: RunState, *given: Any) -> Any:
        results = update(state, *given)
        if state.iteration == 1:
            with torch.no_grad():
                state.optimizer.weights[-1].view(-1)[-1] = torch.inf
        return results

    monkeypatch.setattr(loop, "update", diverging)
    config = small_config(
        source, *SETS, "balance.tau=0", "loop.iterations=3", "loop.checkpoint_every=1"
    )
    with pytest.raises(PoiseError, match=r"^the weights are not finite after the update of iter"):
        train(config, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert [line["iteration"] for line in folder.read("metrics")] == [1]
    monkeypatch.setattr(loop, "update", update)
    train(config, tmp_path / "run", resume=True)
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2, 3]


def test_a_damaged_checkpoint_is_passed_over_with_a_message(
    tmp_path: Path, config: RunConfig, finished: Path, undisturbed: dict[str, object]
) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    *_, before, last = checkpoint.list_checkpoints(out / "checkpoints")
    weights = last / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    listen = Listen()
    train(config, out, resume=True, observer=listen)
    assert f"checkpoint {last.name} is damaged (model.safetensors has changed)" in listen.said[0]
    assert listen.said[1] == f"resuming after iteration {int(before.name[-5:])}"
    same(outcome(out), undisturbed)


def test_resuming_a_finished_run_changes_nothing(
    tmp_path: Path, config: RunConfig, finished: Path, undisturbed: dict[str, object]
) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    before = (out / "metrics.jsonl").read_bytes()
    listen = Listen()
    train(config, out, resume=True, observer=listen)
    assert (out / "metrics.jsonl").read_bytes() == before
    same(outcome(out), undisturbed)
    assert listen.said == [
        "already finished: 7 iterations; to continue, raise loop.iterations, for example --set "
        "loop.iterations=14"
    ]
    (out / "finished.json").unlink()  # killed before it was written
    train(config, out, resume=True, observer=listen)
    assert listen.said[1:] == ["resuming after iteration 7"]
    assert (out / "finished.json").is_file()


def test_a_run_can_be_lengthened_and_its_policy_loaded(
    tmp_path: Path, source: Path, config: RunConfig, finished: Path
) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    longer = small_config(source, *SETS, f"loop.iterations={ITERATIONS + 1}")
    folder = train(longer, out, resume=True)
    assert folder.read_config() == longer
    with pytest.raises(PoiseError, match="has already done 8 iterations"):
        train(config, out, resume=True)
    assert [r["iteration"] for r in folder.read("metrics")] == list(range(1, ITERATIONS + 2))
    weights = load_file(checkpoint.list_checkpoints(out / "checkpoints")[-1] / "model.safetensors")
    for name, parameter in load_policy(
        ModelConfig(name=str(out / "model"), device="cpu")
    ).model.named_parameters():
        assert torch.equal(parameter.detach(), weights[name])


@pytest.mark.slow
def test_sigkill_at_ten_random_moments(
    tmp_path: Path, source: Path, undisturbed: dict[str, object]
) -> None:
    out = tmp_path / "run"
    sets = [
        *SMALL_SETS, f"model.name={source / 'model'}", f"verify.name={source}/mine.py:score", *SETS,
    ]  # fmt: skip
    moments = random.Random(7)
    kills = 0
    while True:
        child = forked.Popen(
            [sys.executable, "-c", CHILD, str(out), *sets], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if kills == 10:
            assert child.wait() == 0
            break
        try:
            child.wait(timeout=moments.uniform(0.05, 0.7))  # a whole run takes about half a second
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
        kills += 1  # a child that ended by itself had finished the run: resuming it is a test too
    same(outcome(out), undisturbed)


KILLED_CHILD = """
import os, signal, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from counterpoise import loop
from counterpoise.config.load import load_config
out, stage, call = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls = iter(range(1, 1 << 20))
real = getattr(loop, stage)
def killed(*given, **options):
    result = real(*given, **options)
    if next(calls) == call:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(loop, stage, killed)
loop.train(load_config("demo", sys.argv[4:]), out, resume=(out / "config.toml").exists())
"""
NEVER = ("update", 0)
CRASH_MOMENTS = (("sample_groups", 2), ("update", 1), ("save_state", 1), ("update", 2))
GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=GPU)],
)
def test_a_repeatable_run_that_is_killed_four_times_ends_with_the_same_bytes(
    device: str, tmp_path: Path
) -> None:
    """The embedded model with sums in a fixed order: on a GPU in bfloat16, with CUDA graphs."""
    sets = [*EMBEDDED_SETS, *checksum_reward(tmp_path), f"model.device={device}",
            "update.repeatable=true", "sample.max_new_tokens=16", "loop.iterations=3",
            "loop.keep_checkpoints=1"]  # fmt: skip

    def run(out: Path, moment: tuple[str, int]) -> int:
        words = [str(out), moment[0], str(moment[1]), *sets]
        child = forked.run([sys.executable, "-c", KILLED_CHILD, *words])
        assert child.returncode in (0, -signal.SIGKILL), child.stderr
        return child.returncode

    assert run(tmp_path / "whole", NEVER) == 0
    assert all(run(tmp_path / "killed", moment) == -signal.SIGKILL for moment in CRASH_MOMENTS)
    assert run(tmp_path / "killed", NEVER) == 0
    same(outcome(tmp_path / "killed"), outcome(tmp_path / "whole"))
