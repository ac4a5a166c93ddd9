"""Small real things for tests: random models of each architecture, rows, prompts."""

from __future__ import annotations

import numpy as np
import torch

from counterpoise.model.load import Policy, wrap_model
from counterpoise.types import Rollout, Row

VOCABULARY = 97


class Words:
    """A tokenizer of numbered words: as much of one as policies need."""

    eos_token_id = 1
    chat_template = None

    def encode(self, text: str, **_: object) -> list[int]:
        return [2 + sum(word.encode()) % (VOCABULARY - 2) for word in text.split()] or [2]

    def decode(self, ids: list[int], **_: object) -> str:
        return " ".join(str(i) for i in ids if i != self.eos_token_id)

    @property
    def backend_tokenizer(self) -> Words:
        return self

    def decode_batch(self, rows: list[list[int]], **_: object) -> list[str]:
        return [self.decode(row) for row in rows]


def policy(architecture: str = "qwen3", seed: int = 0, **changes: object) -> Policy:
    """A two-layer random model with grouped key/value heads."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3, "eos_token_id": 1, "bos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    if architecture == "qwen3":
        sizes["head_dim"] = 16
    config = AutoConfig.for_model(architecture, **{**sizes, **changes})
    torch.manual_seed(seed)
    return wrap_model(architecture, AutoModelForCausalLM.from_config(config).float(), Words())


def rows(
    groups: int = 3,
    size: int = 4,
    seed: int = 0,
    shortest: int = 1,
    longest: int = 17,
    off_policy: float = 0.3,
) -> list[Row]:
    """Rows with zero-sum groups and old log-probabilities a little off; lengths vary."""
    rng = np.random.default_rng(seed)
    made = []
    for g in range(groups):
        prompt = rng.integers(2, VOCABULARY, rng.integers(1, 9)).astype(np.int32)
        advantages = rng.normal(size=size)
        advantages -= advantages.mean()
        for i in range(size):
            length = int(rng.integers(shortest, longest + 1))
            response = rng.integers(1, VOCABULARY, length).astype(np.int32)
            old = (-np.log(VOCABULARY) + off_policy * rng.normal(size=length)).astype(np.float32)
            rollout = Rollout(f"p{g}", f"p{g}", "", "", 0.0, prompt, response, old)
            made.append(Row(f"p{g}", float(advantages[i]), length, index=i, rollout=rollout))
    return made
