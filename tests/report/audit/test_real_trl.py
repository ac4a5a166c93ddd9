"""One real TRL run, audited twice: the folder that our adapter wrote, and TRL's own completions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.report.audit.rank import audit_run
from counterpoise.task.word_problems import make_problem

SAME_BY_BOTH = (
    "duplicate_prompts", "equal_rewards", "inconsistent_rewards", "question_echo",
    "rollouts_without_signal", "unusable_prompts",
)  # fmt: skip


@pytest.mark.slow
def test_adapter_and_importer_give_the_same_audit(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from counterpoise.trl import PoiseConfig, PoiseGRPOTrainer

    def correct(completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [
            float(f"\\boxed{{{a}}}" in text) for text, a in zip(completions, answer, strict=True)
        ]

    problems = [make_problem("train", index, (2,)) for index in range(24)]
    PoiseGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32),
        reward_funcs=correct,
        args=PoiseConfig(
            output_dir=str(tmp_path / "trl"),
            run_folder=str(tmp_path / "poise"),
            composer="shuffled",
            max_steps=8,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=8,
            steps_per_generation=4,
            num_generations=8,
            max_completion_length=80,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            log_completions=True,
            num_completions_to_print=0,
            disable_tqdm=True,
        ),
        processing_class=AutoTokenizer.from_pretrained(EMBEDDED_FOLDER),
        train_dataset=Dataset.from_dict(
            {"prompt": [p.problem for p in problems], "answer": [p.answer for p in problems]}
        ),
    ).train()
    import_run(tmp_path / "trl", tmp_path / "imported", tokenizer="embedded")
    ours, theirs = (
        {finding.name: finding for finding in audit_run(tmp_path / folder).findings}
        for folder in ("poise", "imported")
    )
    assert ours["cut_groups"].level == "alarm"
    assert theirs["cut_groups"].missing == ("plans.jsonl",)
    for name in SAME_BY_BOTH:
        assert theirs[name].level == ours[name].level, name
        assert theirs[name].verdict == ours[name].verdict, name
        count = len(theirs[name].measurements)
        assert theirs[name].measurements == ours[name].measurements[:count], name
