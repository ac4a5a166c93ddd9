"""Supervised warm-up: its loss, its schedule, and a model folder at the end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from counterpoise.config import WarmupConfig
from counterpoise.errors import PoiseError
from counterpoise.policy.load import Policy, load_policy
from counterpoise.runfile import from_tables
from counterpoise.types import Prompt
from counterpoise.warmup import scratch
from counterpoise.warmup.run import run_warmup
from counterpoise.warmup.scratch import build_model
from counterpoise.warmup.supervise import _backward, encode_example, schedule, supervise

PROMPTS = [
    Prompt(f"p{i}", f"what is {i} and {i}", str(2 * i), f"so {i} makes {2 * i} . " * (1 + i % 3))
    for i in range(8)
]


@pytest.mark.parametrize(
    ("step", "steps", "share"),
    [
        (0, 100, 0.2),
        (4, 100, 1.0),
        (5, 100, 1.0),
        (5 + 95 // 2, 100, 0.1 + 0.45 * (1 + math.cos(math.pi * 47 / 95))),
        (100, 100, 0.1),
        (0, 1, 1.0),
        (1, 2, 1.0),
    ],
)
def test_the_schedule(step: int, steps: int, share: float) -> None:
    assert schedule(step, steps) == pytest.approx(share)


def test_the_schedule_rises_then_falls_to_a_tenth() -> None:
    shares = [schedule(step, 400) for step in range(400)]
    assert shares[:20] == sorted(shares[:20])
    assert shares[20:] == sorted(shares[20:], reverse=True)
    assert max(shares) == 1.0
    assert shares[-1] == pytest.approx(0.1, abs=1e-4)


def test_an_example_ends_with_the_end() -> None:
    policy = tiny.policy()
    prompt, solution = encode_example(policy, PROMPTS[1])
    assert prompt.tolist() == policy.encode(PROMPTS[1].problem).tolist()
    assert solution.tolist() == [*policy.tokenizer.encode(PROMPTS[1].solution), 1]
    assert solution.dtype == np.int32


def plain_loss(policy: Policy, prompts: list[Prompt]) -> torch.Tensor:
    """Mean over all solution tokens, one sequence at a time, by transformers."""
    total, tokens = torch.zeros(()), 0
    for prompt in prompts:
        a, b = encode_example(policy, prompt)
        ids = torch.from_numpy(np.concatenate((a, b)).astype(np.int64))[None]
        logprobs = policy.model(input_ids=ids).logits[0, len(a) - 1 : -1].log_softmax(-1)
        total = total - logprobs.gather(1, ids[0, len(a) :, None]).sum()
        tokens += len(b)
    return total / tokens


def gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("micro_tokens", [1, 40, 10_000])
def test_loss_and_gradient_are_those_of_a_plain_mean(micro_tokens: int) -> None:
    policy = tiny.policy()
    expected = plain_loss(policy, PROMPTS)
    expected.backward()
    theirs = gradient(policy)
    policy.model.zero_grad()
    loss = _backward(policy, [encode_example(policy, p) for p in PROMPTS], micro_tokens)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float((gradient(policy) - theirs).norm() / theirs.norm()) < 1e-5


def test_training_lowers_the_loss_and_repeats_itself() -> None:
    ends = []
    for _ in range(2):
        policy, losses = tiny.policy(), []
        supervise(
            policy, PROMPTS, WarmupConfig(steps=30, batch=8, lr=3e-3), seed=0, micro_tokens=4096,
            progress=lambda step, loss, seen=losses: seen.append(loss),
        )  # fmt: skip
        assert len(losses) == 30
        assert losses[-1] < 0.3 * losses[0]
        ends.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.equal(*ends)


def test_a_missing_solution_is_named_before_anything_moves() -> None:
    policy = tiny.policy()
    before = policy.model.lm_head.weight.detach().clone()
    prompts = [*PROMPTS[:2], replace(PROMPTS[2], solution="")]
    with pytest.raises(PoiseError, match="prompt p2 has no worked solution"):
        supervise(policy, prompts, WarmupConfig(steps=1), seed=0, micro_tokens=4096)
    assert torch.equal(policy.model.lm_head.weight, before)


SMALL = from_tables(
    {
        "model": {"name": "scratch", "device": "cpu"},
        "task": {"size": 40, "heldout": 2, "levels": [1]},
        "sample": {"max_new_tokens": 4},
        "verify": {"name": "exact"},
        "evaluate": {"prompts": 2, "samples": 2},
        "warmup": {
            "steps": 2, "batch": 4, "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16,
        },
    }
)  # fmt: skip


def test_from_nothing_to_a_folder_that_can_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scratch, "SURVEY", 200)
    out = tmp_path / "a" / "model"
    run_warmup(SMALL, out)
    told = capsys.readouterr().out
    assert "held-out success at temperature 1" in told
    assert "pass@2" in told
    assert {t.dtype for t in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    policy = load_policy(replace(SMALL.model, name=str(out)))
    assert policy.template == "chat"
    assert len(policy.tokenizer) == policy.decoder.config.vocab_size

    run_warmup(replace(SMALL, model=replace(SMALL.model, name=str(out))), tmp_path / "again")
    first, second = (load_file(path / "model.safetensors") for path in (out, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_a_folder_in_use_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(PoiseError, match="not an empty folder"):
            run_warmup(SMALL, out)


def test_a_place_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the work, not after it."""
    monkeypatch.setattr(scratch, "SURVEY", 200)
    (tmp_path / "file").write_text("")
    with pytest.raises(PoiseError, match="cannot be written"):
        run_warmup(SMALL, tmp_path / "file" / "model")


def test_initial_weights_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "SURVEY", 50)
    tokenizer = scratch.build_tokenizer()
    one, same, other = (build_model(SMALL.warmup, tokenizer, seed) for seed in (0, 0, 1))
    a, b, c = (torch.cat([p.flatten() for p in m.parameters()]) for m in (one, same, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert one.config.vocab_size == len(tokenizer)
