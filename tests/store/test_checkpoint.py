"""Checkpoints: complete or absent, and a damaged one gives way to the one before it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from counterpoise.errors import PoiseError
from counterpoise.store.checkpoint import (
    MODEL_FILE,
    Checkpoint,
    find_damage,
    initial_digest,
    list_checkpoints,
    load_checkpoint_weights,
    load_newest,
    model_weights,
    newest_intact_options,
    save,
)

FILES = {
    "model.safetensors", "optimizer.safetensors", "buffer.safetensors", "state.json",
    "manifest.json",
}  # fmt: skip


def checkpoint(iteration: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(iteration)
    weights = torch.randn(20, 10, generator=generator)
    return Checkpoint(
        iteration=iteration,
        model={"w": weights, "half": weights.to(torch.bfloat16)},
        optimizer={"0/exp_avg": weights * 1e-30, "steps": torch.tensor(iteration)},
        buffer={"tokens": torch.arange(iteration, dtype=torch.int32)},
        state={"rows": [{"group": "½", "advantage": 0.1}], "skipped_in_a_row": 2},
    )


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.iteration == b.iteration
    for part in ("model", "optimizer", "buffer"):
        left, right = getattr(a, part), getattr(b, part)
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            assert tensor.dtype == right[name].dtype
            assert torch.equal(tensor, right[name])
    assert a.state.items() <= b.state.items()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for iteration in (10, 20):
        save(tmp_path / "checkpoints", checkpoint(iteration), keep=2)
    return tmp_path / "checkpoints"


def newest(folder: Path) -> tuple[int | None, list[str]]:
    said: list[str] = []
    found = load_newest(folder, said.append)
    return found and found.iteration, said


def test_what_is_saved_is_loaded_bit_for_bit(folder: Path) -> None:
    said: list[str] = []
    found = load_newest(folder, said.append)
    assert found is not None
    assert_same(checkpoint(20), found)
    assert said == []
    assert {p.name for p in (folder / "iteration_00020").iterdir()} == FILES


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for iteration in (5, 9, 10, 100):
        save(tmp_path, checkpoint(iteration), keep=2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["iteration_00010", "iteration_00100"]
    save(tmp_path, checkpoint(101), keep=1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["iteration_00101"]


def test_a_damaged_one_does_not_take_the_place_of_one_that_can_be_used(tmp_path: Path) -> None:
    """Resumed after 5, since 10 was damaged, and stopped after 7: only 7 can be gone on with."""
    for iteration in (5, 10):
        save(tmp_path, checkpoint(iteration), keep=2)
    flip(tmp_path / "iteration_00010" / "model.safetensors")
    save(tmp_path, checkpoint(7), keep=1)
    found, said = newest(tmp_path)
    assert found == 7
    assert len(said) == 1
    save(tmp_path, checkpoint(11), keep=1)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["iteration_00011"]


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 9])
def test_as_many_are_kept_as_asked_for(tmp_path: Path, keep: int) -> None:
    for iteration in range(1, 6):
        save(tmp_path, checkpoint(iteration), keep)
    kept = [int(p.name[-5:]) for p in list_checkpoints(tmp_path)]
    assert kept == list(range(1, 6))[-keep:]


def test_the_options_are_found_without_reading_weights(tmp_path: Path) -> None:
    assert newest_intact_options(tmp_path) is None
    for iteration in (1, 2, 3):
        made = replace(checkpoint(iteration), options=f"schema = {iteration}\n")
        save(tmp_path, made, keep=3)
    empty(tmp_path / "iteration_00003" / "model.safetensors")
    assert newest_intact_options(tmp_path) == tmp_path / "iteration_00003" / "options.toml"
    flip(tmp_path / "iteration_00003" / "options.toml")
    assert newest_intact_options(tmp_path) == tmp_path / "iteration_00002" / "options.toml"
    found = load_newest(tmp_path, print)
    assert found is not None
    assert found.options == "schema = 2\n"


def test_more_than_five_digits(tmp_path: Path) -> None:
    for iteration in (99_999, 100_000):
        save(tmp_path, checkpoint(iteration), keep=2)
    assert newest(tmp_path) == (100_000, [])
    save(tmp_path, checkpoint(100_001), keep=1)
    assert newest(tmp_path) == (100_001, [])


def test_one_of_the_same_iteration_is_replaced(folder: Path) -> None:
    save(folder, Checkpoint(20, {"w": torch.ones(1)}, {}, {}, {"rows": []}), keep=2)
    found = load_newest(folder, print)
    assert found is not None
    assert found.model["w"].tolist() == [1.0]
    assert [p.name for p in list_checkpoints(folder)] == ["iteration_00010", "iteration_00020"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, flip, Path.unlink])
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(folder: Path, name: str, damage) -> None:
    damage(folder / "iteration_00020" / name)
    found, said = newest(folder)
    assert found == 10
    assert len(said) == 1
    assert said[0].startswith("checkpoint iteration_00020 is damaged (")
    assert name in said[0]
    assert said[0].endswith("trying the one before it")


@pytest.mark.parametrize(
    "manifest",
    [
        "", "{", "null", "[]", "7", "{}",
        '{"schema": 1}',
        '{"schema": 1, "sha256": []}',
        '{"schema": 1, "sha256": {}}',
        '{"schema": 1, "sha256": null}',
        '{"schema": 99, "sha256": {}}',
        "\udcff",
    ],
)  # fmt: skip
def test_a_bad_manifest(folder: Path, manifest: str) -> None:
    path = folder / "iteration_00020" / "manifest.json"
    path.write_bytes(manifest.encode("utf-8", "surrogateescape"))
    found, said = newest(folder)
    assert found == 10
    assert len(said) == 1


def test_none_is_whole(folder: Path) -> None:
    for path in list_checkpoints(folder):
        flip(path / "model.safetensors")
    found, said = newest(folder)
    assert found is None
    assert [line.split()[1] for line in said] == ["iteration_00020", "iteration_00010"]
    assert ["trying the one before" in line for line in said] == [True, False]


def test_none_at_all(tmp_path: Path) -> None:
    assert newest(tmp_path / "checkpoints") == (None, [])
    (tmp_path / "iteration_00003").write_text("a file is no checkpoint")
    assert newest(tmp_path) == (None, [])


def test_one_being_written_does_not_count(folder: Path) -> None:
    """A process killed while saving leaves a hidden folder; it is neither loaded nor in the way."""
    unfinished = folder / f".iteration_00030.{os.getpid()}.part"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    assert newest(folder) == (20, [])
    save(folder, checkpoint(30), keep=2)
    assert newest(folder) == (30, [])
    assert not unfinished.exists()


def test_what_a_killed_process_left_is_cleared_away(folder: Path) -> None:
    unfinished = folder / ".iteration_00030.1.part"  # of another process
    unfinished.mkdir()
    save(folder, checkpoint(30), keep=2)
    assert not unfinished.exists()


def test_the_manifest_is_checked_before_anything_is_loaded(folder: Path) -> None:
    manifest = json.loads((folder / "iteration_00020" / "manifest.json").read_text())
    assert set(manifest["sha256"]) == FILES - {"manifest.json"}
    assert all(len(digest) == 64 for digest in manifest["sha256"].values())


def test_a_file_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def fail_to_open(path: Path, *arguments: Any, **options: Any) -> object:
        if path.name == "model.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail_to_open)
    assert find_damage(folder / "iteration_00020").startswith("model.safetensors cannot be read: ")


@pytest.mark.parametrize("content", ["[" * 100_000, "3", '{"sha256": 3}', "\x00", "{}"])
def test_a_manifest_of_anything_else_is_a_damaged_checkpoint(folder: Path, content: str) -> None:
    (folder / "iteration_00020" / "manifest.json").write_text(content)
    iteration, told = newest(folder)
    assert iteration == 10
    assert len(told) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_weight_is_saved_once(tied: bool) -> None:
    weights = model_weights(tiny.policy(tie_word_embeddings=tied).model)
    assert ("lm_head.weight" in weights) is not tied
    assert "model.embed_tokens.weight" in weights
    assert not any(w.requires_grad for w in weights.values())


@pytest.mark.parametrize(
    "saved",
    [
        {"weight": torch.zeros(3, 3), "bias": torch.zeros(3)},
        {"weight": torch.zeros(2, 2), "bias": torch.zeros(1)},  # torch would broadcast it
        {"weight": torch.zeros(2, 2)},
        {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "more": torch.zeros(2)},
    ],
    ids=["shapes", "one element", "missing", "further"],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, saved: dict) -> None:
    save(tmp_path, replace(checkpoint(1), model=saved), keep=1)
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(PoiseError, match="not a checkpoint of the model 'linear' as it is now"):
        load_checkpoint_weights(model, "linear", tmp_path / "iteration_00001")
    assert torch.equal(model.weight, before)


def test_weights_that_have_changed_since_they_were_saved_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    save(tmp_path, replace(checkpoint(1), model=model_weights(model)), keep=1)
    file = tmp_path / "iteration_00001" / MODEL_FILE
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(PoiseError, match=r"is damaged: model\.safetensors has changed"):
        load_checkpoint_weights(model, "linear", tmp_path / "iteration_00001")
    assert torch.equal(model.weight, before)
    with pytest.raises(PoiseError, match="iteration_00002 does not exist"):
        load_checkpoint_weights(model, "linear", tmp_path / "iteration_00002")


def test_the_digest_of_a_loaded_model_tells_whether_it_has_changed() -> None:
    layer = torch.nn.Linear(4, 4)
    adapter = torch.nn.ModuleDict({"default": torch.nn.Linear(4, 2, bias=False)})
    projection = torch.nn.ModuleDict({"base_layer": layer, "lora_A": adapter})
    model = torch.nn.ModuleDict({"q_proj": projection})  # names as PEFT has them
    digest = initial_digest(model)
    assert digest.startswith("float32 ")
    adapter["default"].weight.data += 1  # a new adapter's is random
    assert initial_digest(model) == digest
    layer.weight.data[0, 0] += 1e-3
    assert initial_digest(model) != digest
