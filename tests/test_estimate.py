"""What a dry run promises: parameters as published, rollouts and memory by the formula."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny

from counterpoise.config import RunConfig
from counterpoise.estimate import KNOWN, describe_run, shape_of
from counterpoise.policy.load import EMBEDDED
from counterpoise.runfile import from_tables, load_config, to_toml

PUBLISHED = {
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen3-1.7B-Base": 1_720_574_976,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
}


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_as_published(name: str) -> None:
    """Biases and the norms of single heads are left out: a few parts in a hundred thousand."""
    assert KNOWN[name].parameters == pytest.approx(PUBLISHED[name], rel=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "left_out"),
    [
        ("llama", 0),
        ("qwen2", 2 * (48 + 2 * 24)),  # biases of q, k, v in two layers
        ("qwen3", 2 * 2 * 16),  # norms of q and k in two layers
    ],
)
def test_parameters_of_a_folder(
    tmp_path: Path, architecture: str, left_out: int, tied: bool
) -> None:
    policy = tiny.policy(architecture, tie_word_embeddings=tied)
    policy.model.config.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert shape is not None
    assert shape.parameters == policy.num_parameters - left_out


def test_the_embedded_model_and_one_that_is_not_here() -> None:
    shape = shape_of("embedded")
    assert shape is not None
    assert 1e6 < shape.parameters < 3e6
    assert shape == shape_of(str(EMBEDDED))
    assert shape_of("nobody/nothing") is None


def test_counts_in_plain_words() -> None:
    text = describe_run(from_tables({"loop": {"iterations": 10}}))
    assert text.startswith(to_toml(RunConfig()).partition("iterations")[0])
    assert "16 prompts x 8 = 128 rollouts, 4 optimizer steps (grouped)" in text
    assert "1,280 rollouts, updates: 40\n" in text
    assert "at most 16,384 sampled an iteration, 163,840 in all" in text
    waiting = describe_run(from_tables({"loop": {"iterations": 10}, "balance": {"tau": 0.25}}))
    assert "updates: at most 40 (an update waits for a balanced batch)" in waiting


KEPT = 2 * 2048 + 2 * 6144 + (2 * 16 + 2 * 8) * 128  # by a layer on a GPU, numbers a token


def test_memory_by_the_formula() -> None:
    text = describe_run(load_config("qwen3-1.7b-base"))
    shape = KNOWN["Qwen/Qwen3-1.7B-Base"]
    training = 20 * shape.parameters  # bfloat16 with float32 masters
    live = 9216 * 28 * KEPT * 2
    row = (1024 + 8192) * 28 * 2 * 8 * 128 * 2
    told = [float(x) for x in re.findall(r"([\d.]+) GB", text)]
    expected = [training, live, row]
    assert told == pytest.approx([x / 1e9 for x in expected], abs=0.006)


def test_a_copy_of_the_first_weights_is_counted() -> None:
    parameters = KNOWN["Qwen/Qwen3-1.7B-Base"].parameters
    for sets, size in (([], 22), (["credit.rule_settings=['alpha=0']"], 20)):
        text = describe_run(load_config("qwen3-1.7b-base", ["credit.rule=sdpg", *sets]))
        assert f"training {size * parameters / 1e9:.2f} GB" in text


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    text = describe_run(load_config("qwen3-1.7b-base", ["update.checkpointing=true"]))
    live = 9216 * (28 * 2048 + KEPT) * 2
    assert f"activations {live / 1e9:.2f} GB" in text


def test_an_unknown_shape_is_said() -> None:
    text = describe_run(from_tables({"model": {"name": "nobody/nothing"}}))
    assert "memory         unknown: the shape of nobody/nothing" in text


def test_every_turn_of_an_episode_is_counted() -> None:
    one, three = (
        describe_run(load_config("demo", sets))
        for sets in ([], ["task.environment='tries'", "task.turns=3"])
    )
    tokens = [
        int(re.search(r"at most ([\d,]+) sampled", text)[1].replace(",", ""))
        for text in (one, three)
    ]
    assert tokens == [16 * 8 * 112, 3 * 16 * 8 * 112]
