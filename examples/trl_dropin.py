r"""TRL's GRPOTrainer with whole groups and balanced batches: two imports, two options.

    pip install 'counterpoise[trl]'
    python examples/trl_dropin.py             under a minute on two CPU cores, no network

    - from trl import GRPOConfig, GRPOTrainer
    + from counterpoise.trl import PoiseConfig as GRPOConfig
    + from counterpoise.trl import PoiseGRPOTrainer as GRPOTrainer

      args = GRPOConfig(
          ...
    +     composer="grouped",  # QB: a prompt's rollouts never leave their optimizer step
    +     tau=0.25,            # RB: update only when neither sign is rare
      )

Everything else is an ordinary TRL script. To see what it did, batch by batch and token by token:

    python examples/trl_dropin.py --run-folder out/dropin --monitor-every 1
    poise report out/dropin

Two processes on a CPU:

    ACCELERATE_USE_CPU=true python -m torch.distributed.run --nproc_per_node 2 \
        examples/trl_dropin.py --rows 8
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

import counterpoise
from counterpoise.task.word_problems import make_problem
from counterpoise.trl import PoiseConfig as GRPOConfig
from counterpoise.trl import PoiseGRPOTrainer as GRPOTrainer
from counterpoise.verify.exact import ExactVerifier

MODEL = Path(counterpoise.__file__).parent / "assets" / "embedded"  # a Qwen3 of 1.3 M parameters
COLUMNS = {  # TRL's log -> title
    "reward": "success",
    "poise/split_groups": "split groups",
    "poise/max_abs_group_advantage_sum": "|sum A|",
    "poise/rarer_sign": "rarer sign",
    "poise/refills": "refills",
}


def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 for the right number in the last box."""
    texts = [messages[-1]["content"] for messages in completions]
    return ExactVerifier().score(texts, answer).rewards


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description="TRL with planned batches")
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--rows", type=int, default=16, help="rollouts per process and pass")
    parser.add_argument("--composer", default="grouped", help="'shuffled' is what TRL does")
    parser.add_argument("--tau", type=float, default=0.25)
    parser.add_argument("--monitor-every", type=int, default=0)
    parser.add_argument("--run-folder", default="", help="for `poise report` and `poise look`")
    options = parser.parse_args(argv)

    problems = [make_problem("train", i, levels=[1]) for i in range(256)]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": p.problem}], "answer": p.answer} for p in problems]
    )
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            learning_rate=1e-4,
            per_device_train_batch_size=options.rows,
            gradient_accumulation_steps=1,
            steps_per_generation=4,  # four optimizer steps share a generation
            num_generations=8,
            max_completion_length=60,
            max_steps=4 * options.generations,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,  # few CPUs have a fast half precision
            composer=options.composer,  # QB
            tau=options.tau,  # RB
            monitor_every=options.monitor_every,
            run_folder=options.run_folder,
        )
        trainer = GRPOTrainer(
            model=str(MODEL), reward_funcs=reward, args=args, train_dataset=dataset
        )
        trainer.train()
    history: list[dict[str, Any]] = [line for line in trainer.state.log_history if "loss" in line]
    if trainer.accelerator.is_main_process:
        show(history)
    return history


def show(history: list[dict[str, Any]]) -> None:
    """Print a line for each generation."""
    print("generation  " + "  ".join(f"{title:>12}" for title in COLUMNS.values()))
    for number, line in enumerate(history, 1):
        values = (line.get(name, float("nan")) for name in COLUMNS)
        print(f"{number:10}  " + "  ".join(f"{value:12.3g}" for value in values))


if __name__ == "__main__":
    main()
