"""Further rewards, anchors and dynamic sampling in whole runs: every rollout is accounted for."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import small_model
from test_resume import outcome, same

from counterpoise.batch.dropped_rollouts import DROP_REASONS
from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.report.panels.buffer import count_fates, panel
from counterpoise.report.run_data import RunData
from counterpoise.run import write_iteration
from counterpoise.store.folder import RunFolder

ITERATIONS = 5
SETS = [
    f"loop.iterations={ITERATIONS}", "loop.checkpoint_every=2", "model.device='cpu'",
    "task.levels=[1]", "task.size=40", "task.heldout=8", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=24", "batch.steps=2", "evaluate.prompts=2", "evaluate.samples=1",
    "sample.refills=2",
]  # fmt: skip
UNBALANCED = [*SETS, "balance.tau=0", "monitor.every=0"]
BALANCED = [
    *SETS, "balance.tau=0.5", "balance.target=16", "balance.max_age=1", "sample.anchors=1",
    'verify.also=["equations=0.5", "overlong"]', "verify.overlong_tokens=8",
    'credit.mixture="decoupled"',
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a random model whose rewards are 0 or 1 whatever it writes: groups are mixed."""
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["unbalanced", "balanced"])
def run(
    request: pytest.FixtureRequest, model: list[str], tmp_path_factory: pytest.TempPathFactory
) -> RunFolder:
    out = tmp_path_factory.mktemp("groups") / request.param
    options = {"unbalanced": UNBALANCED, "balanced": BALANCED}[request.param]
    return train(load_config("demo", [*options, *model]), out)


def names(folder: RunFolder) -> dict[str, set[tuple[str, int]]]:
    """(group, index) of every rollout: as sampled, as used, as dropped for each reason."""
    found: dict[str, set[tuple[str, int]]] = {
        name: set() for name in ("sampled", "used", *DROP_REASONS)
    }
    for record in folder.read("metrics"):
        seen: dict[str, int] = {}
        for line in folder.read_rollouts(record["iteration"]):
            index = seen[line["group"]] = seen.get(line["group"], -1) + 1
            found["sampled"].add((line["group"], index))
    for plan in folder.read("plans"):
        for group, index in zip(plan["group"], plan["index"], strict=True):
            found["used"].add((plan["groups"][group], index))
    for line in folder.read("drops"):
        for reason in DROP_REASONS:
            for group, indices in line.get(reason, {}).items():
                assert not found[reason] & {(group, i) for i in indices}  # dropped once
                found[reason] |= {(group, i) for i in indices}
    return found


def test_every_rollout_was_used_dropped_for_a_reason_or_waits(run: RunFolder) -> None:
    found, lines = names(run), run.read("metrics")
    balanced = run.read_config().balance.tau > 0
    parts = [found["used"], *(found[reason] for reason in DROP_REASONS)]
    accounted = set().union(*parts)
    assert sum(map(len, parts)) == len(accounted)  # no rollout has two fates
    assert accounted <= found["sampled"]
    waiting = lines[-1]["buffer_positive"] + lines[-1]["buffer_negative"]
    assert len(found["sampled"] - accounted) == waiting
    assert sum(line["rollouts"] for line in lines) == len(found["sampled"])
    assert sum(line["batch_rows"] for line in lines) == len(found["used"])
    assert sum(line["dropped_no_spread"] for line in lines) == len(found["no_spread"]) > 0
    assert lines[-1]["dropped_surplus"] == len(found["surplus"])
    assert lines[-1]["dropped_aged"] == len(found["aged"])
    silent = sum(line["rows_without_signal"] for line in lines)
    assert len(found["no_signal"]) == (silent if balanced else 0)
    assert bool(found["surplus"]) == balanced


def test_whole_groups_without_spread_are_what_dynamic_sampling_drops(run: RunFolder) -> None:
    groups: dict[str, list[float]] = {}
    for record in run.read("metrics"):
        for line in run.read_rollouts(record["iteration"]):
            groups.setdefault(line["group"], []).append(line["reward"])
    dropped = {group for group, _ in names(run)["no_spread"]}
    assert all(np.ptp(groups[group]) == 0 for group in dropped)
    for line in run.read("metrics"):
        mine = [group for group in groups if group.startswith(f"{line['iteration']}:")]
        assert len(mine) - sum(group in dropped for group in mine) == 4  # as many as prompts
        left = [group for group in mine if group not in dropped and np.ptp(groups[group]) == 0]
        assert not left or line["sampling_rounds"] == 3  # it went on to the limit
        assert line["mixed_groups"] == pytest.approx(
            np.mean([np.ptp(groups[group]) > 0 for group in mine])
        )


def test_the_first_prompts_are_those_without_dynamic_sampling(
    run: RunFolder, model: list[str], tmp_path: Path
) -> None:
    plain = load_config("demo", [*UNBALANCED, *model, "sample.refills=0", "loop.iterations=1"])
    folder = train(plain, tmp_path / "plain")
    asked = [line["prompt_id"] for line in folder.read_rollouts(1)]
    assert [line["prompt_id"] for line in run.read_rollouts(1)][: len(asked)] == asked
    assert folder.read("drops") == []
    assert folder.read("metrics")[0]["sampling_rounds"] == 1


def test_rewards_and_anchors_are_stored_and_counted(run: RunFolder) -> None:
    if not run.read_config().verify.also:
        pytest.skip("of the other run")
    for record in run.read("metrics"):
        lines = run.read_rollouts(record["iteration"])
        own = [line for line in lines if not line.get("anchor")]
        anchors = [line for line in lines if line.get("anchor")]
        assert len(own) == 3 * len(anchors)
        assert all(np.isnan(line["sampled_logprobs"]).all() for line in anchors)
        assert all(set(line["further"]) == {"equations", "overlong"} for line in lines)
        assert record["success"] == np.mean([line["reward"] > 0 for line in own])
        assert record["anchor_success"] == np.mean([line["reward"] > 0 for line in anchors])
        overlong = np.mean([line["further"]["overlong"] for line in own])
        assert record["reward_overlong"] == pytest.approx(overlong)
    plans = [p for p in run.read("plans") if p["describe"]["max_abs_group_advantage_sum"] > 1e-3]
    assert plans == []  # decoupled credit sums to zero, re-centred groups do again
    mismatch = [r["sampler_mismatch"] for r in run.read("metrics") if r["steps"]]
    assert mismatch
    assert max(mismatch) < 1e-3  # anchors are not in it


def test_the_report_adds_up(run: RunFolder) -> None:
    data = RunData.read(run.path)
    totals = accumulate(record["rollouts"] for record in data.metrics)
    for record, total in zip(count_fates(data), totals, strict=True):
        assert sum(value for name, value in record.items() if name != "iteration") == total
    assert panel(data) is not None  # without reward balance too


def test_silent_rows_are_dropped_and_steps_follow_the_rows_with_signal(
    model: list[str], tmp_path: Path
) -> None:
    sets = ["sample.refills=0", "loop.iterations=3", "task.levels=[1,2,3]"]
    options = ["batch.drop_silent=true", "batch.rows_per_step=3", "batch.steps=4"]
    config = load_config("demo", [*UNBALANCED, *model, *sets, *options])
    folder = train(config, tmp_path / "run")
    found, lines = names(folder), folder.read("metrics")
    silent = sum(line["rows_without_signal"] for line in lines)
    assert len(found["no_signal"]) == silent > 0
    assert found["used"] | found["no_signal"] == found["sampled"]
    for line in lines:
        assert line["batch_rows"] == line["rollouts"] - line["rows_without_signal"]
        groups = line["batch_rows"] // 4  # rows of a group have signal, or none of them has
        assert line["steps"] == min(max(1, line["batch_rows"] // 3), groups)
    assert {line["steps"] for line in lines} != {4}  # not batch.steps
    fates = count_fates(RunData.read(folder.path))[-1]
    assert (fates["used"], fates["without"]) == (len(found["used"]), silent)


class StopError(Exception):
    pass


def test_stopped_and_resumed_is_the_same(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = write_iteration.write_iteration, 0

    def failing(*args: Any) -> None:
        nonlocal calls
        calls += 1
        real(*args)
        if calls == 4:  # after a checkpoint and an iteration more
            raise StopError

    out = tmp_path / "again"
    monkeypatch.setattr(write_iteration, "write_iteration", failing)
    with pytest.raises(StopError):
        train(run.read_config(), out)
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["iteration"] == 4
    train(run.read_config(), out, resume=True)
    same(outcome(out), outcome(run.path))
