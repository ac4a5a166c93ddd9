"""Every part runs on the CPU with a tiny plan, checks its own work, and can be written as JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from small_run import write_model

from counterpoise.errors import PoiseError
from counterpoise.lab.speed import run as run_module
from counterpoise.lab.speed import sampler, workload
from counterpoise.lab.speed.clock import Deadline
from counterpoise.lab.speed.floors import DeviceRates
from counterpoise.lab.speed.growth import select_points
from counterpoise.lab.speed.machine_sizes import (
    SpeedPlan,
    SpeedSetup,
    UpdateCase,
    describe_machine,
    gpu_plan,
)
from counterpoise.lab.speed.probes import compare_weights
from counterpoise.lab.speed.profile import profile_kernels
from counterpoise.lab.speed.run import (
    DEFAULT_PARTS,
    EXPECTED_SECONDS,
    BenchOptions,
    estimate_seconds,
    run_part,
)
from counterpoise.lab.speed.workload import Workload
from counterpoise.microscope.probe_monitor import ProbeMeasurement, ProbeMonitor
from counterpoise.model.load import Policy
from counterpoise.variants import SPEED_MEASUREMENTS

TINY = Workload("embedded", 4, 2, 4)
LONGER = Workload("embedded", 4, 2, 32)  # equal responses would cancel, and leave no gradient
PLAN = SpeedPlan(
    iteration=TINY,
    peer_repeats=1,
    warm_up=0,
    sampler=(2, 4),
    sampler_repeats=2,
    update=(UpdateCase("embedded", 2, 2, 9, 5, 2, 1),),
    agreement=LONGER,
    probes=TINY,
    probe_answers=4,
    probe_repeats=1,
    probes_compared=LONGER,
    growth={"rollouts": (TINY,), "length": (Workload("embedded", 4, 4, 4),)},
    growth_repeats=1,
    lora_peak=TINY,
    lora_iteration=TINY,
    lora_repeats=1,
)


@pytest.fixture
def setup() -> SpeedSetup:
    rates = DeviceRates(copy=1e10, matrix=1e11, dtype="float32")
    device = torch.device("cpu")
    return SpeedSetup(
        device, rates, PLAN, Deadline(None), {"micro_tokens": 1024}, lambda text: None
    )


def test_every_part_has_an_estimate_and_the_default_ones_exist() -> None:
    assert set(EXPECTED_SECONDS) == set(SPEED_MEASUREMENTS)
    assert set(DEFAULT_PARTS) <= set(SPEED_MEASUREMENTS)


@pytest.mark.parametrize("name", ["sampler", "update", "monitor", "growth", "lora"])
def test_a_part_measures(name: str, setup: SpeedSetup) -> None:
    part = run_part(name, setup)
    assert {len(row) for row in part.rows} == {len(part.columns)}
    assert part.seconds > 0
    assert json.loads(json.dumps(part.as_json()))[name]


def test_probes_change_no_weight_and_their_default_cadence_counts(
    setup: SpeedSetup, tmp_path: Path
) -> None:
    write_model(tmp_path)
    tiny = Workload(str(tmp_path), 4, 2, 4)
    table = run_part(
        "probes", replace(setup, plan=replace(PLAN, probes=tiny, probes_compared=tiny))
    )
    measured = json.loads(json.dumps(table.as_json()))["probes"]
    assert measured["weights"]["run_repeats"]
    assert measured["weights"]["equal_with_probes"]
    # With 4 answers for 8 rollouts, as with 256 for 512.
    look, refresh = measured["look_seconds"], measured["refresh_seconds"]
    assert (measured["look_every"], measured["refresh_every"]) == (3, 21)
    seconds = measured["without"]["iteration"]["median"]
    assert measured["percent"] == pytest.approx(100 * (look / 3 + refresh / 21) / seconds)
    assert {row[0]: row[3] for row in table.rows} == {
        "without probes": "4", "with probes, look": "1", "with probes, no look": "2",
        "with probes, refresh and look": "1",
    }  # fmt: skip


def test_a_look_that_changes_a_weight_is_noticed(
    setup: SpeedSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model")
    plan = replace(PLAN, probes_compared=Workload(str(tmp_path / "model"), 4, 2, 4))
    finish = ProbeMonitor.finish

    def change_weight_and_finish(monitor: ProbeMonitor, policy: Policy) -> ProbeMeasurement | None:
        policy.model.lm_head.weight.data[0, 0] += 1e-3
        return finish(monitor, policy)

    monkeypatch.setattr(ProbeMonitor, "finish", change_weight_and_finish)
    comparison = compare_weights(replace(setup, plan=plan), tmp_path)
    assert comparison.run_repeats
    assert not comparison.probes_change_nothing
    assert comparison.describe().endswith("end with equal weights, one with probes does not")


def test_a_peer_that_is_not_there_says_so(
    setup: SpeedSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.lab.speed.trl_peer.trl_installed", lambda: False)
    part = run_part("peer", setup)
    assert part.rows[-1][:2] == ["TRL", "not installed: pip install trl==1.16.0"]
    ours = part.as_json()["peer"]["ours"]
    assert (ours["tokens"], ours["optimizer_steps"]) == (TINY.rollouts * TINY.length, 1)
    assert part.as_json()["peer"]["ours, 4 steps"]["optimizer_steps"] == 4


def test_in_float32_sampler_and_trainer_agree(setup: SpeedSetup) -> None:
    part = run_part("agreement", setup)
    assert {len(row) for row in part.rows} == {len(part.columns)}
    found = json.loads(json.dumps(part.as_json()))["agreement"]
    assert found["logprobs"]["mean"] < 1e-4
    assert sum(found["logprobs"]["histogram"]["counts"]) == LONGER.rollouts * LONGER.length
    assert found["gradient"]["ours"]["relative"] < 1e-4


def test_points_after_the_limit_are_skipped_and_said(setup: SpeedSetup) -> None:
    late = replace(setup, deadline=Deadline(-1.0))
    assert run_part("sampler", late).notes == ["skipped: -1 minutes are over"]
    part = SPEED_MEASUREMENTS.load("growth")(late)
    assert part.data["skipped"] == ["embedded 4 x 2 x 4", "embedded 4 x 4 x 4"]
    assert "minutes are over" in part.notes[0]


def test_points_of_growth_can_be_asked_for_alone(setup: SpeedSetup) -> None:
    plan = gpu_plan("shape:smollm2-135m")
    dear = [f"{job.model} {job}" for job in select_points(plan, ["length=2048", "size"])]
    assert dear == [
        "shape:smollm2-135m 32 x 8 x 2048",
        "shape:qwen3-0.6b 32 x 8 x 256",
        "shape:qwen3-1.7b 32 x 8 x 256",
    ]
    assert len(select_points(plan, [])) == 12
    assert select_points(plan, ["size=qwen3-1.7b"])[0].model == "shape:qwen3-1.7b"
    with pytest.raises(PoiseError, match="did you mean 'length'"):
        select_points(plan, ["lenght"])
    with pytest.raises(PoiseError, match="unknown point of length '4096'"):
        select_points(plan, ["length=4096"])
    late = replace(setup, deadline=Deadline(-1.0), growth_points=["length"])
    assert SPEED_MEASUREMENTS.load("growth")(late).data["skipped"] == ["embedded 4 x 4 x 4"]


def test_both_samplers_draw_every_token() -> None:
    policy = workload.load_endless_policy("embedded")
    prompts = workload.encode_texts(policy.tokenizer, workload.make_texts(policy.tokenizer, 2))
    assert sampler.sample_native(policy, prompts, 3, 5) == 30
    assert sampler.sample_transformers(policy, prompts, 3, 5) == 30


def test_a_profile_lists_kernels_and_keeps_the_traces_of_earlier_ones(
    setup: SpeedSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "make_setup", lambda options, console: setup)
    (tmp_path / "bench.trace.json").write_text("the first one")
    printed, out = io.StringIO(), tmp_path / "bench.json"
    run_module.run(BenchOptions(out=out, profile="sampler"), Console(file=printed, width=300))
    assert "aten::" in printed.getvalue()
    assert printed.getvalue().splitlines()[-1] == f"trace {tmp_path / 'bench-2.trace.json'}"
    assert json.loads((tmp_path / "bench-2.trace.json").read_text())["traceEvents"]
    assert (tmp_path / "bench.trace.json").read_text() == "the first one"
    assert run_module.find_unused_trace(out).name == "bench-3.trace.json"
    with pytest.raises(PoiseError, match="sampler"):
        profile_kernels("samplr", setup)


def test_the_gpu_plan_is_the_issues() -> None:
    plan = gpu_plan("shape:smollm2-135m")
    assert str(plan.iteration) == "64 x 8 x 128"
    large = plan.update[-1]
    assert (large.model, large.groups * large.group_size) == ("shape:qwen3-1.7b", 256)
    assert [w.rollouts for w in plan.growth["rollouts"]] == [128, 256, 512, 1024, 2048, 4096]
    assert {w.length for w in plan.growth["length"]} >= {256, 2048}
    assert str(describe_machine()["torch"]).startswith(torch.__version__.partition("+")[0])


@pytest.mark.parametrize(("run_size", "seconds"), [("100x102x300", 91.5), ("1000x1024x300", 243.6)])
def test_the_time_told_beforehand_grows_with_the_run_to_serve(
    run_size: str, seconds: float
) -> None:
    options = BenchOptions(parts=("peer", "serve"), run_size=run_size)
    assert estimate_seconds(options, on_gpu=False) == pytest.approx(seconds, abs=0.1)
