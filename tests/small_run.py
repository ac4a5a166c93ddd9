"""The cheapest complete run: a random model of a few thousand weights, rewards by a checksum.

It has everything that a run folder can hold: updates, waiting rows, drops, tokens, pushes, held-out
evaluations and several checkpoints. An iteration takes milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.model.load import EMBEDDED_FOLDER, save_policy, wrap_model

REWARD = """
import zlib
def score(completion, answer): return float(zlib.crc32(completion.encode()) % 2)
"""
SETS = (
    "loop.iterations=4", "loop.checkpoint_every=2", "loop.threads=1", "model.device=cpu",
    "task.levels=[1]", "task.size=12", "task.heldout=2", "sample.prompts=3",
    "sample.group_size=3", "sample.max_new_tokens=5", "balance.tau=0.25", "balance.target=4",
    "batch.steps=2", "evaluate.prompts=2", "evaluate.samples=1", "evaluate.every=2",
    "monitor.watch=1", "update.lr=1e-3",
)  # fmt: skip


def small_config(folder: Path, *sets: str) -> RunConfig:
    """The run's options; its model and its reward function are written to `folder` first."""
    return load_config("demo", [*SETS, *small_model(folder), *sets])


def small_model(folder: Path) -> list[str]:
    """Options that name the model and the reward; both are written to `folder` first."""
    if not (folder / "model").exists():
        write_model(folder / "model")
    return [f"model.name={folder / 'model'}", *checksum_reward(folder)]


def checksum_reward(folder: Path) -> list[str]:
    """Options of a reward of 0 or 1 for any text, which is written to `folder` first.

    Groups have a signal after a few tokens, whatever the model knows. The function is called in
    this process: no other has to be started.
    """
    if not (folder / "mine.py").exists():
        (folder / "mine.py").write_text(REWARD)
    return [f"verify.name={folder}/mine.py:score", "verify.reward_timeout_seconds=0"]


def write_model(
    folder: Path, width: int = 8, positions: int = 256, *, ends: bool = False, sure: float = 0.0
) -> None:
    """A model of one layer with the embedded model's tokenizer.

    Only one that `ends` is likely to end its text within some ten tokens. The more `sure` it is
    of its next token, the more tokens and prefixes do rollouts of a prompt have in common.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER, trust_remote_code=False)
    config = AutoConfig.for_model(
        "qwen3", vocab_size=len(tokenizer), hidden_size=width, intermediate_size=width,
        num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=width,
        max_position_embeddings=positions, initializer_range=0.3, tie_word_embeddings=not sure,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head *= sure or 1.0
        if ends:
            head[tokenizer.eos_token_id] *= 2 if sure else 8
    save_policy(wrap_model("tiny", model, tokenizer), folder)
