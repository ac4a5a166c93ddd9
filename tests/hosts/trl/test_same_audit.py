"""One run of a stock GRPOTrainer, audited twice: `PoiseCallback`'s folder and TRL's completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts.compare_audits import SAME_FROM_TEXTS, check_same_audit
from hosts.trl.trl_compare import needs_trl

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.task.word_problems import make_problem

pytestmark = [needs_trl, pytest.mark.slow]
GENERATIONS = 6  # as many as a trend needs
UNSCORED_LENGTH = 34  # tokens


def correct(
    completions: list[Any], answer: list[str], completion_ids: list[list[int]], **_: object
) -> list[float | None]:
    """1 for the right answer; no reward for responses of 34 tokens, by either function."""
    texts = [messages[0]["content"] for messages in completions]
    return [
        None if len(ids) == UNSCORED_LENGTH else float(f"\\boxed{{{reference}}}" in text)
        for text, reference, ids in zip(texts, answer, completion_ids, strict=True)
    ]


def short(completion_ids: list[list[int]], **_: object) -> list[float | None]:
    """A further reward, which long responses do not have."""
    return [0.1 if UNSCORED_LENGTH < len(ids) < 40 else None for ids in completion_ids]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the callback's folder, the import of TRL's completions) of one run."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from counterpoise.trl import PoiseCallback

    out = tmp_path_factory.mktemp("same_audit")
    problems = [make_problem("train", index, (1, 2)) for index in range(6)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32),
        reward_funcs=[correct, short],
        args=GRPOConfig(
            output_dir=str(out / "trl"), max_steps=2 * GENERATIONS, use_cpu=True, bf16=False,
            per_device_train_batch_size=6, steps_per_generation=2, num_generations=4,
            max_completion_length=44, learning_rate=1e-4, seed=5, report_to="none",
            logging_steps=1, save_strategy="no", disable_tqdm=True, gradient_checkpointing=False,
            log_completions=True, num_completions_to_print=0,
        ),
        train_dataset=Dataset.from_dict(
            {
                "prompt": [[{"role": "user", "content": p.problem}] for p in problems],
                "answer": [p.answer for p in problems],
            }
        ),
    )  # fmt: skip
    trainer.add_callback(PoiseCallback(trainer, out / "poise"))
    trainer.train()
    import_run(out / "trl", out / "imported", tokenizer="embedded", reward="correct,short")
    return out / "poise", out / "imported"


def read_rollouts(folder: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in sorted((folder / "rollouts").glob("*.jsonl"))
    ]


def test_callback_and_importer_give_the_same_audit(folders: tuple[Path, Path]) -> None:
    # Rewards of several values do not say which prompts are unusable.
    same = tuple(name for name in SAME_FROM_TEXTS if name != "unusable_prompts")
    ours, _ = check_same_audit(*folders, same)
    assert ours["cut_groups"].level in ("alarm", "warning")  # TRL shuffles groups apart
    measured = {measurement.name for measurement in ours["learning_rate"].measurements}
    assert "gradients removed by the clip" in measured  # from TRL's log
    # What happens inside a reward function is not seen by either.
    assert ours["verifier_timeouts"].missing == ("verifier_timeouts in metrics.jsonl",)


def test_both_hold_the_same_rollouts(folders: tuple[Path, Path]) -> None:
    names = ("prompt_id", "prompt", "response", "reward")
    unscored = 0
    for ours, theirs in zip(*map(read_rollouts, folders), strict=True):
        scored = [line for line in ours if line["reward"] == line["reward"]]  # not NaN
        unscored += len(ours) - len(scored)
        assert [[line[name] for name in names] for line in scored] == [
            [pytest.approx(line[name]) if name == "reward" else line[name] for name in names]
            for line in theirs
        ]
    assert unscored > 0
    metrics = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("unscored", 0) for line in metrics) == unscored
    assert any(line["truncated_share"] for line in metrics)
