"""The files of the GSM8K experiment fit together, and start on a CPU with a tiny Qwen2 model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoise.config.load import load_config
from counterpoise.lab.experiments.curves import read_curve
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.pilot_rates import find_pilot
from counterpoise.loop import train
from counterpoise.model.load import EMBEDDED_FOLDER, save_policy, wrap_model

SMALL = (
    "loop.iterations=2", "loop.threads=1", "model.device=cpu", "sample.prompts=2",
    "sample.group_size=4", "sample.max_new_tokens=6", "batch.steps=2", "task.heldout=2",
    "evaluate.prompts=2", "evaluate.samples=1", "verify.workers=1", "monitor.every=1",
)  # fmt: skip
REWARD = """
import zlib
def score(completion, answer): return float(zlib.crc32(completion.encode()) % 2)
"""


@pytest.fixture(scope="module")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 model of one layer, with GSM8K-like problems and a reward beside it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("qwen2")
    tokenizer: Any = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER, trust_remote_code=False)
    config = AutoConfig.for_model(
        "qwen2", vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    save_policy(
        wrap_model("tiny", AutoModelForCausalLM.from_config(config).float(), tokenizer),
        folder / "model",
    )
    problems = [
        {"id": f"train-{i}", "problem": f"Ana has {i} pens and buys 2. How many?", "answer": i + 2}
        for i in range(12)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (folder / "mine.py").write_text(REWARD)
    return folder


def test_the_main_file_takes_its_rates_from_the_pilot() -> None:
    experiment = read_experiment("qwen-coder-gsm8k")
    pilot = find_pilot(experiment)
    assert pilot is not None
    assert list(pilot.design.rates) == [3e-7, 1e-6, 3e-6, 1e-5]
    assert not set(pilot.design.seeds) & set(experiment.design.seeds)
    assert len(experiment.design.seeds) == 8
    for config in (experiment.run_config, pilot.run_config):
        assert (config.sample.prompts, config.sample.group_size) == (64, 8)
        assert (config.sample.max_new_tokens, config.loop.iterations) == (512, 100)
    assert experiment.run_config == pilot.run_config
    text = describe_plan(experiment, experiment.design.run_keys(), None, jobs=4)
    assert "9 arms x 1 rate x 8 seeds = 72 runs" in text
    assert "0 of 72 runs of qwen-coder-gsm8k-pilot are in pieces/" in text


@pytest.mark.parametrize("arm", ["shuffled", "QB+RB", "keeps_silent", "by_sign"])
def test_an_arm_starts_on_a_cpu(tiny_qwen2: Path, tmp_path: Path, arm: str) -> None:
    """Two iterations of two prompts, with the arm's own options."""
    model, data = str(tiny_qwen2 / "model"), str(tiny_qwen2 / "train.jsonl")
    design = read_experiment("qwen-coder-gsm8k", model, data).design
    sets = [*design.overrides(RunKey(arm, 1e-6, 5000)), *SMALL, "balance.target=8"]
    config = load_config(design.base, [*sets, f"verify.name={tiny_qwen2 / 'mine.py'}:score"])
    folder = train(config, tmp_path / "run")
    curve = read_curve(folder)
    assert [record["rollouts"] for record in curve] == [0, 8, 16]
    assert {record["iteration"] for record in curve if record["heldout"] is not None} == {0, 2}
    assert sum(record["steps"] for record in folder.read("metrics")) > 0
    assert (folder.path / "finished.json").is_file()
