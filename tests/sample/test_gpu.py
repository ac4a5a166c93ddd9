"""The sampler on a GPU against the CPU's, and against the trainer's own pass."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.model.load import Policy, load_policy, wrap_model
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample import decode_graphs, decode_slots
from counterpoise.sample.kv_slots import SlotCapacity
from counterpoise.sample.native import sample
from counterpoise.task.word_problems import make_problem
from counterpoise.types import Rollout, Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def seeds(P: int, G: int) -> list[list[int]]:
    return [[100 * p + g for g in range(G)] for p in range(P)]


def biased(architecture: str, **changes: object) -> Policy:
    """Biases are not all 0, as in a fresh model."""
    policy = tiny.policy(architecture, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if name.endswith("bias"):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return policy


SHAPES = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("qwen2", {}),
    ("qwen3", {}),
]


@pytest.mark.parametrize(("architecture", "changes"), SHAPES)
@pytest.mark.parametrize("cut", [(1.0, 0), (0.9, 0), (1.0, 7)])
def test_the_same_tokens_as_on_the_cpu(
    architecture: str, changes: dict, cut: tuple[float, int]
) -> None:
    """float32; rounding may move a draw at the very edge of two tokens: nearly all rows agree."""
    here = biased(architecture, **changes)
    there = biased(architecture, **changes)
    there = wrap_model(architecture, there.model.cuda(), there.tokenizer)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in (3, 40, 7, 1, 70)]
    config = SampleConfig(max_new_tokens=90, top_p=cut[0], top_k=cut[1])
    same = []
    for _ in range(2):  # the second time graphs are replayed
        a = sample(here, prompts, seeds(5, 6), config)
        b = sample(there, prompts, seeds(5, 6), config)
        for left, right in zip(chain(*a), chain(*b), strict=True):
            same.append(left.tokens.tolist() == right.tokens.tolist())
            if same[-1]:
                np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)
    assert np.mean(same) > 0.9


def test_weights_that_change_are_seen_by_captured_graphs() -> None:
    policy = tiny.policy()
    policy = wrap_model("tiny", policy.model.cuda(), policy.tokenizer)
    prompts, config = [np.arange(2, 9, dtype=np.int32)], SampleConfig(max_new_tokens=40)
    policy = replace(policy, end_tokens=(-1,))
    first = sample(policy, prompts, seeds(1, 8), config)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1.1)
    changed = sample(policy, prompts, seeds(1, 8), config)
    decode_graphs.release_graphs(policy.decoder)
    fresh = sample(policy, prompts, seeds(1, 8), config)
    assert [r.tokens.tolist() for r in changed[0]] == [r.tokens.tolist() for r in fresh[0]]
    assert [r.tokens.tolist() for r in changed[0]] != [r.tokens.tolist() for r in first[0]]


def test_bfloat16_log_probabilities_agree_with_the_trainer() -> None:
    policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
    prompts = [policy.encode(make_problem("heldout", i, (3,)).problem) for i in range(16)]
    responses = sample(policy, prompts, seeds(16, 8), SampleConfig(max_new_tokens=112))
    rows = [
        Row(str(p), 1.0, len(r.tokens), index=g, rollout=Rollout(
            str(p), "", "", "", 0.0, prompts[p], r.tokens, r.logprobs))
        for p, group in enumerate(responses) for g, r in enumerate(group)
    ]  # fmt: skip
    scored = np.concatenate(score_logprobs(policy, rows, 1.0, 16384))
    sampled = np.concatenate([row.content.sampled_logprobs for row in rows])
    assert np.abs(scored - sampled).mean() < 0.01


def test_few_long_rows_after_many_short_ones() -> None:
    """Slots are made anew for longer rows: the same tokens as from a fresh start."""
    policy = tiny.policy()
    policy = replace(wrap_model("tiny", policy.model.cuda(), policy.tokenizer), end_tokens=(-1,))
    prompts = [np.arange(2, 9, dtype=np.int32)]
    long, short = SampleConfig(max_new_tokens=200), SampleConfig(max_new_tokens=20)
    first = sample(policy, prompts, seeds(1, 4), long)
    sample(policy, prompts, seeds(1, 300), short)
    again = sample(policy, prompts, seeds(1, 4), long)
    assert [r.tokens.tolist() for r in first[0]] == [r.tokens.tolist() for r in again[0]]


def test_more_rows_than_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows share pages and prompts wait for room: the same tokens as with all rows at once."""
    policy = tiny.policy()
    policy = replace(wrap_model("tiny", policy.model.cuda(), policy.tokenizer), end_tokens=(-1,))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in (3, 40, 7, 1, 70, 9)]
    config = SampleConfig(max_new_tokens=600)
    together = list(chain(*sample(policy, prompts, seeds(6, 4), config)))
    decode_graphs.release_graphs(policy.decoder)
    decodings = []

    class RecordedDecoding(decode_slots.SlotDecoding):
        def run(self):
            decodings.append(self)
            return super().run()

    monkeypatch.setattr(decode_slots, "SlotDecoding", RecordedDecoding)
    allowed_bytes = 5000 * policy.decoder.kv_bytes_per_token
    monkeypatch.setattr(decode_graphs, "kv_bytes_allowed", lambda decoder, held: allowed_bytes)
    refilled = list(chain(*sample(policy, prompts, seeds(6, 4), config)))
    capacity = decode_graphs.graphs_for(policy.decoder, SlotCapacity(1, 1, 1)).slots.capacity
    assert (capacity.rows, capacity.pages) == (8, 22)
    assert decodings[0].restarts > 0
    same = [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(together, refilled, strict=True)]
    assert np.mean(same) > 0.9  # another batch size rounds differently
