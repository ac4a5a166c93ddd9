"""Supervised warm-up: its loss, its schedule, and a model folder at the end."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from counterpoise.config import WarmupConfig
from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.lab.warmup import run, scratch
from counterpoise.lab.warmup.run import run_warmup
from counterpoise.lab.warmup.scratch import build_model
from counterpoise.lab.warmup.supervise import (
    TrainingHooks,
    backward,
    learning_rate_factor,
    solution_row,
    supervise,
)
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy, load_policy
from counterpoise.run.heldout import HeldoutSuccess
from counterpoise.types import Prompt

PROMPTS = [
    Prompt(f"p{i}", f"what is {i} and {i}", str(2 * i), f"so {i} makes {2 * i} . " * (1 + i % 3))
    for i in range(8)
]
EXAMPLES = [(prompt, None) for prompt in PROMPTS]


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
    assert learning_rate_factor(step, steps) == pytest.approx(share)


def test_the_schedule_rises_then_falls_to_a_tenth() -> None:
    shares = [learning_rate_factor(step, 400) for step in range(400)]
    assert shares[:20] == sorted(shares[:20])
    assert shares[20:] == sorted(shares[20:], reverse=True)
    assert max(shares) == 1.0
    assert shares[-1] == pytest.approx(0.1, abs=1e-4)


def test_an_example_ends_with_the_end() -> None:
    policy = tiny.policy()
    row = solution_row(policy, PROMPTS[1])
    solution = row.content.response_tokens
    assert row.content.prompt_tokens.tolist() == policy.encode(PROMPTS[1].problem).tolist()
    assert solution.tolist() == [*policy.tokenizer.encode(PROMPTS[1].solution), 1]
    assert solution.dtype == np.int32
    assert row.num_tokens == len(solution)


def plain_loss(policy: Policy, prompts: list[Prompt]) -> torch.Tensor:
    """Mean over all solution tokens, one sequence at a time, by transformers."""
    total, tokens = torch.zeros(()), 0
    for prompt in prompts:
        row = solution_row(policy, prompt).content
        a, b = row.prompt_tokens, row.response_tokens
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
    loss = backward(policy, [solution_row(policy, p) for p in PROMPTS], micro_tokens)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float((gradient(policy) - theirs).norm() / theirs.norm()) < 1e-5


def test_training_lowers_the_loss_and_repeats_itself() -> None:
    ends = []
    for _ in range(2):
        policy, losses = tiny.policy(), []
        supervise(
            policy, EXAMPLES, WarmupConfig(steps=30, batch=8, lr=3e-3), 0, FittedSize(4096),
            hooks=TrainingHooks(progress=lambda step, loss, seen=losses: seen.append(loss)),
        )  # fmt: skip
        assert len(losses) == 30
        assert losses[-1] < 0.3 * losses[0]
        ends.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert torch.equal(*ends)


def test_a_missing_solution_is_named_before_anything_moves() -> None:
    policy = tiny.policy()
    before = policy.model.lm_head.weight.detach().clone()
    examples = [*EXAMPLES[:2], (replace(PROMPTS[2], solution=""), None)]
    with pytest.raises(PoiseError, match="prompt p2 has no worked solution"):
        supervise(policy, examples, WarmupConfig(steps=1), 0, FittedSize(4096))
    assert torch.equal(policy.model.lm_head.weight, before)


def test_it_stops_when_told_to_and_not_before() -> None:
    asked: list[int] = []

    def done(step: int) -> bool:
        asked.append(step)
        return step == 9

    config = WarmupConfig(steps=20, batch=2, lr=1e-3, evaluate_every=3)
    hooks = TrainingHooks(should_stop=done)
    assert supervise(tiny.policy(), EXAMPLES, config, 0, FittedSize(4096), hooks=hooks) == 9
    assert asked == [3, 6, 9]
    config = replace(config, evaluate_every=0)
    assert supervise(tiny.policy(), EXAMPLES, config, 0, FittedSize(4096), hooks=hooks) == 20
    assert asked == [3, 6, 9]


def test_a_loss_that_is_not_finite_stops_the_warm_up() -> None:
    policy = tiny.policy()
    with torch.no_grad():
        policy.model.model.norm.weight[0] = math.nan
    with pytest.raises(PoiseError, match=r"not finite at step 1: lower warmup\.lr"):
        supervise(policy, EXAMPLES, WarmupConfig(steps=2, batch=2), 0, FittedSize(4096))


SMALL = config_from_tables(
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
    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 200)
    out = tmp_path / "a" / "model"
    run_warmup(SMALL, out)
    told = capsys.readouterr().out
    assert re.search(r"step 1/2: loss \d+\.\d{3}\nstep 2/2: loss ", told)  # no terminal: lines
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


def test_success_is_looked_at_and_the_model_of_that_moment_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter([0.1, 0.5, 0.5])

    def judge(*_: object, **options: object) -> HeldoutSuccess:
        mean = next(found)
        return HeldoutSuccess(mean, mean, mean, pass_any=1.0, mixed=0.75, prompts=2, samples=2)

    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 200)
    monkeypatch.setattr(run, "evaluate_policy", judge)
    options = replace(SMALL.warmup, steps=9, evaluate_every=2, until=0.4)
    run_warmup(replace(SMALL, warmup=options), tmp_path / "model")
    told = capsys.readouterr().out
    assert "step 2: held-out success at temperature 1: 10.0 %" in told
    assert "mixed groups of 2: 75.0 %" in told
    assert "stayed below" not in told
    record = json.loads((tmp_path / "model" / "warmup.json").read_text())
    assert record["steps"] == 4
    assert [(look["step"], look["mean"]) for look in record["judged"]] == [(2, 0.1), (4, 0.5)]
    assert record["saved"]["mean"] == 0.5
    assert record["config"]["warmup"]["until"] == 0.4

    found = iter([0.1, 0.2, 0.2])
    run_warmup(replace(SMALL, warmup=replace(options, steps=4)), tmp_path / "other")
    assert "success stayed below warmup.until=0.4 in 4 steps" in capsys.readouterr().out

    found = iter([0.1, 0.2])  # the evaluation of the saved model fails: the record is there
    with pytest.raises(StopIteration):
        run_warmup(replace(SMALL, warmup=replace(options, steps=4)), tmp_path / "unjudged")
    record = json.loads((tmp_path / "unjudged" / "warmup.json").read_text())
    assert ([look["mean"] for look in record["judged"]], "saved" in record) == ([0.1, 0.2], False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"evaluate_every": 0}, "evaluate_every"), ({"evaluate_every": 3}, "evaluate_every")],
)
def test_a_target_nobody_looks_at_is_refused(tmp_path: Path, changes: dict, reason: str) -> None:
    options = replace(SMALL.warmup, until=0.4, **changes)
    with pytest.raises(PoiseError, match=reason):
        run_warmup(replace(SMALL, warmup=options), tmp_path / "model")
    options = replace(SMALL.warmup, until=0.4, evaluate_every=1)
    unjudged = replace(SMALL, warmup=options, evaluate=replace(SMALL.evaluate, prompts=0))
    with pytest.raises(PoiseError, match="held-out problems"):
        run_warmup(unjudged, tmp_path / "model")


def test_a_folder_in_use_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(PoiseError, match="not an empty folder"):
            run_warmup(SMALL, out)


def test_a_place_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the work, not after it."""
    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 200)
    (tmp_path / "file").write_text("")
    with pytest.raises(PoiseError, match="cannot be written"):
        run_warmup(SMALL, tmp_path / "file" / "model")


def test_initial_weights_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 50)
    tokenizer = scratch.build_tokenizer()
    one, same, other = (build_model(SMALL.warmup, tokenizer, seed) for seed in (0, 0, 1))
    a, b, c = (torch.cat([p.flatten() for p in m.parameters()]) for m in (one, same, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert one.config.vocab_size == len(tokenizer)
