"""Models that are broken or malicious are one line; a short form of those of `make torture`.

The changes are those of tests/torture/hostile_models.py, here without a command around them.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "torture"))

import hostile_models
from hostile_models import EXECUTED, KINDS, change_json_file
from small_run import write_model

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.models import ModelSource, resolve_models, tokenizer_and_context
from counterpoise.lab.warmup.supervise import solution_row
from counterpoise.model import templates
from counterpoise.model.load import Policy, load_policy, save_policy
from counterpoise.model.templates import encode_prompt
from counterpoise.types import Prompt

REFUSED = {
    "endless layers": "layers, and the weights are",
    "huge matrices": "config.json names a size of",
    "pickled weights": "is a pickle, which can run code",
    "not finite": "holds numbers that are not finite",
    "wrong header": "safetensors file",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_model(folder / "model")
    return folder


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good / "model", tmp_path / "model")


def load(model: Path) -> Policy:
    return load_policy(ModelConfig(name=str(model), device="cpu"))


@pytest.mark.parametrize(("kind", "message"), REFUSED.items(), ids=list(REFUSED))
def test_a_hostile_model_is_one_line(kind: str, message: str, model: Path) -> None:
    KINDS[kind].change(model, random.Random(0))
    with pytest.raises(PoiseError, match=message) as refused:
        load(model)
    assert "\n" not in str(refused.value)
    assert not (model.parent / EXECUTED).exists()


@pytest.mark.parametrize("model_type", ["qwen3", "evil"])
def test_code_beside_a_model_is_never_run(model_type: str, model: Path) -> None:
    KINDS["custom code"].change(model, random.Random(0))
    change_json_file(model / "config.json", model_type=model_type)
    if model_type == "evil":
        with pytest.raises(PoiseError, match="contains custom code which must be executed"):
            load(model)
    else:
        load(model)
    assert not (model.parent / EXECUTED).exists()


def test_a_weight_of_another_shape(model: Path) -> None:
    weights = hostile_models.load_file(model / "model.safetensors")
    weights["model.norm.weight"] = hostile_models.torch.zeros(3)
    hostile_models.save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PoiseError, match=r"its weights have other shapes than config\.json says"):
        load(model)


def test_evaluation_looks_at_the_files_first(model: Path) -> None:
    hostile_models.endless_layers(model, random.Random(0))
    with pytest.raises(PoiseError, match="layers, and the weights are"):
        tokenizer_and_context(ModelSource("x", str(model), str(model), ""))


def test_a_pipe_is_not_waited_for(model: Path) -> None:
    (model / "model.safetensors").unlink()
    hostile_models.os.mkfifo(model / "model.safetensors")
    for read in (load, lambda folder: resolve_models([str(folder)])):
        with pytest.raises(PoiseError, match="is a pipe or a device, not a file"):
            read(model)


@pytest.mark.parametrize("ends", [[[2], 10**9, -1, 1.5, "2"], {"a": 1}])
def test_what_is_no_token_ends_no_response(ends: Any, model: Path) -> None:
    change_json_file(model / "generation_config.json", eos_token_id=ends)
    policy = load(model)
    assert policy.end_tokens == (policy.tokenizer.eos_token_id,)


def test_generation_settings_that_cannot_be_stored_do_not_end_a_run(
    model: Path, tmp_path: Path
) -> None:
    change_json_file(model / "generation_config.json", temperature=-1, eos_token_id=[3, 5])
    policy = load(model)
    save_policy(policy, tmp_path / "stored")
    assert load(tmp_path / "stored").end_tokens == policy.end_tokens == (3, 5)


def test_prompts_that_the_model_cannot_read(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load(good / "model")
    with pytest.raises(PoiseError, match=r"has 600 tokens, and its tokenizer uses number 100,000"):
        policy.as_tokens([3, 100_000])
    assert policy.as_tokens([3, 4]).dtype == np.int32
    policy.tokenizer.chat_template = "{# nothing #}"
    with pytest.raises(PoiseError, match="template 'chat' makes a prompt without tokens"):
        encode_prompt("chat", policy.tokenizer, "1 + 1")
    policy.tokenizer.chat_template = "{{ 'x' * 5000 }}"
    monkeypatch.setattr(templates, "LONGEST_CHAT", 4999)
    with pytest.raises(PoiseError, match=r"makes a prompt of 5,000 characters"):
        encode_prompt("chat", policy.tokenizer, "1 + 1")


def test_a_solution_cannot_end_in_a_token_that_the_model_lacks(model: Path) -> None:
    change_json_file(model / "tokenizer_config.json", eos_token="<no such token>")
    change_json_file(model / "generation_config.json", eos_token_id=[3])
    policy = load(model)
    with pytest.raises(PoiseError, match=r"has 600 tokens, and its tokenizer uses number 600"):
        solution_row(policy, Prompt("p", "1 + 1", "2", "1 + 1 = 2"))


def test_an_adapter_without_its_weights(good: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    hostile_models.write_adapter(tmp_path / "adapter", good / "model")
    assert load(tmp_path / "adapter").num_parameters > 0
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    hostile_models.save_file({"nothing": hostile_models.torch.zeros(1)}, weights)
    with pytest.raises(PoiseError, match="cannot be loaded: its file lacks weights"):
        load(tmp_path / "adapter")
    weights.rename(weights.with_name("adapter_model.bin"))
    with pytest.raises(PoiseError, match=r"adapter_model\.bin is a pickle"):
        load(tmp_path / "adapter")
