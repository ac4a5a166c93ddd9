"""The card of a trained model: what the Hub reads of it, and that every number is the run's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.run.model_card import model_card
from counterpoise.store.folder import RunFolder

SETS = [
    "loop.iterations=1", "model.device=cpu", "task.levels=[1]", "task.size=40", "task.heldout=4",
    "sample.prompts=4", "sample.group_size=4", "sample.max_new_tokens=48", "batch.steps=1",
    "balance.tau=0", "evaluate.prompts=4", "evaluate.samples=2", "store.report=false",
    "monitor.every=0", "model.lora_rank=4",
]  # fmt: skip
EVALUATION = {
    "temperature": 1.0, "top_p": 1.0, "pass_any": 0.9, "mixed": 0.5, "prompts": 128, "samples": 4,
}  # fmt: skip
WHOLE_MODEL = SimpleNamespace(model=SimpleNamespace(), num_parameters=7_600_000_000)


@pytest.fixture
def stored(tmp_path: Path) -> RunFolder:
    """A run's folder with two evaluations and two iterations."""
    folder = RunFolder.create(tmp_path / "mine", RunConfig())
    for iteration, mean in ((0, 0.461), (2, 0.612)):
        values = {"iteration": iteration, "mean": mean, "low": mean - 0.05, "high": mean + 0.05}
        folder.append("evaluations", {**values, **EVALUATION, "reward": mean})
    for iteration in (1, 2):
        folder.append(
            "metrics",
            {"iteration": iteration, "rollouts": 512, "rollout_tokens": 40_000, "steps": 4},
        )
    return folder


def written(folder: RunFolder, *sets: str, warning: str = "", policy: Any = WHOLE_MODEL) -> str:
    return model_card(policy, load_config("demo", sets), folder, warning)


def test_a_lora_run_ends_with_a_card_that_the_hub_reads(tmp_path: Path) -> None:
    run = train(load_config("demo", SETS), tmp_path / "mine")
    card = ModelCard.load(run.path / "model" / "README.md")
    assert card.data.library_name == "peft"
    assert card.data.tags == ["counterpoise", "reinforcement-learning", "grpo", "lora"]
    assert "base_model" not in card.data.to_dict()  # it is not on the Hub
    (result,) = card.data.eval_results
    after = run.read("evaluations")[-1]
    assert (result.dataset_type, result.metric_type) == ("word_problems", "accuracy")
    assert result.metric_value == pytest.approx(100 * after["mean"])
    assert "[More Information Needed]" not in card.text  # PEFT's own form
    assert "load it with PEFT" in card.text
    assert "model.lora_rank = 4\n" in card.text
    assert "loop.seed" not in card.text  # it has its default
    metrics = run.read("metrics")
    assert f"1 iteration, 16 rollouts ({metrics[0]['rollout_tokens']:,} tokens)" in card.text


def test_results_with_intervals_and_the_recipe(stored: RunFolder) -> None:
    text = written(
        stored, "model.name=Qwen/Qwen3-0.6B", "task.name=hub", "task.path=openai/gsm8k:main"
    )
    data = ModelCard(text).data
    assert (data.base_model, data.datasets) == ("Qwen/Qwen3-0.6B", ["openai/gsm8k"])
    assert data.to_dict()["base_model_relation"] == "finetune"
    assert data.eval_results[0].metric_value == pytest.approx(61.2)
    assert (
        "| temperature 1, top-p 1 | held-out success | 46.1 % [41.1, 51.1] | 61.2 % [56.2, 66.2] "
        "| 128 x 4 |" in text
    )
    assert "2 iterations, 1,024 rollouts (80,000 tokens), 8 optimizer steps, seed 0" in text
    assert "(7,600.0 M parameters). All weights were trained." in text
    assert "- One run with one seed" in text


def test_graded_rewards_lead_with_the_mean_reward(stored: RunFolder) -> None:
    stored.append(
        "evaluations",
        {"iteration": 3, "mean": 1.0, "low": 0.9, "high": 1.0, **EVALUATION,
         "reward": -0.25, "reward_low": -0.5, "reward_high": 0.0},
    )  # fmt: skip
    text = written(stored)
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_type, result.metric_value) == ("mean_reward", -0.25)
    assert "| held-out reward | 0.461 [0.411, 0.511] | -0.250 [-0.500, 0.000] |" in text


def test_the_metadata_has_the_quantity_of_the_table(tmp_path: Path) -> None:
    """The rewards of the last evaluation may all happen to be 0 or 1 in a run with graded ones."""
    folder = RunFolder.create(tmp_path / "mine", RunConfig())
    first = {"mean": 1.0, "low": 0.9, "high": 1.0, "reward": 0.25, "reward_low": 0.0,
             "reward_high": 0.5}  # fmt: skip
    last = {"mean": 0.5, "low": 0.4, "high": 0.6, "reward": 0.5}
    folder.append("evaluations", {"iteration": 0, **EVALUATION, **first})
    folder.append("evaluations", {"iteration": 2, **EVALUATION, **last})
    text = written(folder)
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_type, result.metric_value) == ("mean_reward", 0.5)
    assert "| held-out reward | 0.250 [0.000, 0.500] | 0.500 [0.400, 0.600] |" in text


def test_a_file_of_held_out_problems_is_named(stored: RunFolder) -> None:
    """Its problems may be of another kind than those trained on."""
    same_kind = "Held-out problems are of the kind trained on."
    assert same_kind in written(stored, "task.name=files", "task.path=mine.jsonl")
    sets = ["task.name=files", "task.path=mine.jsonl", "task.heldout_path=theirs.jsonl"]
    text = written(stored, *sets)
    assert same_kind not in text
    assert "`mine.jsonl` (`files`). Held-out problems: `theirs.jsonl`." in text
    assert '"name": "held-out problems of theirs.jsonl"' in text


def test_without_evaluations_nothing_is_claimed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "bare", RunConfig())
    text = written(folder)
    assert "No held-out problem was evaluated." in text
    assert "model-index" not in text
    assert "Held-out problems are of the kind" not in text


def test_benchmarks_of_the_run_are_results_too(stored: RunFolder) -> None:
    for iteration, mean in ((0, 0.2), (2, 0.3)):
        line = {"iteration": iteration, "benchmark": "math500", "title": "Math", **EVALUATION}
        values = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "reward": mean}
        stored.append("benchmarks", {**line, **values, "truncated_share": 0.0})
    text = written(stored)
    assert "| Math success | 20.0 % [10.0, 30.0] | 30.0 % [20.0, 40.0] | 128 x 4 |" in text
    heldout, benchmark = ModelCard(text).data.eval_results
    assert (heldout.metric_value, benchmark.metric_value) == (pytest.approx(61.2), 30.0)
    assert (benchmark.dataset_type, benchmark.dataset_name) == ("math500", "Math")
    (stored.path / "evaluations.jsonl").unlink()
    text = written(stored)
    assert "No held-out problem was evaluated.\n\n| sampling |" in text
    assert "at iterations 0 and 2." in text


def test_a_warning_and_copied_benchmarks_are_said(stored: RunFolder) -> None:
    kinds = {"exact": 2, "near": 1, "reworded": 0, "translated": 0, "related": 4}
    overlap: dict[str, Any] = {
        "train": 100,
        "train_copies": 3,
        "benchmarks": [{"name": "amc23", "items": 40, "copied": 3, **kinds}],
        "matches": [],
    }
    (stored.path / "contamination.json").write_text(json.dumps(overlap))
    text = written(stored, warning="the run collapsed: success ended low")
    assert "**The run collapsed: success ended low.**" in text
    assert "- 3 of 40 problems of amc23 are in the training set (2 exact, 1 near)." in text
    assert "were not searched" not in text
    assert "were not searched" in written(RunFolder.create(stored.path / "inner", RunConfig()))


def test_names_cannot_break_the_card(stored: RunFolder) -> None:
    config = load_config("demo", ["task.name=files"])
    hostile = "a`b\n---\n# c: d"
    task = replace(config.task, path=hostile)
    text = model_card(WHOLE_MODEL, replace(config, task=task), stored)
    assert ModelCard(text).data.library_name == "transformers"
    assert "`a'b --- # c: d` (`files`)" in text
