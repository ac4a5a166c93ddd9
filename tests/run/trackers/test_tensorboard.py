"""Event files, read back by TensorBoard itself, hold what the run folder holds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import small_model

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.run.trackers.feed import send_run
from counterpoise.store.folder import RunFolder

pytest.importorskip("tensorboard", reason="pip install 'counterpoise[tensorboard]'")
SETS = [
    "loop.iterations=4", "loop.checkpoint_every=2", "model.device='cpu'", "task.levels=[1]",
    "task.size=40", "task.heldout=8", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=8", "balance.target=16", "batch.steps=2", "evaluate.prompts=4",
    "evaluate.samples=2", "evaluate.every=3", "evaluate.settings=[training, 0.6/0.95]",
    "store.report=false", "track.to=[tensorboard]",
]  # fmt: skip
Series = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a random model: what is sent does not depend on what a model knows."""
    return small_model(tmp_path_factory.mktemp("model"))


def small(*sets: str) -> RunConfig:
    return load_config("demo", [*SETS, *sets])


class Acts(RunObserver):
    """Does something after an iteration, and listens."""

    def __init__(self, after: int, act: Callable[[], object]) -> None:
        self.after, self.act, self.said = after, act, list[str]()

    def on_iteration(self, record: dict[str, Any]) -> None:
        if record["iteration"] == self.after:
            self.act()

    def notify(self, message: str) -> None:
        self.said.append(message)


class StopError(Exception):
    pass


def stop() -> None:
    raise StopError


def events(place: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(place), size_guidance={"scalars": 0})
    return read.Reload()


def shown(place: Path) -> Series:
    read = events(place)
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def held(folder: RunFolder) -> Series:
    """Every number of metrics.jsonl by its field, in the precision of an event file."""
    found: Series = {}
    for line in folder.read("metrics"):
        for field, value in line.items():
            if isinstance(value, int | float) and field not in ("schema", "iteration"):
                found.setdefault(field, []).append((line["iteration"], float(np.float32(value))))
    return found


def same(place: Path, folder: RunFolder) -> None:
    """Every field once, at every iteration once; and nothing else but what was held out."""
    tags = shown(place)
    trained = {tag: values for tag, values in tags.items() if not tag.startswith("heldout")}
    assert {tag.partition("/")[2]: values for tag, values in trained.items()} == held(folder)
    assert len(trained) == len(held(folder))
    lines = folder.read("evaluations")
    for panel, temperature in (("heldout", 1.0), ("heldout_0.6_0.95", 0.6)):
        mine = [line for line in lines if line["temperature"] == temperature]
        for name, field in (("success", "mean"), ("success_low", "low"), ("pass_any", "pass_any")):
            values = [(line["iteration"], float(np.float32(line[field]))) for line in mine]
            assert tags[f"{panel}/{name}"] == values


def test_a_run_that_is_resumed_shows_every_iteration_once(tmp_path: Path, model: list[str]) -> None:
    """Stopped after iteration 3; its checkpoint is of iteration 2."""
    out = tmp_path / "run"
    with pytest.raises(StopError):
        train(small(*model), out, observer=Acts(3, stop))
    folder, place = RunFolder.open(out), out / "tensorboard"
    same(place, folder)
    assert [step for step, _ in shown(place)["reward/success"]] == [1, 2, 3]
    train(small(*model), out, resume=True)
    same(place, folder)
    tags = shown(place)
    assert [step for step, _ in tags["reward/success"]] == [1, 2, 3, 4]
    assert [step for step, _ in tags["heldout/success"]] == [0, 3, 4]
    *_, config = events(place).Tensors("config/text_summary")
    (text,) = config.tensor_proto.string_val
    assert "| sample.prompts | `4` |" in text.decode()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_fails_is_let_go_and_the_run_goes_on(
    tmp_path: Path, model: list[str]
) -> None:
    """Its files are gone after the first iteration: the next row cannot be written."""
    out = tmp_path / "run"
    watch = Acts(1, lambda: shutil.rmtree(out / "tensorboard"))
    folder = train(small(*model, "loop.iterations=3"), out, observer=watch)
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2, 3]
    assert (out / "finished.json").is_file()
    (said,) = [line for line in watch.said if "tensorboard" in line]
    assert said.startswith("tensorboard is off: [Errno 2] No such file or directory")
    assert said.endswith(f"poise track {out} --to tensorboard")
    send_run(out, ["tensorboard"], None)
    same(out / "tensorboard", folder)


def test_a_place_that_cannot_be_written_does_not_end_a_run(
    tmp_path: Path, model: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_unused = RunFolder.check_unused

    def block_after_check(folder: RunFolder) -> None:
        check_unused(folder)
        (folder.path / "tensorboard").write_text("a file")

    monkeypatch.setattr(RunFolder, "check_unused", block_after_check)
    watch = Acts(0, stop)
    config = small(*model, "loop.iterations=1", "evaluate.prompts=0")
    folder = train(config, tmp_path / "run", observer=watch)
    assert len(folder.read("metrics")) == 1
    (said,) = [line for line in watch.said if "tensorboard" in line]
    assert said.startswith("tensorboard is off: [Errno 17] File exists")


def test_without_the_package_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "counterpoise.run.trackers.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(PoiseError, match=r"tensorboard cannot be imported .*counterpoise\[tensorb"):
        train(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
