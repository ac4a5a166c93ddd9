"""Tables that ms-swift 4.6 wrote; skipped where it is not installed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts.importing.foreign import read_lines
from hosts.importing.foreign_ms_swift import completion_table

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run


def ms_swift_trainer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """ms-swift's GRPOTrainer without a model: what it logs, and how it scores, is its own code."""
    grpo_trainer = pytest.importorskip(
        "swift.rlhf_trainers.grpo_trainer",
        reason="ms-swift is not installed: pip install ms-swift",
        exc_type=ImportError,
    )
    from swift.trainers.patcher import PrinterCallbackNew

    trainer = object.__new__(grpo_trainer.GRPOTrainer)
    trainer.args = Namespace(
        output_dir=str(folder), log_completions=True, generation_batch_size=8, log_entropy=False,
        report_to=[], wandb_log_unique_prompts=False, num_completions_to_print=0,
    )  # fmt: skip
    settings = {
        "model": Namespace(training=True), "state": Namespace(
            global_step=0, max_steps=20, is_world_process_zero=True, max_memory=0
        ),
        "accelerator": Namespace(is_main_process=True, process_index=0, num_processes=1),
        "template": Namespace(
            encode=lambda inputs: {"input_ids": inputs.chosen.messages[0]["content"]},
            safe_decode=lambda text: f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n",
        ),
        "num_generations": 4, "num_generations_eval": 4, "kl_in_reward": False, "beta": 0.0,
        "dynamic_num_samples": False, "advantage_estimator": "grpo", "scale_rewards": "group",
        "top_entropy_quantile": 1.0, "reward_func_names": ["Accuracy", "Format"],
        "reward_weights": torch.tensor([1.0, 0.5]),
    }  # fmt: skip
    for name, value in settings.items():
        setattr(trainer, name, value)
    trainer._prepare_metrics()
    callback = PrinterCallbackNew()
    callback.on_train_begin(trainer.args, trainer.state, None)
    # The next class writes logging.jsonl by this callback.
    parents = grpo_trainer.GRPOTrainer.__mro__[1:]
    monkeypatch.setattr(
        next(parent for parent in parents if "log" in vars(parent)),
        "log",
        lambda self, logs, *_: callback.on_log(self.args, self.state, None, logs),
    )
    return trainer


def roll_out(trainer: Any, name: str, prompts: Sequence[str]) -> None:
    """A generation of four completions for each prompt, scored and put into the queues."""
    texts = [prompt for prompt in prompts for _ in range(4)]
    samples = [
        Namespace(
            messages=[
                {"role": "user", "content": text},
                {"role": "assistant", "content": f"{name}{i}"},
            ],
            extra={"solution": str(i)},
            rollout_infos={},
        )
        for i, text in enumerate(texts)
    ]
    correct = torch.tensor([float(i % 3 == 0) for i in range(len(texts))])
    form = torch.tensor([float("nan") if i == 1 else i % 2 for i in range(len(texts))])
    advantages = trainer._compute_advantages(samples, torch.stack([correct, form], dim=1), [])
    trainer._logs["advantages"].extend(advantages.tolist())
    trainer._log_rollout(samples)


def test_ms_swift_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 5 and 10, an evaluation of one prompt at step 7, and the log at the end."""
    trainer = ms_swift_trainer(tmp_path / "run", monkeypatch)
    for step, name, prompts in ((5, "a", "xy"), (7, "e", "v"), (10, "b", "zx")):
        trainer.state.global_step = step
        trainer.model.training = name != "e"
        roll_out(trainer, name, prompts)
        trainer.log({"loss": 0.5} if name != "e" else {"eval_loss": 0.5})
    trainer.log({"train_runtime": 3.0})
    (tmp_path / "run" / "args.json").write_text(
        json.dumps({"num_generations": 4, "reward_weights": [1.0, 0.5]})
    )
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("ms-swift", 2, 16, 4)
    assert set(result.notes) == {
        "reward = Accuracy + 0.5 * Format (args.json)",
        "groups are 4 adjacent rows, as args.json says",
        "left out because they repeat the generation before: 1 table",
        "left out because logging.jsonl says that they are evaluations: 1 table",
    }
    for step, name in ((5, "a"), (10, "b")):
        lines = read_lines(tmp_path / "out" / "rollouts" / f"step_{step:05d}.jsonl")
        assert [line["response"] for line in lines] == [f"{name}{i}" for i in range(8)]
        assert [line["reward"] for line in lines] == [1.0, 0.0, 0.0, 1.5, 0.0, 0.5, 1.0, 0.5]
        assert [line["answer"] for line in lines] == [str(i) for i in range(8)]
        assert lines[0]["prompt"].startswith("<|im_start|>user\n")
    by_hand = completion_table(
        5,
        [line["prompt"] for line in read_lines(tmp_path / "out" / "rollouts" / "step_00005.jsonl")],
        [f"a{i}" for i in range(8)],
        {"Accuracy": [0.0] * 8, "Format": [0.0] * 8},
        solution=[str(i) for i in range(8)],
    )
    written = read_lines(tmp_path / "run" / "completions.jsonl")[0]
    assert list(written) == list(by_hand)
    for name in ("step", "prompt", "completion", "solution"):
        assert written[name] == by_hand[name]
    # Without the options the advantages, in groups of equal prompts, say no less than the weights.
    (tmp_path / "run" / "args.json").unlink()
    with pytest.raises(PoiseError, match="follow no sum of Accuracy, Format"):
        import_run(tmp_path / "run", tmp_path / "inferred", tokenizer="embedded")
