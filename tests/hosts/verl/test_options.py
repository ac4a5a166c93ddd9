"""`+poise.*` on verl's command line, and the version it needs: one line for all that cannot be."""

from __future__ import annotations

import copy
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import host
from counterpoise.hosts.verl.options import (
    VerlAdapterOptions,
    check_config,
    credit_name,
    optimizer_steps,
    rollouts_per_batch,
    select,
    uses_adapter,
)
from counterpoise.hosts.verl.weight_methods import (
    REFUSED_WEIGHTS,
    SCORE_READING_WEIGHTS,
    STATE_READING_WEIGHTS,
)
from counterpoise.variants import TOKEN_WEIGHTS

STOCK: dict[str, Any] = {
    "data": {"train_batch_size": 8},
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": 2, "shuffle": False},
        "rollout": {"n": 4},
    },
    "critic": {"enable": None},
    "reward": {"reward_model": {"enable": False, "enable_resource_pool": False}},
    "trainer": {
        "use_v1": True,
        "v1": {
            "trainer_mode": "sync",
            "sampler": {"custom_sampler": {"path": None, "name": None}},
            "separate_async": {"parameter_sync_step": 2},
        },
    },
}


def config(*settings: str) -> dict[str, Any]:
    result = copy.deepcopy(STOCK)
    for setting in settings:
        path, _, text = setting.partition("=")
        *names, last = path.split(".")
        position = result
        for name in names:
            position = position.setdefault(name, {})
        position[last] = {"True": True}.get(text, _number(text))
    return result


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def test_nothing_asked_is_nothing_done() -> None:
    assert check_config(config()) is None
    assert not uses_adapter(config())
    assert uses_adapter(config("algorithm.adv_estimator=poise_rloo"))
    assert check_config(config("algorithm.adv_estimator=poise_rloo")) is None


def test_what_is_asked_is_read() -> None:
    result = config("poise.tau=0.25", "poise.max_age=2", "algorithm.adv_estimator=poise_dr_grpo")
    assert check_config(result) == VerlAdapterOptions(tau=0.25, max_age=2)
    assert (credit_name(result), optimizer_steps(result), rollouts_per_batch(result)) == (
        "dr_grpo",
        4,
        32,
    )
    assert optimizer_steps(config("trainer.v1.trainer_mode=separate_async")) == 2
    assert select(result, "trainer.v1.nothing.here", 7) == 7


OURS = "algorithm.adv_estimator=poise_grpo"
GPG = "actor_rollout_ref.actor.policy_loss.loss_mode=gpg"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["poise.composr=grouped"], "did you mean 'composer'"),
        (["poise.composer=groupd"], "did you mean 'grouped'"),
        (["poise.unit=rollouts", "poise.tau=0.5", OURS], "did you mean 'rollout'"),
        (["poise.max_age=soon"], r"\+poise.max_age=soon is not of type int"),
        (["algorithm.adv_estimator=poise_grp"], "did you mean 'poise_grpo'"),
        (["poise.seed=1", "trainer.use_v1=0"], r"set trainer.use_v1=True"),
        (["poise.seed=1", "algorithm.adv_estimator=gae"], "a critic has none"),
        (["poise.seed=1", "critic.enable=True"], "a critic has none"),
        (["poise.seed=1", "actor_rollout_ref.actor.shuffle=True"], "composer=shuffled"),
        (["poise.composer=by_sign"], "set algorithm.adv_estimator=poise_grpo"),
        (["poise.composer=coupled"], r"set \+poise.composer=grouped"),
        (
            ["poise.composer=whole"],
            "set actor_rollout_ref.actor.ppo_mini_batch_size to data.train_batch_size",
        ),
        (
            ["poise.composer=half_groups", "actor_rollout_ref.actor.ppo_mini_batch_size=8"],
            "half_groups needs a step for each half: lower",
        ),
        (["poise.seed=1", "data.train_batch_size=7"], "is not a multiple of"),
        (
            ["poise.tau=0.5", OURS, "trainer.v1.sync.parameter_sync_step=2"],
            r"trainer\.v1\.sync\.parameter_sync_step=2 makes several updates of it: set it to 1",
        ),
        (["poise.seed=1", "actor_rollout_ref.rollout.n=1"], "set it to 2 or more"),
        (["poise.max_age=-1"], "cannot be negative"),
        (["poise.tau=0.25"], "set algorithm.adv_estimator=poise_grpo"),
        (["poise.tau=0.7", OURS], "choose from 0 to 0.5"),
        (["poise.tau=0.25", "algorithm.adv_estimator=poise_positive_only"], r"set \+poise.tau=0"),
        (
            ["poise.tau=0.25", OURS, "trainer.v1.trainer_mode=separate_async"],
            "mode=sync and colocate_async, not separate_async",
        ),
        (
            ["poise.monitor_every=1", "trainer.v1.trainer_mode=separate_async"],
            "scores all 2 updates of a global step by the weights of the first",
        ),
        (
            ["poise.composer=by_sign", OURS, "algorithm.use_kl_in_reward=true"],
            "after [+]poise.composer=by_sign has seen them: set it to False",
        ),
        (["poise.credit_settings=3"], r"\+poise.credit_settings=3 is not of type list"),
        (["poise.credit_weights=sheer", OURS], "did you mean 'shear'"),
        (["poise.credit_weights=shear"], "set algorithm.adv_estimator=poise_grpo"),
        (["poise.credit_weights=crpo", OURS], "does not run inside verl: it compares with generic"),
        (
            ["poise.credit_weights=otb", "algorithm.adv_estimator=poise_positive_only"],
            "poise_positive_only does not have: set algorithm.adv_estimator=poise_dr_grpo",
        ),
        (
            ["poise.credit_weights=gtpo", OURS, "algorithm.rollout_correction.bypass_mode=True"],
            "set algorithm.rollout_correction.bypass_mode=False",
        ),
        (
            ["poise.credit_weights=gtpo", OURS, "algorithm.rollout_correction.rollout_rs=token_k1"],
            "leave algorithm.rollout_correction.rollout_rs out",
        ),
        (
            ["poise.credit_weights=nthr", OURS, "actor_rollout_ref.actor.strategy=megatron"],
            "reads hidden states: .*megatron is not FSDP",
        ),
        (["poise.credit_weights=nthr", OURS, "poise.tau=0.25"], r"keep none; set \+poise.tau=0"),
        (["poise.trajectory=orthogonl"], "did you mean 'orthogonal'"),
        (["poise.trajectory=orthogonal", OURS], "policy_loss.loss_mode=gpg"),
        (["poise.trajectory=orthogonal", GPG], "set algorithm.adv_estimator=poise_grpo"),
        (
            [
                "poise.trajectory=orthogonal",
                OURS,
                GPG,
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            ],
            "loss_agg_mode=token-mean",
        ),
        (
            ["poise.trajectory=min_replace", OURS, GPG, "poise.composer=shuffled"],
            r"needs whole groups: set \+poise.composer=grouped",
        ),
        (
            ["poise.trajectory=min_replace", GPG, "algorithm.adv_estimator=poise_w_reinforce"],
            r"set \+poise.trajectory=orthogonal",
        ),
        (["poise.tau=0.25", OURS, "algorithm.use_kl_in_reward=True"], "set it to False"),
        (["poise.tau=0.25", OURS, "algorithm.filter_groups.enable=True"], "set it to False"),
        (["poise.tau=0.25", OURS, "reward.reward_model.enable=True"], "enable_resource_pool=True"),
        (
            ["poise.tau=0.25", OURS, "trainer.v1.sampler.custom_sampler.path=mine.py"],
            "leave trainer.v1.sampler.custom_sampler out",
        ),
    ],
)
def test_what_cannot_be_honoured_stops(settings: list[str], said: str) -> None:
    with pytest.raises(PoiseError, match=said) as fault:
        check_config(config(*settings))
    assert "\n" not in str(fault.value)


def test_every_token_weighting_runs_or_says_why() -> None:
    runs = {*SCORE_READING_WEIGHTS, *STATE_READING_WEIGHTS}
    assert {"uniform", *runs, *REFUSED_WEIGHTS} == set(TOKEN_WEIGHTS)
    assert not runs & REFUSED_WEIGHTS.keys()
    for method in runs:
        options = check_config(config(OURS, f"poise.credit_weights={method}"))
        assert options is not None
        assert options.credit_weights == method
    for method, reason in REFUSED_WEIGHTS.items():
        with pytest.raises(PoiseError, match=f"credit_weights={method} .*{reason}"):
            check_config(config(OURS, f"poise.credit_weights={method}"))
    page = (Path(__file__).parents[3] / "docs" / "guide" / "verl.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("|`credit.weights`|"))
    assert set(re.findall(r"`(\w+)`", row)) == REFUSED_WEIGHTS.keys()


def test_waiting_rollouts_have_no_states_in_sync_mode_only() -> None:
    settings = [OURS, "poise.credit_weights=nthr", "poise.tau=0.25"]
    options = check_config(config(*settings, "trainer.v1.trainer_mode=colocate_async"))
    assert options is not None
    assert options.weighs_tokens


def test_a_missing_or_another_verl_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(PoiseError, match=r"^verl is not installed: pip install"):
        host.require_verl()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.8.0")
    with pytest.raises(PoiseError, match=r"^verl 0.8.0 is not supported, only 0.9.1: pip install"):
        host.require_verl()


def test_what_changed_in_verl_is_named() -> None:
    class Later:
        def __init__(self, config: Any) -> None:
            self.replay_buffer = self.pending_keys = None

        def _balance_batch(self, batch: Any, more: Any) -> None: ...

    faults = host.find_changes(
        lambda owner: Later if owner.endswith((":PPOTrainer", "Buffer")) else None
    )
    assert faults[0] == "PPOTrainer._balance_batch takes (self, batch, more)"
    assert "PPOTrainer._compute_advantage is gone" in faults
    assert "verl.utils.config.validate_config is gone" in faults
    assert "ReplayBuffer.running_keys is gone" in faults
    assert "ReplayBuffer.pending_keys is gone" not in faults
    # all but the two attributes and the constructor that are there
    assert len(faults) == len(host.PRIVATE_METHODS) + len(host.ATTRIBUTES) - 3
