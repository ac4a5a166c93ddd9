"""Files that TRL 1.16 and verl 0.9 wrote themselves; each is skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.importing.foreign import read_lines

from counterpoise.batch.plan_file import plan_file
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.model.load import EMBEDDED_FOLDER


@pytest.mark.slow
def test_trl_run(tmp_path: Path) -> None:
    """A GRPOTrainer on the embedded model: two prompts x four completions, two optimizer steps for
    each generation, two reward functions and a column of log_extra. Steps 2 and 4 repeat 1 and 3.
    """
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sampled: list[str] = []

    def correct(completions: list[str], log_extra, **_) -> list[float]:
        sampled.extend(completions)
        log_extra("length", [float(len(text)) for text in completions])
        return [float(i % 3 == 0) for i in range(len(completions))]

    def form(completions: list[str], **_) -> list[float]:
        return [0.5 * (i % 2) for i in range(len(completions))]

    trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER),
        reward_funcs=[correct, form],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "run"),
            max_steps=4,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=4,
            steps_per_generation=2,
            num_generations=4,
            max_completion_length=8,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            log_completions=True,
            num_completions_to_print=0,
            disable_tqdm=True,
        ),
        processing_class=AutoTokenizer.from_pretrained(EMBEDDED_FOLDER),
        train_dataset=Dataset.from_dict({"prompt": [f"Ana has {i} pens." for i in range(4)]}),
    ).train()
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("TRL", 2, 16, 4)
    assert result.notes[0] == "reward = correct + form (--reward for others)"
    assert "left out because they repeat the generation before: 2 files" in result.notes
    files = [tmp_path / "out" / "rollouts" / f"step_0000{n}.jsonl" for n in (1, 3)]
    lines = [line for file in files for line in read_lines(file)]
    assert [line["response"] for line in lines] == sampled
    expected = [float(i % 3 == 0) + 0.5 * (i % 2) for i in range(8)] * 2
    assert [line["reward"] for line in lines] == expected
    assert plan_file(files[0], "grouped", 2, 0)["describe"]["split_groups"] == 0
    assert write_report(tmp_path / "out").is_file()


def test_verl_writer(tmp_path: Path) -> None:
    """What both of verl's trainers call to write a file of rollout_data_dir."""
    pytest.importorskip("verl", reason="verl is not installed: pip install verl==0.9.1")
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    inputs, outputs, scores = ["How many?"] * 4, ["3", "4", "5", "6"], [1.0, 0.0, 0.0, 1.0]
    uids = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    for name, trainer, extra in (
        ("v1", PPOTrainer, {"uid": uids}),
        ("v0", RayPPOTrainer, {"request_id": uids}),
    ):
        folder = str(tmp_path / name)
        trainer._write_generations(inputs, outputs, ["3"] * 4, scores, extra, folder, 5)
    result = import_run(tmp_path / "v1", tmp_path / "out1", tokenizer="embedded")
    assert (result.source, result.rollouts, result.groups) == ("verl", 4, 2)
    lines = read_lines(tmp_path / "out1" / "rollouts" / "step_00005.jsonl")
    assert [line["group"] for line in lines] == ["5:a", "5:a", "5:b", "5:b"]
    assert [line["reward"] for line in lines] == scores
    assert import_run(tmp_path / "v0", tmp_path / "out0", tokenizer="embedded").groups == 1
