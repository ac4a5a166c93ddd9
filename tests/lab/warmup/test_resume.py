"""A warm-up that is stopped or killed goes on, to the weights of one that was not: bit for bit."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from small_run import write_model

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.warmup import resume, run
from counterpoise.lab.warmup.resume import unfinished_folder
from counterpoise.lab.warmup.run import run_warmup
from counterpoise.model.load import Policy, save_policy
from counterpoise.run.interrupts import sigterm_as_interrupt
from counterpoise.store import checkpoint

SETS = [
    "model.device=cpu", "loop.threads=1", "task.levels=[2]", "task.size=12", "task.heldout=2",
    "sample.max_new_tokens=12", "evaluate.prompts=2", "evaluate.samples=2", "verify.name=exact",
    "warmup.steps=6", "warmup.batch=4", "warmup.lr=1e-3", "warmup.evaluate_every=2",
]  # fmt: skip
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from counterpoise.config.load import load_config
from counterpoise.lab.warmup import run, resume as unfinished

torch.set_num_threads(1)
unfinished.MIN_SAVE_INTERVAL_SECONDS, unfinished.SAVE_INTERVAL_FACTOR = 0.0, 0  # after every step
save = unfinished.WarmupCheckpoints.save

def save_and_die(self, optimizer, taken):
    save(self, optimizer, taken)
    if taken == 3:
        os.kill(os.getpid(), signal.SIGKILL)

unfinished.WarmupCheckpoints.save = save_and_die
run.run_warmup(load_config("demo", sys.argv[2:]), Path(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """In the background of a script Ctrl-C is ignored; here it never is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The option that names a random model of one layer: its steps and looks take milliseconds."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_model(folder)
    return f"model.name={folder}"


def small(*sets: str) -> RunConfig:
    return load_config("demo", [*SETS, *sets])


def note_weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """By the folder's name, the float32 weights that were trained; what is saved is rounded."""
    weights: dict[str, torch.Tensor] = {}

    def noting(policy: Policy, out: Path, *rest: Any) -> None:
        weights[out.name] = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
        save_policy(policy, out, *rest)

    monkeypatch.setattr(run, "save_policy", noting)
    return weights


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    return note_weights(monkeypatch)


Undisturbed = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The weights and the record of a warm-up that nothing stops, trained once for its options."""

    @cache
    def train(*sets: str) -> tuple[torch.Tensor, dict[str, Any]]:
        out = tmp_path_factory.mktemp("undisturbed") / "whole"
        with pytest.MonkeyPatch.context() as patched:
            weights = note_weights(patched)
            run_warmup(small(*sets), out)
        assert [path.name for path in out.parent.iterdir()] == ["whole"]
        return weights["whole"], record(out)

    return train


def record(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "warmup.json").read_text())
    return told


class Stopping:
    """A signal in the middle of a step or of a look, as if it came from outside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, moment: str) -> None:
        name = {"step": "backward", "look": "evaluate_policy"}[moment]
        module = {"step": "counterpoise.lab.warmup.supervise", "look": run.__name__}[moment]
        inner = getattr(sys.modules[module], name)
        self.calls = 0

        def outer(*args: Any, **given: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                signal.raise_signal(number)
            return inner(*args, **given)

        monkeypatch.setattr(f"{module}.{name}", outer)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["task.environment=tries"]], ids=["solutions", "turns"])
def test_a_warm_up_that_was_killed_ends_in_the_same_weights(
    tmp_path: Path,
    model: str,
    ends: dict[str, torch.Tensor],
    undisturbed: Undisturbed,
    more: list[str],
) -> None:
    config, out = small(model, *more), tmp_path / "killed"
    words = [sys.executable, "-c", KILLED, str(out), *SETS, model, *more]
    done = forked.run(words, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not out.exists()
    kept = checkpoint.list_checkpoints(unfinished_folder(out))
    assert [path.name for path in kept] == [checkpoint.folder_name(2), checkpoint.folder_name(3)]
    run_warmup(config, out, resume=True)
    weights, expected = undisturbed(model, *more)
    assert torch.equal(ends["killed"], weights)
    assert record(out) == expected
    assert [look["step"] for look in record(out)["judged"]] == [2, 4, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("moment", "taken"), [("step", 2), ("look", 4)])
def test_stopped_in_a_step_or_a_look_it_loses_nothing(
    tmp_path: Path,
    model: str,
    ends: dict[str, torch.Tensor],
    undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    moment: str,
    taken: int,
) -> None:
    """The step is finished; the look is taken when the warm-up goes on."""
    config, out = small(model), tmp_path / "stopped"
    with monkeypatch.context() as once:
        Stopping(once, number, moment)
        with sigterm_as_interrupt(), pytest.raises(KeyboardInterrupt):
            run_warmup(config, out)
    kept = checkpoint.list_checkpoints(unfinished_folder(out))
    assert [path.name for path in kept] == [checkpoint.folder_name(taken)]
    run_warmup(config, out, resume=True)
    weights, expected = undisturbed(model)
    assert torch.equal(ends["stopped"], weights)
    assert record(out) == expected


def test_what_was_stopped_is_neither_thrown_away_nor_gone_on_with_as_another(
    tmp_path: Path,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, out = small(model, "warmup.evaluate_every=0", "evaluate.prompts=0"), tmp_path / "model"
    with pytest.raises(PoiseError, match=r"there is no warm-up of .*model to resume"):
        run_warmup(config, out, resume=True)
    with monkeypatch.context() as once:
        Stopping(once, signal.SIGINT, "step")
        with pytest.raises(KeyboardInterrupt):
            run_warmup(config, out)
    with pytest.raises(PoiseError, match="holds a warm-up that was stopped: add --resume"):
        run_warmup(config, out)
    other = replace(config, warmup=replace(config.warmup, lr=1e-4))
    with pytest.raises(PoiseError, match=r"made with warmup\.lr=0\.001, not 0\.0001"):
        run_warmup(other, out, resume=True)
    for again in (True, False):
        with (
            folder_lock(unfinished_folder(out)),
            pytest.raises(PoiseError, match="written by another process"),
        ):
            run_warmup(config, out, resume=again)
    (saved,) = checkpoint.list_checkpoints(unfinished_folder(out))
    weights = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(b"")
    with pytest.raises(PoiseError, match=r"no checkpoint in .*model\.unfinished can be used"):
        run_warmup(config, out, resume=True)
    (saved / "model.safetensors").write_bytes(weights)
    (tmp_path / ".model.4711.part").mkdir()  # of one that was killed while it saved the model
    free = replace(config, update=replace(config.update, micro_tokens=200))
    run_warmup(free, out, resume=True)
    assert "resuming after step 2" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(PoiseError, match="not an empty folder"):
        run_warmup(config, out, resume=True)


def test_what_kept_nothing_leaves_nothing(
    tmp_path: Path,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object, **given: object) -> None:
        raise PoiseError("not finite")

    config, out = small(model, "warmup.evaluate_every=0", "evaluate.prompts=0"), tmp_path / "model"
    with monkeypatch.context() as once:
        once.setattr("counterpoise.lab.warmup.supervise.take_supervised_step", broken)
        with pytest.raises(PoiseError, match="not finite"):
            run_warmup(config, out)
    assert list(tmp_path.iterdir()) == []
    unfinished_folder(out).mkdir()  # of one that was killed before its first checkpoint
    run_warmup(config, out, resume=True)
    assert "starting from the first step" in capsys.readouterr().out.replace("\n", " ")


def test_checkpoints_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(resume.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "model_weights", lambda model: {})
    monkeypatch.setattr(checkpoint, "save", lambda *_: now.__setitem__(0, now[0] + 10.0))

    class Nothing:
        model, size = None, 0

        def state(self) -> dict[str, Any]:
            return {}

    keeper = resume.WarmupCheckpoints(Path(), Nothing(), Nothing(), small(), [], print)  # type: ignore[arg-type]
    assert not keeper.is_due()
    now[0] = 60.0
    assert keeper.is_due()
    keeper.save(Nothing(), 1)  # type: ignore[arg-type]  # ends at 70
    now[0] = 70.0 + 199.0
    assert not keeper.is_due()
    now[0] = 70.0 + 200.0
    assert keeper.is_due()
