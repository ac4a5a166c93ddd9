"""The general path: every causal language model trains here as transformers runs it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import CTRLTokenizer

from counterpoise.config import ModelConfig, SampleConfig, UpdateConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.speed.families import (
    FORWARD_LIMIT,
    SAMPLER_LIMIT,
    check_family,
    make_policy,
    relative_error,
    resumes_exactly,
)
from counterpoise.loop import train
from counterpoise.microscope.monitor import Monitor
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.load import Policy, load_policy, save_policy, wrap_model
from counterpoise.model.pieces import split_into_pieces
from counterpoise.model.row_cache import rows_may_be_padded
from counterpoise.model.scoring import forward
from counterpoise.sample import native
from counterpoise.sample.native import sample
from counterpoise.sample.positions import check_positions
from counterpoise.types import Prompt, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

# What each adds: experts; linear attention; soft caps; learned positions and a bias-free tied head;
# a head with a bias; scaled logits, by a divisor and by a factor; convolutions; state spaces.
GENERAL = [
    "qwen3_moe", "qwen3_5_text", "gemma2", "gpt2", "phi", "granite", "cohere", "lfm2", "mamba",
]  # fmt: skip


@pytest.mark.parametrize("family", GENERAL)
def test_a_family_runs_as_transformers_runs_it(family: str) -> None:
    check = check_family(make_policy(family))
    assert check.path == "general"
    assert check.forward < FORWARD_LIMIT
    assert check.gradient < FORWARD_LIMIT
    assert check.sampler < SAMPLER_LIMIT
    assert check.coupling < 1e-10


def test_a_weight_that_one_side_does_not_use_is_an_error() -> None:
    ones, tens = torch.ones(2), 10 * torch.ones(2)
    assert relative_error([ones, None], [ones, None]) == 0.0
    assert relative_error([ones, None], [ones, torch.zeros(2)]) == 0.0
    assert relative_error([ones, None], [ones, tens]) == 1.0
    assert relative_error([ones, ones], [ones, None]) == 1.0


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert resumes_exactly(make_policy("gpt2"), tmp_path)


def step(policy: Policy, rows: list[Row], **changes: object) -> tuple[Monitor, list[torch.Tensor]]:
    config = UpdateConfig(**{"lr": 1e-2, "optimizer": "sgd", "micro_tokens": 50, **changes})
    monitor = Monitor(0.8, 50, {"p0"})
    take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=0.8, max_new_tokens=17),
        observer=monitor,
    )
    return monitor, [weight.detach().clone() for weight in policy.model.parameters()]


def on_path(path: str) -> Policy:
    policy = tiny.policy("llama")
    return wrap_model("llama", policy.model, policy.tokenizer, path=path)


def test_both_paths_take_the_same_step_and_see_the_same_in_it() -> None:
    rows = tiny.rows()
    fast, weights = step(on_path("fast"), rows)
    general, general_weights = step(on_path("general"), rows)
    for weight, general_weight in zip(weights, general_weights, strict=True):
        torch.testing.assert_close(weight, general_weight, rtol=1e-5, atol=1e-6)
    (fast_view,), (general_view,) = fast.measurements, general.measurements
    differences = np.abs(fast_view.displacement - general_view.displacement)
    # A displacement is the difference of two float32 log-probabilities: one token may be off by a
    # dozen units of rounding, the tokens on the whole may not.
    assert differences.max() < 2e-5
    assert differences.mean() < 4e-6
    torch.testing.assert_close(
        fast_view.coupling.total, general_view.coupling.total, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("front_padding_is_exact", [True, False])
def test_both_samplers_draw_the_same_responses(
    front_padding_is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows of different lengths may not be padded together."""
    monkeypatch.setattr(native, "rows_may_be_padded", lambda decoder: front_padding_is_exact)
    prompts = [np.arange(2, 2 + length, dtype=np.int32) for length in (3, 7, 3)]
    seeds, config = [[1, 2], [3, 4], [5, 6]], SampleConfig(max_new_tokens=20)
    fast, general = (sample(on_path(path), prompts, seeds, config) for path in ("fast", "general"))
    for fast_group, general_group in zip(fast, general, strict=True):
        for expected, response in zip(fast_group, general_group, strict=True):
            assert response.tokens.tolist() == expected.tokens.tolist()
            np.testing.assert_allclose(response.logprobs, expected.logprobs, atol=1e-5)


def test_padding_is_tried_on_the_model_itself() -> None:
    decoder = make_policy("gpt2").decoder
    assert isinstance(decoder, GeneralDecoder)
    assert rows_may_be_padded(decoder)
    # A model that ignores the mask reads its padding.
    run = decoder.run

    def run_unmasked(**inputs: torch.Tensor) -> tuple[torch.Tensor, object]:
        if "attention_mask" in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        return run(**inputs)

    decoder.run, decoder.front_padding_is_exact = run_unmasked, None
    assert not rows_may_be_padded(decoder)


def test_a_cache_that_does_not_reproduce_the_forward_pass_is_refused() -> None:
    decoder = make_policy("gpt2").decoder
    run = decoder.run

    def run_forgetful(**inputs: torch.Tensor) -> tuple[torch.Tensor, object]:
        if "past_key_values" in inputs:
            inputs["input_ids"] = torch.zeros_like(inputs["input_ids"])
        return run(**inputs)

    decoder.run = run_forgetful
    with pytest.raises(PoiseError, match="cache of gpt2 models does not reproduce"):
        rows_may_be_padded(decoder)


@pytest.mark.parametrize("family", ["olmo2", "opt"])
def test_recomputing_layers_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPT's layers drop a tenth of their outputs at random where they are in training mode."""
    rows = tiny.rows(groups=1)
    sizes = {"word_embed_proj_dim": 48, "ffn_dim": 64} if family == "opt" else {}
    policy = tiny.policy(family, **sizes)
    policy = wrap_model(family, policy.model, policy.tokenizer, path="general")
    layer_class = type(next(m for m in policy.model.modules() if hasattr(m, "self_attn")))
    layer_forward, calls = layer_class.forward, []

    def counted(layer: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(layer)
        return layer_forward(layer, *args, **kwargs)

    monkeypatch.setattr(layer_class, "forward", counted)
    logprobs, gradients, num_calls = [], [], []
    for checkpointing in (False, True):
        policy.model.zero_grad()
        calls.clear()
        outputs = forward(policy, rows, 1.0, checkpointing=checkpointing)
        outputs.logprobs_M.sum().backward()
        logprobs.append(outputs.logprobs_M.detach())
        gradients.append([weight.grad.clone() for weight in policy.model.parameters()])
        num_calls.append(len(calls))
    assert num_calls == [2, 4]  # two layers, run once, and once more in the backward pass
    torch.testing.assert_close(logprobs[1], logprobs[0], rtol=0, atol=0)
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, kept, rtol=0, atol=0)
    assert not any(module.training for module in policy.model.modules())
    assert not any("forward" in vars(module) for module in policy.model.modules())


def test_the_choice_is_explained(tmp_path: Path) -> None:
    policy = make_policy("gpt2")
    (notice,) = policy.notices
    assert notice.startswith("gpt2: transformers' own forward pass (the general path), because ")
    assert "\n" not in notice
    assert make_policy("llama").notices == []
    save_policy(policy, tmp_path / "model")
    with pytest.raises(
        PoiseError, match=r"gpt2 models are not on the fast path: .*, or set model.path=auto"
    ):
        load_policy(ModelConfig(name=str(tmp_path / "model"), path="fast"))


def test_learned_positions_end() -> None:
    with pytest.raises(PoiseError, match=r"512 learned positions, and .* needs 600"):
        make_policy("gpt2").decoder.reserve(600)
    # OPT has two embeddings more than positions.
    opt = tiny.policy("opt", max_position_embeddings=32, word_embed_proj_dim=48, ffn_dim=64)
    prompts = [(Prompt("a", "", ""), np.full(15, 5, dtype=np.int32))]
    check_positions(opt, prompts, SampleConfig(max_new_tokens=17), print)
    sample(opt, [prompts[0][1]], [[0]], SampleConfig(max_new_tokens=17))
    with pytest.raises(PoiseError, match=r"32 learned positions, and .* needs 33"):
        check_positions(opt, prompts, SampleConfig(max_new_tokens=18), print)


def test_angles_that_change_with_the_length_end_a_row_also_by_layer_type() -> None:
    """Gemma 3 has rotary parameters for each type of layer."""
    fixed = {"rope_type": "default", "rope_theta": 1e4}
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    policy = tiny.policy(
        "gemma3_text", head_dim=16, sliding_window=8,
        rope_parameters={"sliding_attention": fixed, "full_attention": dynamic},
    )  # fmt: skip
    assert isinstance(policy.decoder, GeneralDecoder)
    policy.decoder.reserve(256)
    with pytest.raises(PoiseError, match=r"rotary angles of this model change beyond 256 tokens"):
        policy.decoder.reserve(257)


def test_a_tokenizer_written_in_python_decodes_too(tmp_path: Path) -> None:
    pieces = ["<unk>", "<end>", "1", "2", "+"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CTRLTokenizer(
        tmp_path / "vocab.json", tmp_path / "merges.txt", unk_token="<unk>", eos_token="<end>"
    )
    policy = wrap_model("ctrl", tiny.policy("gpt2").model, tokenizer)
    assert policy.decode_rows([[2, 4, 3], [3, 1]]) == ["1 + 2", "2"]
    assert split_into_pieces(policy, [np.array([2, 1], np.int32)]) == [["1", ""]]


def test_logits_of_another_form_are_refused() -> None:
    policy = make_policy("gpt2")
    own_forward = policy.model.forward

    def squared(**inputs: object) -> SimpleNamespace:
        return SimpleNamespace(logits=own_forward(**inputs).logits ** 2)

    policy.model.forward = squared
    with pytest.raises(PoiseError, match="more than a scaled, biased or soft-capped product"):
        GeneralDecoder(policy.model)


def test_options_that_need_the_fast_path_are_refused_before_the_run(tmp_path: Path) -> None:
    sets = ["model.path=general", "model.device=cpu", "task.size=20", "sample.prompts=4"]
    for option, feature in (
        ("credit.weights=oar_p", r"credit\.weights=oar_p"),
        ("sample.engine=vllm", r"sample\.engine=vllm"),
    ):
        line = (
            rf"^{feature} needs a model on the fast path, and this \w+ model takes the general "
            r"one, because model\.path=general asks for it: choose .* or model\.path=auto$"
        )
        with pytest.raises(PoiseError, match=line):
            train(load_config("demo", [*sets, option]), tmp_path / "run")
        assert not (tmp_path / "run").exists()
