"""Runs that balance by reward, or hold the rarer sign down: batches, resuming, the report."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_run import small_config

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl.run_options import check_options as check_trl
from counterpoise.hosts.verl.run_options import check_options as check_verl
from counterpoise.loop import train
from counterpoise.report.panels import buffer as buffer_panel
from counterpoise.report.panels.buffer import count_fates
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import RunFolder

BY_REWARD = ("balance.sign=reward", "balance.target=12", "loop.iterations=6", "balance.tau=0.4")
ANTI = ("balance.unit=experimental_anti_rollout", "balance.tau=0.1", "balance.target=6")


def timeless(records: list[dict]) -> list[dict]:
    return [
        {name: value for name, value in record.items() if "second" not in name}
        for record in records
    ]


def test_rows_without_signal_are_trained_beside_the_others(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, *BY_REWARD), tmp_path / "run")
    plans = folder.read("plans")
    assert len(plans) >= 2
    assert all(plan["describe"]["rows"] == 12 for plan in plans)
    assert sum(plan["describe"]["rows_without_signal"] for plan in plans) > 0
    run = RunData.read(folder.path)
    sampled = 0
    for record, fate in zip(run.metrics, count_fates(run), strict=True):
        sampled += record["rollouts"]
        assert sum(value for name, value in fate.items() if name != "iteration") == sampled
    shown = buffer_panel.panel(run)
    assert shown is not None
    assert "with each sign of the reward making up at least 40 %" in shown.caption


def test_a_resumed_run_balances_by_reward_as_before(tmp_path: Path) -> None:
    whole = train(small_config(tmp_path, *BY_REWARD), tmp_path / "whole")
    cut = train(small_config(tmp_path, *BY_REWARD, "loop.iterations=2"), tmp_path / "cut")
    assert any(record["buffer_negative"] for record in cut.read("metrics")[-1:])
    shutil.rmtree(cut.path / "model", ignore_errors=True)
    resumed = train(small_config(tmp_path, *BY_REWARD), cut.path, resume=True)
    for name in ("metrics", "plans", "drops"):
        assert timeless(RunFolder.open(resumed.path).read(name)) == timeless(whole.read(name))


def test_the_rarer_sign_is_held_down_in_a_run(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, *ANTI), tmp_path / "run")
    plans = folder.read("plans")
    assert plans
    for plan in plans:
        share = plan["describe"]["positive_share"]
        assert min(share, 1 - share) <= 3 / 6
        assert plan["describe"]["rows_without_signal"] == 0
    shown = buffer_panel.panel(RunData.read(folder.path))
    assert shown is not None
    assert "the rarer sign of the advantage held down to 10 %" in shown.caption


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("batch.drop_silent=true", "batch.composer=shuffled"), "which batch.drop_silent leaves"),
        (("update.mask_truncated=true",), "which update.mask_truncated leaves out"),
        (
            ("update.trajectory=min_replace", "update.surrogate=reinforce"),
            "balance.sign=reward drops rows of groups: set balance.unit=group",
        ),
        (("balance.tau=0.5", "balance.target=7"), r"rollouts \(balance.target\) even or lower tau"),
    ],
)
def test_what_contradicts_it_is_refused(tmp_path: Path, sets, message) -> None:
    with pytest.raises(PoiseError, match=message):
        small_config(tmp_path, "balance.sign=reward", *sets)


def test_credit_without_negative_advantages_can_be_balanced_by_reward(tmp_path: Path) -> None:
    sets = ("credit.name=positive_only", "balance.sign=reward")
    assert isinstance(small_config(tmp_path, *sets), RunConfig)


@pytest.mark.parametrize("check", [check_trl, check_verl])
def test_other_engines_refuse_it_in_one_line(tmp_path: Path, check) -> None:
    with pytest.raises(PoiseError, match=r"balance.sign=reward \(") as refusal:
        check(small_config(tmp_path, "balance.sign=reward"))
    assert "\n" not in str(refusal.value)
