"""A run of trl_run.py beside the native engine: its rows, its weights, the gradients of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.config import ModelConfig, UpdateConfig
from counterpoise.hosts.trl import host
from counterpoise.model.load import Policy, load_policy, wrap_model
from counterpoise.types import Rollout, Row
from counterpoise.update.step import StepSettings, accumulate_gradient

HERE = Path(__file__).parent
EXACT = 1e-12  # distance of gradients in float64; measured: up to 3.4e-14
needs_trl = pytest.mark.skipif(
    host.installed_version() is None or not host.is_supported(host.installed_version() or ""),
    reason=f"TRL {host.SUPPORTED_SERIES} is not installed: {host.INSTALL_REMEDY}",
)


def launch(tmp_path: Path, processes: int = 1, **options: Any) -> list[dict[str, Any]]:
    """What each process of a run noted: here, or in processes that find each other by gloo."""
    from hosts.trl import trl_run

    if processes == 1:
        return [trl_run.run(tmp_path, options)]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    start.insert(3, "--standalone")  # a free port: the runs of other tests may still hold theirs
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path,
    }  # fmt: skip
    process = subprocess.run(
        [*start, str(HERE / "trl_run.py"), str(tmp_path), json.dumps(options)],
        env=environment, capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    return [trl_run.read(tmp_path, str(p)) for p in range(processes)]


def rows_of(step: dict[str, Any]) -> list[Row]:
    columns = ("groups", "advantages", "prompts", "responses", "old", "weights_T")
    rows = []
    for group, advantage, prompt, response, old, weights in zip(
        *(step[name] for name in columns), strict=True
    ):
        tokens = [x.numpy().astype(np.int32) for x in (prompt, response)]
        rollout = Rollout("", "", "", "", 0.0, *tokens, old.numpy())
        weights_T = None if weights is None else np.array(weights, dtype=np.float32)
        rows.append(Row(group, advantage, len(response), rollout=rollout, weights_T=weights_T))
    return rows


def policy_at(step: dict[str, Any], dtype: torch.dtype | None = None) -> Policy:
    policy = load_policy(ModelConfig(device="cpu", dtype="float32"))
    policy.model.to(dtype or step["weights"]["model.norm.weight"].dtype)
    policy.model.load_state_dict(step["weights"], strict=False)  # the unembedding is tied
    return wrap_model("embedded", policy.model, policy.tokenizer)


def gradients(
    step: dict[str, Any], aggregate: str = "token_mean", dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(TRL's, that of `update/step.py`) for the same rows at the same weights, all of them at once;
    the native one in `dtype`, if given.

    The rows' old log-probabilities are TRL's, given to both; in a step by the weights that sampled
    them each engine takes its own pass's.

    The padding token is left out: should the policy sample it, transformers' embedding gives it no
    gradient, and ours does.
    """
    from hosts.trl import trl_run

    policy, config = policy_at(step, dtype), UpdateConfig(clip_high=0.28, aggregate=aggregate)
    exact = step["weights"]["model.norm.weight"].dtype == torch.float64
    with trl_run.in_float64() if exact else nullcontext():
        accumulate_gradient(
            policy,
            rows_of(step),
            StepSettings(config, temperature=1.0, max_new_tokens=24),
            on_policy=step["on_policy"],
        )
    pairs = []
    for name, weight in policy.model.named_parameters():
        ours, trl_values = weight.grad, step["gradient"][name]
        ours = torch.zeros_like(trl_values) if ours is None else ours
        if "embed_tokens" in name:
            keep = torch.arange(len(ours)) != policy.tokenizer.pad_token_id
            ours, trl_values = ours[keep], trl_values[keep]
        pairs.append((trl_values.flatten().double(), ours.flatten().double()))
    assert len(pairs) == len(step["gradient"])
    trl_values, ours = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
    return trl_values, ours


def distance(step: dict[str, Any], aggregate: str = "token_mean", scale: float = 1.0) -> float:
    """|g_TRL - g_native| / |g_native|; where there is no signal, |g_TRL|."""
    trl_values, ours = gradients(step, aggregate)
    norm = float(ours.norm()) * scale
    return float((trl_values - scale * ours).norm()) / (norm or 1.0)


def rounding(step: dict[str, Any]) -> float:
    """How far the native gradient in float32 is from itself in float64: what float32 is good for
    in this step."""
    ours, exact = (gradients(step, dtype=dtype)[1] for dtype in (None, torch.float64))
    return float((ours - exact).norm() / exact.norm())
