"""Tokens with made-up values and displacements, and a small laboratory, for the value studies."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from small_run import checksum_reward, write_model

from counterpoise.lab.studies.harness import Lab
from counterpoise.statistics.finding import Record

SMALL = {"prompts": 6, "continuations": 4, "open": 3, "closed": 1}
# Options of the easiest problems: the model ends most answers within 48 tokens.
EASIEST = ("task.levels=[1]", "sample.max_new_tokens=48")
# Answers of at most 64 tokens, to problems that the model solves in some rollouts only.
HALF_SOLVED = ("task.levels=[2]", "sample.max_new_tokens=64")


@cache
def loaded(options: tuple[str, ...], model: str = "embedded") -> Lab:
    """Model, problems and verifier, once for all tests of a process."""
    return Lab(model, "quick", Path("nowhere"), options=options)


@cache
def random_model() -> tuple[tempfile.TemporaryDirectory[str], str, tuple[str, ...]]:
    """A folder that is removed with the process, and the model and the options that it holds.

    Where no skill is needed: a rollout of at most 24 tokens takes a millisecond or two, and most
    groups have rewards of 0 and 1, and prefixes in common.
    """
    folder = tempfile.TemporaryDirectory(prefix="poise-tests-")
    write_model(Path(folder.name) / "model", width=16, ends=True, sure=5.0)
    rewards = checksum_reward(Path(folder.name))
    options = ("task.levels=[1]", "task.size=64", "sample.max_new_tokens=24", *rewards)
    return folder, f"{folder.name}/model", options


def random_lab(out: Path, **sizes: Any) -> Lab:
    """A laboratory of the random model."""
    _, model, options = random_model()
    return lab(out, (*options, "update.lr=1e-3"), model, **sizes)


def lab(
    out: Path, options: tuple[str, ...] = EASIEST, model: str = "embedded", **sizes: Any
) -> Lab:
    """A laboratory whose model and batches are those of every other; nobody closes it."""
    shared = loaded(options, model)
    made = Lab(model, "quick", out, options=options, sizes={**SMALL, **sizes})
    # Studies of one process share batches: that of 6 prompts is sampled and scored once.
    made._groups, made._rows = shared._groups, shared._rows
    for name in ("config", "policy", "task", "encoded_prompts", "verifier"):
        made.__dict__[name] = getattr(shared, name)
    return made


def tokens(
    gap: float, prompts: int = 30, each: int = 12, seed: int = 0, **more: Any
) -> list[Record]:
    """Half boosted with a mean value of `gap`, half suppressed with one of 0, a little noise."""
    rng = np.random.default_rng(seed)
    records = []
    for p in range(prompts):
        for t in range(each):
            boosted = t % 2 == 0
            even, odd = gap * boosted + rng.normal(scale=0.05, size=2)
            records.append(
                {
                    "prompt": f"1:{p}",
                    "rollout": 0,
                    "position": t,
                    "sign": "positive" if t % 4 < 2 else "negative",
                    "p": 0.5,
                    "entropy": 0.6,
                    "weight": 1.0,
                    "value": (even + odd) / 2,
                    "even": even,
                    "odd": odd,
                    "plain": (even + odd) / 4,
                    "delta": 0.01 if boosted else -0.01,
                    **more,
                }
            )
    return records
