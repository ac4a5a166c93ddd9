"""Which models are meant, what they are called, and how weights are known again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.models import load_model, resolve_models, tokenizer_and_context
from counterpoise.lab.evaluate.plan import BenchmarkProblems, EvaluationOptions, encode_prompts
from counterpoise.model import template_limits
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy
from counterpoise.model.templates import encode_prompt
from counterpoise.store.checkpoint import Checkpoint, model_weights, save
from counterpoise.store.folder import RunFolder
from counterpoise.task.benchmarks import find_benchmark
from counterpoise.types import Prompt


def test_labels_are_short_and_differ(tmp_path: Path) -> None:
    for name in ("a/model", "b/model", "c/b/model"):
        shutil.copytree(EMBEDDED_FOLDER, tmp_path / name)
    names = [str(tmp_path / name) for name in ("a/model", "b/model", "c/b/model")]
    found = resolve_models([*names, "embedded", "shape:qwen3-0.6b", "owner/name"])
    assert [one.label for one in found] == [
        "a", "b", "c-b", "embedded", "shape-qwen3-0.6b", "name",
    ]  # fmt: skip
    assert len({one.digest for one in found[:4]}) == 1  # the same weights
    assert [one.digest for one in found[4:]] == ["shape:qwen3-0.6b", "owner/name"]


def test_one_changed_weight_is_another_model(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED_FOLDER, tmp_path / "m")
    (before,) = resolve_models([str(tmp_path / "m")])
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    weights[name].view(-1)[0] += 1
    save_file(weights, file, metadata={"format": "pt"})
    (after,) = resolve_models([str(tmp_path / "m")])
    assert (before.label, before.name) == (after.label, after.name)
    assert before.digest != after.digest


def test_a_run_stands_for_its_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("", encoding="utf-8")
    with pytest.raises(PoiseError, match=r"is a run without a model.*it has no checkpoint either"):
        resolve_models([str(run)])
    (run / "checkpoints" / "iteration_00004").mkdir(parents=True)
    with pytest.raises(PoiseError, match=r"such as .*iteration_00004"):
        resolve_models([str(run)])
    shutil.copytree(EMBEDDED_FOLDER, run / "model")
    (found,) = resolve_models([str(run)])
    assert (found.label, found.name) == ("run", str(run / "model"))
    with pytest.raises(PoiseError, match="is named twice"):
        resolve_models([str(run), str(run / "model")])


def test_a_run_says_how_its_model_was_asked(tmp_path: Path) -> None:
    asked = RunConfig(model=ModelConfig(template="chat-boxed"))
    folder = RunFolder.create(tmp_path / "run", asked)
    shutil.copytree(EMBEDDED_FOLDER, folder.path / "model")
    shutil.copytree(EMBEDDED_FOLDER, tmp_path / "bare" / "model")
    found = resolve_models([str(folder.path), str(tmp_path / "bare" / "model"), "embedded"])
    assert [one.template for one in found] == ["chat-boxed", "auto", "auto"]
    for given, used in ((None, "chat-boxed"), ("boxed", "boxed")):
        options = EvaluationOptions([str(folder.path)], tmp_path / "out", template=given)
        prompt = Prompt("p", "What is 2 + 3?", "5")
        tokenizer, _ = tokenizer_and_context(found[0])
        asked = BenchmarkProblems(find_benchmark("gsm8k", None), [prompt], digest="")
        said = encode_prompts(asked, found[0], tokenizer, options)
        assert said.template == used
        assert said.prompt_tokens[0].tolist() == encode_prompt(used, tokenizer, prompt.problem)


def test_a_chat_template_that_fails_is_answered_by_the_option_of_the_command(
    tmp_path: Path,
) -> None:
    shutil.copytree(EMBEDDED_FOLDER, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ 1 / 0 }}", encoding="utf-8")
    (source,) = resolve_models([str(tmp_path / "m")])
    tokenizer, _ = tokenizer_and_context(source)
    problems = [Prompt("p", "What is 2 + 3?", "5")]
    problem_set = BenchmarkProblems(find_benchmark("gsm8k", None), problems, digest="")
    options = EvaluationOptions([source.name], tmp_path / "out", template="chat")
    with pytest.raises(PoiseError, match=r"division by zero; give --template boxed$"):
        encode_prompts(problem_set, source, tokenizer, options)


def test_a_chat_template_that_never_ends_does_not_stop_an_evaluation_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "CPU_SECONDS", 1)
    shutil.copytree(EMBEDDED_FOLDER, tmp_path / "m")
    loops = "{% for i in range(99999) %}" * 3 + "x" + "{% endfor %}" * 3
    (tmp_path / "m" / "chat_template.jinja").write_text(loops, encoding="utf-8")
    (source,) = resolve_models([str(tmp_path / "m")])
    assert load_model(source, "cpu", "auto").end_tokens == load_policy(ModelConfig()).end_tokens


def test_a_checkpoint_of_a_run(tmp_path: Path) -> None:
    """The run's first model with the weights that were saved, known by those alone."""
    folder = RunFolder.create(tmp_path / "run", RunConfig())
    policy = load_policy(ModelConfig(device="cpu"))
    for iteration in (1, 2):
        for weight in policy.model.parameters():
            weight.data *= 0.9
        weights = {name: weight.clone() for name, weight in model_weights(policy.model).items()}
        save(folder.checkpoints, Checkpoint(iteration, weights, {}, {}, {}), keep=2)
    names = [str(folder.checkpoints / f"iteration_0000{i}") for i in (1, 2)]
    first, second = resolve_models(names)
    assert (first.label, second.label) == ("run-iteration_00001", "run-iteration_00002")
    assert (first.base, second.base) == ("embedded", "embedded")
    assert first.digest != second.digest
    assert tokenizer_and_context(second)[1] == 1024
    loaded = dict(load_model(second, "cpu", "auto").model.named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match="no model 'nothing': no such folder"):
        resolve_models(["nothing"])
    with pytest.raises(PoiseError, match=r"holds no model: config.json is missing"):
        resolve_models([str(tmp_path)])
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PoiseError, match="cannot be loaded"):
        tokenizer_and_context(resolve_models([str(tmp_path)])[0])


def test_an_adapter_has_the_tokenizer_of_its_base(tmp_path: Path) -> None:
    """PEFT's save_pretrained writes no tokenizer."""
    config = {"base_model_name_or_path": "embedded"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    tokenizer, context = tokenizer_and_context(resolve_models([str(tmp_path)])[0])
    assert (context, bool(tokenizer.chat_template)) == (1024, True)


def test_context_and_tokenizer() -> None:
    tokenizer, context = tokenizer_and_context(resolve_models(["embedded"])[0])
    assert context == 1024
    assert tokenizer.chat_template
    _, context = tokenizer_and_context(resolve_models(["shape:smollm2-135m"])[0])
    assert context == 8192
