"""Tiny files in the format of NeMo-RL, made by hand.

As Logger.log_batched_dict_as_jsonl (nemo_rl/utils/logger.py at 7ea279ab) writes the columns of
nemo_rl/algorithms/grpo.py: a list of one item in each field. test_real_writers.py has NeMo-RL write
the same where it is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hosts.importing.foreign import write_lines

PAD, WIDTH = 0, 12
POLICY, ENVIRONMENT = 1, 0
Piece = tuple[int, list[int]]  # who wrote it, and its tokens


def sample_record(
    prompt: Sequence[int],
    pieces: Sequence[Piece],
    reward: float = 1.0,
    *,
    advantage: float = 0.5,
    weight: float = 1.0,
    texts: Sequence[str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A row without its idx; log-probabilities are -t / 10 and -t / 10 - 0.05 at position t."""
    tokens, mask = list(prompt), [0] * len(prompt)
    for author, piece in pieces:
        tokens += piece
        mask += [author] * len(piece)
    padding = WIDTH - len(tokens)
    mask_S = mask + [0] * padding
    generated = [-t / 10 if policy else 0.0 for t, policy in enumerate(mask_S)]
    columns = {
        "content": list(texts) if texts is not None else ["How many?", "so 4", "right"],
        "rewards": reward,
        "input_lengths": len(tokens),
        "token_ids": tokens + [PAD] * padding,
        "token_loss_mask": mask_S,
        "sample_loss_mask": weight,
        "advantages": [advantage] * WIDTH,
        "generation_logprobs": generated,
        # The trainer gives every token but the first a log-probability, padding included.
        "prev_logprobs": [0.0] + [-t / 10 - 0.05 for t in range(1, WIDTH)],
    } | changes
    return {name: [value] for name, value in columns.items()}


def step_records(prompts: int = 2, group_size: int = 2) -> list[dict[str, Any]]:
    """Rows of a prompt are adjacent; rewards alternate."""
    return [
        sample_record(
            [5, 6 + prompt],
            [(POLICY, [20 + i, 21, 2]), (ENVIRONMENT, [30])],
            float(i % 2),
            advantage=1.0 if i % 2 else -1.0,
            texts=[f"How many, {prompt}?", f"so {i}", "Environment: " + "ab"[i % 2]],
        )
        for prompt in range(prompts)
        for i in range(group_size)
    ]


def write_step(folder: Path, records: Sequence[dict[str, Any]], step: int = 1) -> Path:
    numbered = [record | {"idx": index} for index, record in enumerate(records)]
    return write_lines(folder / f"train_data_step{step}.jsonl", numbered)


def nemo_rl_file(folder: Path, step: int = 1) -> Path:
    """Two prompts with two samples each."""
    return write_step(folder, step_records(), step)


def write_config(
    file: Path, prompts: int = 2, generations: int = 2, batch: int = 4, *, wandb: bool = False
) -> Path:
    """The run's options, as a checkpoint has them or as W&B nests them."""
    value, indent = ("  value:\n", "    ") if wandb else ("", "  ")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"grpo:\n{value}{indent}num_generations_per_prompt: {generations}\n"
        f"{indent}num_prompts_per_step: {prompts}\n"
        f"policy:\n{value}{indent}dynamic_batching: {{enabled: false}}\n"
        f"{indent}train_global_batch_size: {batch}\n"
    )
    return file
