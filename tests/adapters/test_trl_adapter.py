"""Real TRL runs of the embedded model: whole groups, native gradients, balance, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.adapters.trl import host
from counterpoise.config import ModelConfig, UpdateConfig
from counterpoise.credit import WEIGHTS
from counterpoise.errors import PoiseError
from counterpoise.microscope.iteration import numbers
from counterpoise.microscope.monitor import Monitor
from counterpoise.policy.load import Policy, as_policy, load_policy
from counterpoise.types import Rollout, Row
from counterpoise.update.step import accumulate

HERE = Path(__file__).parent
needs_trl = pytest.mark.skipif(
    host.installed() is None or not host.supported(host.installed() or ""),
    reason=f"TRL {host.SERIES} is not installed: {host.REMEDY}",
)


def launch(tmp_path: Path, processes: int = 1, **options: Any) -> list[dict[str, Any]]:
    """What each process of a run noted: here, or in processes that find each other by gloo."""
    import trl_run

    if processes == 1:
        return [trl_run.run(tmp_path, options)]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    start += ["--master_port", str(29500 + os.getpid() % 1000)]
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        **os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path,
    }  # fmt: skip
    done = subprocess.run(
        [*start, str(HERE / "trl_run.py"), str(tmp_path), json.dumps(options)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [trl_run.read(tmp_path, str(p)) for p in range(processes)]


def parts(runs: list[dict[str, Any]], together: int) -> list[dict[str, list[float]]]:
    """Per optimizer step: prompt -> the advantages of its rollouts that the loss was given."""
    count = len(runs[0]["passes"])
    steps = []
    for start in range(0, count, together):
        found = defaultdict(list)
        for one in runs:
            for rows in one["passes"][start : start + together]:
                for prompt, advantage, _ in rows:
                    found[str(prompt)].append(advantage)
        steps.append(dict(found))
    return steps


def cut(steps: list[dict[str, list[float]]]) -> tuple[int, int]:
    """Groups with rollouts in more than one optimizer step, and groups."""
    homes = defaultdict(set)
    for s, step in enumerate(steps):
        for prompt in step:
            homes[prompt].add(s)
    return sum(len(home) > 1 for home in homes.values()), len(homes)


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
    return as_policy("embedded", policy.model, policy.tokenizer)


def distance(
    step: dict[str, Any],
    aggregate: str = "token_mean",
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> float:
    """How far TRL's gradient is from that of `update/step.py`: same rows, same weights.

    |g_TRL - g_native| / |g_native| over all weights at once; the native one in `dtype`, if given.

    The padding token is left out: should the policy sample it, transformers' embedding gives it no
    gradient, and ours does.
    """
    policy, config = policy_at(step, dtype), UpdateConfig(clip_high=0.28, aggregate=aggregate)
    accumulate(policy, rows_of(step), config, temperature=1.0, max_new_tokens=24)
    if not any(step["advantages"]):  # no signal: nothing at all
        return max(float(g.abs().max()) for g in step["gradient"].values())
    pairs = []
    for name, weight in policy.model.named_parameters():
        ours, theirs = scale * weight.grad, step["gradient"][name]
        if "embed_tokens" in name:
            keep = torch.arange(len(ours)) != policy.tokenizer.pad_token_id
            ours, theirs = ours[keep], theirs[keep]
        pairs.append((ours.flatten(), theirs.flatten()))
    assert len(pairs) == len(step["gradient"])
    ours, theirs = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return float((theirs - ours).norm() / ours.norm())


# -- without TRL --------------------------------------------------------------------------------


def test_a_missing_or_another_trl_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(host, "version", missing)
    with pytest.raises(PoiseError, match=r"^TRL is not installed: pip install 'trl==1.16.\*'$"):
        from counterpoise.adapters.trl import PoiseConfig  # noqa: F401
    monkeypatch.setattr(host, "version", lambda name: "1.17.0")
    with pytest.raises(PoiseError, match=r"^TRL 1.17.0 is not supported, only 1.16.x: pip install"):
        from counterpoise.adapters.trl import PoiseGRPOTrainer  # noqa: F401


def test_a_changed_signature_is_named() -> None:
    class Later:
        def _prepare_inputs(self, batch: Any, more: Any) -> None: ...

    faults = host.changed(Later)
    assert faults[0] == "GRPOTrainer._prepare_inputs takes (self, batch, more)"
    assert faults[1] == "GRPOTrainer._calculate_rewards is gone"
    assert len(faults) == len(host.PRIVATE)


# -- with TRL -----------------------------------------------------------------------------------


@needs_trl
def test_private_methods_are_as_we_know_them() -> None:
    from trl import GRPOTrainer

    from counterpoise.adapters.trl import PoiseGRPOTrainer

    assert host.changed(GRPOTrainer) == []
    ours = {p.name for p in host.PRIVATE if p.overridden}
    overridden = {name for name in vars(PoiseGRPOTrainer) if name in dir(GRPOTrainer)}
    assert overridden - {"__init__", "__module__", "__doc__", "__annotations__"} == ours


@needs_trl
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"composer": "groupd"}, "unknown composer 'groupd': did you mean 'grouped'"),
        ({"gradient_accumulation_steps": 3}, "no multiple of gradient_accumulation_steps=3"),
        ({"scale_rewards": "none"}, "set credit='trl', or credit='dr_grpo'"),
        ({"loss_type": "grpo", "entropy_coef": 0.1}, "set denominator='trl'"),
        ({"credit": "positive_only", "tau": 0.25}, "set tau=0"),
        ({"num_generations": 24}, "1 groups cannot fill 4 optimizer steps whole"),
    ],
)
def test_options_that_cannot_be_honoured_stop(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    from counterpoise.adapters.trl import PoiseConfig

    plan = {
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1,
        "steps_per_generation": 4, "num_generations": 4, "use_cpu": True, "bf16": False,
    }  # fmt: skip
    with pytest.raises(PoiseError, match=said):
        PoiseConfig(output_dir=str(tmp_path), **{**plan, **options})


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("together", [1, 2])
def test_groups_stay_whole_and_gradients_are_native(
    tmp_path: Path, processes: int, together: int
) -> None:
    sizes = {
        "per_device_train_batch_size": 6 // together // processes,
        "gradient_accumulation_steps": together,
        "steps_per_generation": 4 * together,
    }
    runs = launch(tmp_path, processes, **sizes)
    steps = parts(runs, together)
    assert len(steps) == 8
    rows = processes * sizes["per_device_train_batch_size"] * sizes["steps_per_generation"]
    assert cut(steps) == (0, 2 * rows // 4)  # two generations of groups of four
    sums = [sum(advantages) for step in steps for advantages in step.values()]
    assert max(map(abs, sums)) < 1e-6
    assert max(abs(a) for step in steps for group in step.values() for a in group) > 0.5
    for step in runs[0]["steps"]:
        assert distance(step) < 1e-5
    assert len(runs[0]["steps"]) == 8
    for line in runs[0]["logs"][::4]:
        assert line["poise/split_groups"] == 0
        assert line["poise/rows"] == rows


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(("chat", "most"), [(True, 1e-5), (False, 3e-5)])
@pytest.mark.parametrize("processes", [1, 2])
def test_in_float32_gradients_are_native_but_for_rounding(
    tmp_path: Path, processes: int, chat: bool, most: float
) -> None:
    """At the weights of each step; docs/trl.md has the numbers, and where they come from."""
    size = {"per_device_train_batch_size": 6 // processes}
    noted = launch(tmp_path, processes, double=False, chat=chat, **size)[0]
    steps = [step for step in noted["steps"] if any(step["advantages"])]
    distances = [distance(step) for step in steps]
    assert np.median(distances) < 1e-5
    assert max(distances) < most
    assert max(distance(step, dtype=torch.float64) for step in steps) < 3e-5


@needs_trl
@pytest.mark.slow
def test_stock_trl_cuts_most_groups(tmp_path: Path) -> None:
    steps = parts(launch(tmp_path, stock=True), together=1)
    number, groups = cut(steps)
    assert groups == 12
    assert number > 6
    sums = [sum(advantages) for step in steps for advantages in step.values()]
    assert max(map(abs, sums)) > 0.5


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "average"),
    [("bnpo", "token_mean"), ("grpo", "sequence_mean"), ("dr_grpo", "constant")],
)
def test_uneven_passes_average_over_the_step(tmp_path: Path, loss: str, average: str) -> None:
    (noted,) = launch(
        tmp_path, generations=1, loss_type=loss, composer="shuffled",
        per_device_train_batch_size=3, gradient_accumulation_steps=2, steps_per_generation=8,
    )  # fmt: skip
    assert max(distance(step, average) for step in noted["steps"]) < 1e-5


@needs_trl
@pytest.mark.slow
def test_trls_own_denominator_is_the_generations(tmp_path: Path) -> None:
    (noted,) = launch(tmp_path, generations=1, denominator="trl")
    tokens = [sum(map(len, step["responses"])) for step in noted["steps"]]
    shares = [4 * n / sum(tokens) for n in tokens]
    assert max(shares) > 1.05
    for step, share in zip(noted["steps"], shares, strict=True):
        assert distance(step, scale=share) < 1e-5


@needs_trl
@pytest.mark.slow
def test_token_weights_reach_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS._entries, "ramp", "trl_run:ramp")
    (noted,) = launch(tmp_path, generations=1, credit="rloo", credit_weights="ramp")
    assert noted["steps"][0]["weights_T"][0][0] == 0.5
    assert max(distance(step) for step in noted["steps"]) < 1e-5


@needs_trl
@pytest.mark.slow
def test_a_step_with_fewer_rows_than_passes(tmp_path: Path) -> None:
    (noted,) = launch(
        tmp_path, generations=3, composer="by_sign", modulus=3, num_generations=8,
        per_device_train_batch_size=1, gradient_accumulation_steps=4, steps_per_generation=8,
    )  # fmt: skip
    assert [] in noted["passes"]  # a pass had nothing to do
    assert sum(map(len, noted["passes"])) == 24
    assert max(distance(step) for step in noted["steps"]) < 1e-5


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "unit", "together"),
    [(1, "rollout", 1), (1, "group", 1), (1, "rollout", 4), (2, "rollout", 1)],
)
def test_updates_are_balanced_and_rollouts_accounted_for(
    tmp_path: Path, processes: int, unit: str, together: int
) -> None:
    runs = launch(
        tmp_path, processes, tau=0.4, balance_unit=unit, modulus=3, generations=4, max_refills=20,
        per_device_train_batch_size=6 // processes, gradient_accumulation_steps=together,
    )  # fmt: skip
    noted, per_batch = runs[0], 4 // together
    for start in range(0, len(noted["steps"]), per_batch):
        batch = noted["steps"][start : start + per_batch]
        signs = [np.sign(a) for step in batch for a in step["advantages"]]
        assert len(signs) >= 24
        assert min(signs.count(1), signs.count(-1)) >= 0.4 * len(signs)
        groups = [set(step["groups"]) for step in batch]
        assert sum(map(len, groups)) == len(set.union(*groups))  # none is in two steps
    for step in noted["steps"]:
        assert step["now"] - min(step["born"]) <= 4
        for group in set(step["groups"]):
            pairs = zip(step["groups"], step["advantages"], strict=True)
            assert abs(sum(a for g, a in pairs if g == group)) < 1e-6
        assert distance(step) < 1e-5
    trained = sum(len(step["groups"]) for step in noted["steps"])
    assert sum(len(rows) for one in runs for rows in one["passes"]) == trained
    counts = noted["counts"]
    assert counts["emitted"] == trained
    assert counts["added"] == 24 * noted["steps"][-1]["now"]
    assert counts["added"] == sum(counts.values()) - counts["added"]
    assert any(step["now"] > min(step["born"]) for step in noted["steps"])  # some had waited


@needs_trl
@pytest.mark.slow
def test_the_microscope_sees_what_the_native_one_sees(tmp_path: Path) -> None:
    (noted,) = launch(tmp_path, generations=1, monitor_every=1, double=False)
    for step, after, line in zip(
        noted["steps"], [*noted["steps"][1:], None], noted["logs"], strict=True
    ):
        assert distance(step) < 3e-5  # looking changes nothing
        if after is None:
            continue
        policy, rows = policy_at(step), rows_of(step)
        result = accumulate(
            policy, rows, UpdateConfig(), temperature=1.0, max_new_tokens=24, keep_hidden=True
        )
        monitor = Monitor(1.0, 20480, ())
        monitor.before(policy, rows, result)
        policy.model.load_state_dict(after["weights"], strict=False)
        monitor.after(policy)
        expected = numbers(monitor.views)
        for name in (
            "cancellation",
            "own_share",
            "same_token_share",
            "flipped",
            "boosted_positive",
        ):
            assert line[f"poise/{name}"] == pytest.approx(expected[name], abs=2e-3), name
