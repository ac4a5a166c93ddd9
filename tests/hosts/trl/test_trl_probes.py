"""Held-out answers followed inside TRL: the native engine's numbers, and the same training."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hosts.trl.test_run import groups_of, needs_trl, run
from hosts.trl.trl_compare import launch, policy_at, rows_of
from small_run import small_config

from counterpoise.config import UpdateConfig
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import assign_credit, make_policy_reader, update
from counterpoise.microscope.probe_monitor import ProbeAnswer, ProbeMonitor
from counterpoise.model.load import Policy, load_policy
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.heldout_pushes import lowering_prompts
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.run import follow_probes
from counterpoise.run.metrics import StageClock
from counterpoise.run.probes import probes_from_tensors
from counterpoise.run.state import RunState, bind_sampler, new_state
from counterpoise.sample.decode_graphs import graphs_for, kv_bytes_held
from counterpoise.sample.kv_slots import SlotCapacity
from counterpoise.store import checkpoint
from counterpoise.store.check.check_run import check_run
from counterpoise.store.folder import RunFolder
from counterpoise.task.load import load_run_task
from counterpoise.types import BatchPlan, Floats, Rollout, Row
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.verify.make_verifier import make_verifier

pytestmark = [needs_trl, pytest.mark.slow]
KINDS = ("probes", "probe_rows", "probe_pushes", "tokens")
ITERATIONS = 3
# Plain gradient descent: AdamW divides by gradients that are rounding, and engines differ there.
SETS = (
    "monitor.probe=6", "monitor.probe_every=1", "monitor.probe_refresh=2", "task.heldout=4",
    "evaluate.prompts=0", "update.optimizer=sgd", "update.lr=0.5", "balance.tau=0",
    "sample.prompts=4", "sample.group_size=4", f"loop.iterations={ITERATIONS}",
    "loop.checkpoint_every=1", "loop.keep_checkpoints=9",
)  # fmt: skip
# Relative, in float32: TRL computes in padded passes and we in packed ones. Measured: up to 4e-6.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probes")


@pytest.fixture(scope="module")
def followed(base: Path) -> RunFolder:
    return run(small_config(base, *SETS), base / "trl")


def columns(folder: RunFolder, kind: str, iteration: int) -> dict[str, np.ndarray]:
    stored = pq.read_table(folder.path / kind / f"step_{iteration:05d}.parquet")
    return {name: stored[name].to_numpy() for name in stored.column_names}


def relative_difference(measured: np.ndarray, expected: Floats) -> float:
    assert measured.shape == expected.shape
    assert float(np.linalg.norm(expected)) > 0
    return float(np.linalg.norm(measured - expected) / np.linalg.norm(expected))


def test_the_numbers_are_the_native_engines(base: Path, followed: RunFolder) -> None:
    """The native loop trains on TRL's rollouts from the same weights and follows the same text."""
    config = small_config(base, *SETS, "update.old_logprobs=sampler")
    state = new_state(load_policy(config.model), config)
    heldout, verifier = load_run_task(config).heldout, make_verifier(config.verify)
    compared = 0
    for plan in followed.read("plans"):
        iteration = plan["iteration"]
        state.iteration = iteration - 1
        follow_probes.draw_if_due(
            state, bind_sampler(state), heldout, config, verifier, StageClock()
        )
        reader = make_policy_reader(state, config)
        groups = groups_of(followed, iteration)
        rows = [row for group in assign_credit(groups, config, reader) for row in group]
        native_plan = BatchPlan(plan["rule"], tuple(map(tuple, plan["steps"])))
        tracker = follow_probes.prepare_probed_update(state, config, native_plan)
        assert tracker is not None
        update(state, rows, native_plan, config, probes=tracker)
        clock = StageClock()
        clock.lap("update")
        look = tracker.finish(clock)
        state.iteration = iteration
        if look.measurement is None:
            assert not (followed.path / "probes" / f"step_{iteration:05d}.parquet").exists()
            continue
        compared += 1
        measurement = look.measurement
        by_token = columns(followed, "probes", iteration)
        assert relative_difference(by_token["logprob"], measurement.logprobs) < TOLERANCE
        assert relative_difference(by_token["displacement"], measurement.displacement) < TOLERANCE
        for sign, name in enumerate(("positive", "negative")):
            pushes = measurement.signed_J2[:, sign]
            assert relative_difference(by_token[name], pushes) < TOLERANCE
        by_row = columns(followed, "probe_rows", iteration)
        pushes = measurement.by_row_RQ.ravel()
        assert relative_difference(by_row["push"], pushes) < TOLERANCE
        indices = [
            native_plan.steps[step][row]
            for step, row in zip(measurement.steps, measurement.rows, strict=True)
        ]
        assert by_row["row"].tolist() == np.repeat(indices, len(look.answers)).tolist()
    verifier.close()
    assert compared == ITERATIONS


def test_the_folder_is_whole_and_can_be_traced(followed: RunFolder) -> None:
    assert check_run(followed.path).is_whole
    lines = followed.read("probes")
    assert [line["iteration"] for line in lines] == [1, 3]
    probed = ProbedRun.open(followed.path)
    rates = [probed_iteration.lr for probed_iteration in probed.read()]
    assert rates == [record["lr"] for record in followed.read("metrics")] == [0.125, 0.25, 0.375]
    assert all(problem.startswith("word_problems/heldout/") for problem in probed.problem_ids)
    moved = [record["probe_wrong"] for record in followed.read("metrics")]
    assert all(value is not None and value != 0 for value in moved)


def test_training_and_resumed_probes_are_the_same_bit_for_bit(
    base: Path, followed: RunFolder, tmp_path: Path
) -> None:
    blind = run(small_config(base, *SETS, "monitor.probe=0"), tmp_path / "blind")
    for iteration in range(1, ITERATIONS + 1):
        assert _weights(blind, iteration) == _weights(followed, iteration)
    out = tmp_path / "resumed"
    for iterations in (2, ITERATIONS):
        config = small_config(base, *SETS, f"loop.iterations={iterations}")
        resumed = run(config, out, resume=out.exists())
    for kind in KINDS:
        names = sorted(path.name for path in (followed.path / kind).iterdir())
        assert names == sorted(path.name for path in (out / kind).iterdir())
        for name in names:
            assert (out / kind / name).read_bytes() == (followed.path / kind / name).read_bytes()
    assert (out / "probes.jsonl").read_bytes() == (followed.path / "probes.jsonl").read_bytes()
    assert _weights(resumed, ITERATIONS) == _weights(followed, ITERATIONS)


def _weights(folder: RunFolder, iteration: int) -> bytes:
    path = folder.checkpoints / checkpoint.folder_name(iteration)
    return (path / checkpoint.MODEL_FILE).read_bytes()


def test_aligned_weights_read_the_steering_half(
    base: Path, followed: RunFolder, tmp_path: Path
) -> None:
    config = small_config(base, *SETS, "credit.weights=aligned", "loop.iterations=1")
    steered = run(config, tmp_path / "steered")
    newest = checkpoint.load_newest(steered.checkpoints, print)
    assert newest is not None
    probes = probes_from_tensors(newest.state["probes"], newest.buffer)
    assert probes is not None
    assert {answer.half for answer in probes.answers} == {"steer", "judge"}
    assert _weights(steered, 1) != _weights(followed, 1)


# -- a trainer in a user's own script -----------------------------------------------------------

SCRIPT: dict[str, Any] = {
    "generations": 2, "double": False, "save_strategy": "steps", "save_steps": 4,
}  # fmt: skip
FOLLOWED: dict[str, Any] = {"probe": 6, "probe_every": 1, "probe_refresh": 2}


@pytest.fixture(scope="module")
def script(base: Path) -> tuple[dict[str, Any], RunFolder]:
    """(what the trainer noted of every step, its run folder)"""
    path = base / "script"
    (noted,) = launch(path, run_folder=str(path / "poise"), **SCRIPT, **FOLLOWED)
    return noted, RunFolder(path / "poise")


def test_a_script_trains_as_without_probes(
    script: tuple[dict[str, Any], RunFolder], tmp_path: Path
) -> None:
    (blind,) = launch(tmp_path, **SCRIPT)
    for followed_step, blind_step in zip(script[0]["steps"], blind["steps"], strict=True):
        for name, weights in blind_step["weights"].items():
            assert torch.equal(weights, followed_step["weights"][name])
    logged = [name for log in script[0]["logs"] for name in log if name.startswith("poise/probe")]
    assert logged == ["poise/probe_right", "poise/probe_wrong", "poise/probe_correlation"] * 2


def test_a_script_whose_memory_is_short_draws_and_reads_in_pieces(
    script: tuple[dict[str, Any], RunFolder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The same answers from the same random numbers, the same training, numbers up to rounding."""
    from counterpoise.hosts.trl import monitor, script_probes

    draw, read = script_probes.sample, monitor.forward

    def sample(policy: Policy, prompts: Sequence[Any], *arguments: Any) -> Any:
        if len(prompts) > 1:
            raise torch.OutOfMemoryError
        return draw(policy, prompts, *arguments)

    def forward(policy: Policy, rows: Sequence[Row], temperature: float) -> Any:
        if len(rows) > 3:
            raise torch.OutOfMemoryError
        return read(policy, rows, temperature)

    monkeypatch.setattr(script_probes, "sample", sample)
    monkeypatch.setattr(monitor, "forward", forward)
    folder = RunFolder(tmp_path / "poise")
    options = {**SCRIPT, "generations": 1}
    (noted,) = launch(tmp_path, run_folder=str(folder.path), **options, **FOLLOWED)
    assert folder.read("probes") == script[1].read("probes")[:1]
    for step, whole_step in zip(noted["steps"][:4], script[0]["steps"], strict=False):
        for name, weights in whole_step["weights"].items():
            assert torch.equal(weights, step["weights"][name])
    for kind, name in (("probes", "displacement"), ("probe_rows", "push")):
        pieces, whole = (columns(f, kind, 1)[name] for f in (folder, script[1]))
        assert relative_difference(pieces, whole) < TOLERANCE
    printed = capfd.readouterr().err
    assert "counterpoise: 1 prompt sampled at once from now on: out of memory at 3" in printed
    assert printed.count("tokens from now on") >= 1


def test_a_script_measures_the_native_numbers(script: tuple[dict[str, Any], RunFolder]) -> None:
    """Our forward and our steps, from the weights and the rows that TRL's steps had."""
    noted, folder = script
    steps = noted["steps"][:4]  # of the first generation
    (line, *_) = folder.read("probes")
    policies = [policy_at(step) for step in (*steps, noted["steps"][4])]
    rollouts = [
        Rollout(
            answer["problem_id"], answer["problem"], "", "", answer["reward"],
            np.array(policies[0].tokenizer(answer["problem"])["input_ids"], np.int32),
            np.array(answer["response_tokens"], np.int32),
            np.zeros(len(answer["response_tokens"]), np.float32),
        )
        for answer in line["answers"]
    ]  # fmt: skip
    rows = [Row(r.prompt_id, 0.0, len(r.response_tokens), rollout=r) for r in rollouts]
    answers = [ProbeAnswer(row, "judge") for row in rows]
    monitor = ProbeMonitor(answers, temperature=1.0, micro_tokens=8192)
    settings = StepSettings(UpdateConfig(clip_high=0.28), temperature=1.0, max_new_tokens=24)
    for index, (step, policy) in enumerate(zip(steps, policies, strict=False)):
        result = accumulate_gradient(
            policy, rows_of(step), settings, on_policy=step["on_policy"], keep_hidden=True
        )
        if result.rows:
            monitor.at(index).before_update(policy, rows_of(step), result)
    measurement = monitor.finish(policies[-1])
    assert measurement is not None
    by_token, by_row = columns(folder, "probes", 1), columns(folder, "probe_rows", 1)
    assert relative_difference(by_token["logprob"], measurement.logprobs) < TOLERANCE
    assert relative_difference(by_token["displacement"], measurement.displacement) < TOLERANCE
    assert relative_difference(by_row["push"], measurement.by_row_RQ.ravel()) < TOLERANCE
    (plan, *_) = folder.read("plans")
    indices = [
        plan["steps"][step][row]
        for step, row in zip(measurement.steps, measurement.rows, strict=True)
    ]
    assert by_row["row"].tolist() == np.repeat(indices, len(answers)).tolist()


def test_a_script_resumes_and_its_folder_is_read(
    script: tuple[dict[str, Any], RunFolder], tmp_path: Path
) -> None:
    folder = script[1].path
    shutil.copytree(folder.parent, tmp_path / "again")
    resumed = tmp_path / "again" / "poise"
    launch(
        tmp_path / "again", run_folder=str(resumed), **SCRIPT, **FOLLOWED,
        resume=str(tmp_path / "again" / "checkpoint-4"),
    )  # fmt: skip
    for kind in KINDS:
        name = f"{kind}/step_00002.parquet"
        assert (resumed / name).read_bytes() == (folder / name).read_bytes()
    assert (resumed / "probes.jsonl").read_bytes() == (folder / "probes.jsonl").read_bytes()
    probed = ProbedRun.open(resumed)
    assert set(probed.problem_ids) <= {f"heldout/{index}" for index in range(3)}
    names = {line["prompt_id"] for k in (1, 2) for line in script[1].read_rollouts(k)}
    assert set(probed.prompt_ids) == names  # by prompt, not by the number of the group
    assert 'id="heldout"' in write_report(resumed).read_text(encoding="utf-8")
    assert lowering_prompts(AuditRun.read(resumed)).level == "clear"


def test_two_processes_follow_the_same_answers(
    script: tuple[dict[str, Any], RunFolder], tmp_path: Path
) -> None:
    """Process 0 draws and writes; both score."""
    path = tmp_path / "poise"
    launch(
        tmp_path, processes=2, run_folder=str(path), per_device_train_batch_size=3,
        generations=1, double=False, **FOLLOWED,
    )  # fmt: skip
    assert RunFolder(path).read("probes") == script[1].read("probes")[:1]
    assert columns(RunFolder(path), "probes", 1)["displacement"].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": 4}, "probe writes to run_folder"),
        ({"probe": -1}, "cannot be negative"),
        ({"credit_weights": "aligned"}, "reads held-out answers: set probe=64"),
    ],
)
def test_a_script_without_held_out_answers_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PoiseError, match=message):
        launch(tmp_path, **options)


def test_the_native_sampler_keeps_no_memory_of_the_gpu_during_updates(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation and a draw of probes decode in slots, which no update of TRL's needs."""
    from counterpoise.hosts.trl import run_recorder

    recorder_class = run_recorder.RunRecorder

    bytes_held: dict[str, int] = {}

    def decode_in_slots(state: RunState, *_: Any) -> None:
        graphs_for(state.policy.decoder, SlotCapacity(8, 64, 64))

    def note_before(method: str) -> None:
        original = getattr(recorder_class, method)

        def noted(self: Any, *arguments: Any) -> Any:
            bytes_held[method] = kv_bytes_held(self.state.policy.decoder)
            return original(self, *arguments)

        monkeypatch.setattr(recorder_class, method, noted)

    monkeypatch.setattr(run_recorder, "evaluate", decode_in_slots)
    monkeypatch.setattr(follow_probes, "draw_if_due", decode_in_slots)
    note_before("begin_iteration")  # after the first evaluation
    note_before("record_samples")  # after the draw of probes
    run(small_config(base, *SETS, "loop.iterations=1", "monitor.probe=0"), tmp_path / "run")
    assert bytes_held == {"begin_iteration": 0, "record_samples": 0}
