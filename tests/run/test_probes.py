"""Runs with probes: the same training as without, resumable, checked like everything else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file
from small_run import small_config

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.microscope.heldout_pushes import HeldoutPushes, HeldoutSums
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.run import follow_probes, lifecycle
from counterpoise.run.probes import (
    PROBE_COSTS,
    ProbeSet,
    draw_probes,
    measurement_interval,
)
from counterpoise.run.state import RunState
from counterpoise.sample.collect import SamplerBinding
from counterpoise.store import checkpoint
from counterpoise.store.check.check_run import check_run
from counterpoise.store.check.probe_tables import find_probe_problems
from counterpoise.store.folder import RunFolder
from counterpoise.types import Prompt, Response, Row
from counterpoise.update.graphs.passes import CapturedPasses
from counterpoise.verify.exact import ExactVerifier

PROBES = (
    "monitor.probe=6", "monitor.probe_every=1", "monitor.probe_refresh=2", "task.heldout=4",
    "task.size=12",
)  # fmt: skip
KINDS = ("probes", "probe_rows", "probe_pushes", "tokens")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probes")


@pytest.fixture(scope="module")
def finished(base: Path) -> RunFolder:
    return train(small_config(base, *PROBES), base / "whole")


def last_tensors(folder: RunFolder, component: str = "model") -> dict[str, bytes]:
    last = checkpoint.list_checkpoints(folder.checkpoints)[-1]
    tensors = load_file(last / f"{component}.safetensors")
    return {name: values.tobytes() for name, values in tensors.items()}


def probe_files(folder: RunFolder) -> dict[str, bytes]:
    files = {
        f"{kind}/{path.name}": path.read_bytes()
        for kind in KINDS
        for path in sorted((folder.path / kind).iterdir())
    }
    return files | {"probes.jsonl": (folder.path / "probes.jsonl").read_bytes()}


def test_probes_change_nothing_that_is_trained(base: Path, finished: RunFolder) -> None:
    config = small_config(base, *PROBES, "monitor.probe=0")
    blind = train(config, base / "blind")
    assert last_tensors(blind) == last_tensors(finished)
    assert last_tensors(blind, "optimizer") == last_tensors(finished, "optimizer")
    for iteration in range(1, config.loop.iterations + 1):
        assert blind.read_rollouts(iteration) == finished.read_rollouts(iteration)
    assert not (blind.path / "probes").exists()
    assert not any("probe_seconds" in line for line in blind.read("metrics"))


def test_answers_are_right_and_wrong_and_split_by_problem(finished: RunFolder) -> None:
    lines = finished.read("probes")
    assert [line["iteration"] for line in lines] == [1, 3]  # refreshed every second iteration
    for line in lines:
        answers = line["answers"]
        assert 2 <= len(answers) <= 6
        halves: dict[str, set[str]] = {}
        for answer in answers:
            halves.setdefault(answer["problem_id"], set()).add(answer["half"])
            assert answer["problem_id"].startswith("word_problems/heldout/")
        assert all(len(half) == 1 for half in halves.values())
        assert set.union(*halves.values()) == {"steer", "judge"}
    assert {answer["reward"] > 0 for answer in lines[0]["answers"]} == {True, False}
    halves_of_lines = [{a["problem_id"]: a["half"] for a in line["answers"]} for line in lines]
    assert halves_of_lines[0].items() <= halves_of_lines[1].items()  # a problem stays in its half


def test_a_resumed_run_has_the_same_probes_bit_for_bit(base: Path, finished: RunFolder) -> None:
    halves = [2, 3, 4]  # stopped before a refresh and between two
    out = base / "resumed"
    for iterations in halves:
        config = small_config(
            base, *PROBES, f"loop.iterations={iterations}", "loop.checkpoint_every=1"
        )
        folder = train(config, out, resume=out.exists())
    assert probe_files(folder) == probe_files(finished)
    assert last_tensors(folder) == last_tensors(finished)


def test_a_run_killed_after_its_checkpoint_repeats_the_probes(
    base: Path, finished: RunFolder
) -> None:
    """The checkpoint of iteration 2 is the newest: what came later is removed and written again."""
    out = base / "killed"
    shutil.copytree(finished.path, out)
    for name in ("finished.json", "model"):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    config = small_config(base, *PROBES)
    shutil.rmtree(out / "checkpoints" / "iteration_00004")
    if not (out / "checkpoints" / "iteration_00002").exists():
        pytest.skip("only the last checkpoint is kept")
    assert probe_files(train(config, out, resume=True)) == probe_files(finished)


def test_poise_check_covers_the_tables(finished: RunFolder, tmp_path: Path) -> None:
    assert check_run(finished.path).is_whole
    for name, column, problem in [
        ("probes/step_00002.parquet", "token", "has other tokens than probes.jsonl"),
        ("probe_rows/step_00003.parquet", "push", "does not add up to the pushes of probes/"),
        ("probe_pushes/step_00001.parquet", "row", "holds rows or steps that its plan lacks"),
    ]:
        run = tmp_path / column
        shutil.copytree(finished.path, run)
        table = pq.read_table(run / name)
        values = table[column].to_numpy() + np.array(50, table[column].to_numpy().dtype)
        index = table.column_names.index(column)
        pq.write_table(table.set_column(index, column, pa.array(values)), run / name)
        problems = [f"{finding.file} {finding.problem}" for finding in check_run(run).findings]
        assert f"{name} {problem}" in problems
        assert any(line.startswith(f"{name} ") and line != f"{name} {problem}" for line in problems)


def test_a_look_that_runs_out_of_memory_is_repeated_with_what_it_can_free(
    base: Path, finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, failures = [], [torch.OutOfMemoryError()]
    sums = HeldoutPushes.sums

    def fail_once(self: HeldoutPushes, sets: Sequence[Sequence[int]]) -> HeldoutSums:
        if failures:
            raise failures.pop()
        return sums(self, sets)

    monkeypatch.setattr(HeldoutPushes, "sums", fail_once)
    monkeypatch.setattr(follow_probes, "release_graphs", released.append)
    monkeypatch.setattr(CapturedPasses, "release_memory", lambda passes: released.append(passes))
    config = small_config(base, *PROBES)
    assert probe_files(train(config, tmp_path / "run")) == probe_files(finished)
    assert len(released) == 2
    failures += 2 * [torch.OutOfMemoryError()]
    with pytest.raises(PoiseError, match="out of memory"):
        train(config, tmp_path / "fails")


def test_influence_through_the_middle_layer_is_stored_and_traced(
    base: Path, finished: RunFolder, tmp_path: Path
) -> None:
    config = small_config(base, *PROBES, "monitor.probe_through=middle_layer")
    folder = train(config, tmp_path / "run")
    assert last_tensors(folder) == last_tensors(finished)
    assert check_run(folder.path).is_whole
    table = pq.read_table(folder.path / "probe_rows" / "step_00001.parquet").to_pandas()
    plain = pq.read_table(finished.path / "probe_rows" / "step_00001.parquet").to_pandas()
    assert (table["push"] == plain["push"]).all()
    assert (table["gradient_push"] != table["push"]).all()
    (problem,) = [
        problem
        for _, problem in find_probe_problems(
            {"probe_rows": {**table, "gradient_push": np.full(len(table), np.nan)}}, [{}] * 99, None
        )
    ]
    assert problem == "holds numbers that are not finite"
    first = next(ProbedRun.open(folder.path).read())
    assert (first.rows["push"] == table["gradient_push"]).all()
    with pytest.raises(PoiseError, match=r"set monitor\.probe_every to say how often"):
        small_config(base, "monitor.probe=6", "monitor.probe_through=all_parameters")
    with pytest.raises(PoiseError, match=r"is about held-out answers: set monitor\.probe=64"):
        small_config(base, "monitor.probe_through=all_parameters")
    with pytest.raises(PoiseError, match="probe_through"):  # one trace reads one kind of push
        train(small_config(base, *PROBES, "loop.iterations=5"), folder.path, resume=True)


def test_lost_probes_stop_a_resume(base: Path, finished: RunFolder, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.path, run)
    (run / "probe_rows" / "step_00002.parquet").unlink()
    with pytest.raises(PoiseError, match="probe_rows/ lacks iteration 2"):
        train(small_config(base, *PROBES, "loop.iterations=5"), run, resume=True)


def test_aligned_weights_read_the_steering_half_and_resume(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steering: list[set[str]] = []
    real = follow_probes.steering_rows

    def recorded(state: RunState, config: RunConfig) -> list[Row] | None:
        rows = real(state, config)
        steering.append({row.group for row in rows or ()})
        return rows

    monkeypatch.setattr(follow_probes, "steering_rows", recorded)
    sets = (*PROBES, "credit.weights=aligned", "monitor.probe_every=2", "evaluate.prompts=2")
    whole = train(small_config(base, *sets), base / "aligned")
    out = base / "aligned-resumed"
    for iterations in (1, 3, 4):
        config = small_config(base, *sets, f"loop.iterations={iterations}")
        folder = train(config, out, resume=out.exists())
    assert last_tensors(folder) == last_tensors(whole)
    halves = {
        answer["problem_id"]: answer["half"]
        for line in whole.read("probes")
        for answer in line["answers"]
    }
    read_problems = set().union(*steering)
    assert read_problems
    assert {halves[problem] for problem in read_problems} == {"steer"}
    assert halves.keys() == {f"word_problems/heldout/{index}" for index in (2, 3)}  # not evaluated
    with pytest.raises(
        PoiseError, match=r"than evaluate\.prompts=4, because .* raise task\.heldout"
    ):
        train(small_config(base, *sets, "evaluate.prompts=4"), base / "all-evaluated")
    assert sorted(whole.step_files("probes")) == [2, 4]
    uniform = train(small_config(base, *PROBES), base / "uniform")
    assert last_tensors(uniform) != last_tensors(whole)


# -- given answers ------------------------------------------------------------------------------


def given(base: Path, tmp_path: Path, *lines: object, sets: tuple[str, ...] = ()) -> RunConfig:
    file = tmp_path / "given.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return small_config(base, f"monitor.probe_file={file}", "monitor.probe_every=1", *sets)


def test_given_answers_are_followed_as_they_are(base: Path, tmp_path: Path) -> None:
    lines = [
        {"prompt_id": "a", "prompt": "What is 1 + 1?", "response": "It is 2.", "reward": 1},
        {"prompt_id": "a", "prompt": "What is 1 + 1?", "response": "It is 3.", "reward": 0},
        {"prompt_id": "b", "prompt": "What is 2 + 2?", "response": "It is 4."},
    ]
    folder = train(
        given(base, tmp_path, *lines, sets=("monitor.probe_refresh=1",)), tmp_path / "run"
    )
    (line,) = folder.read("probes")  # a file is never drawn again
    assert [answer["response"] for answer in line["answers"]] == [x["response"] for x in lines]
    assert [answer["reward"] > 0 for answer in line["answers"]] == [True, False, True]
    assert [answer["drawn"] for answer in line["answers"]] == [0, 0, 0]
    assert check_run(folder.path).is_whole
    followed = pq.read_table(folder.path / "probes" / "step_00001.parquet")
    assert set(followed["answer"].to_pylist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "What?"}, "given.jsonl:1: a probe answer needs a text in 'response'"),
        ({"prompt": "What?", "response": "2", "reward": "yes"}, "'reward' must be a number"),
        ({"prompt": "What?", "response": "2", "messages": ["hi"]}, "'messages' must be a list of"),
    ],
)
def test_a_line_without_an_answer_is_refused_before_the_model_is_loaded(
    base: Path,
    tmp_path: Path,
    line: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "load_policy", None)
    with pytest.raises(PoiseError, match=message):
        train(given(base, tmp_path, line), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_answers_are_measured_less_often(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = (*PROBES, "monitor.probe_every=0", "monitor.probe_refresh=20")
    folder = train(small_config(base, *sets), base / "rarely")
    assert measurement_interval(torch.device("cpu"), 6, 9, 20) == 4
    assert sorted(folder.step_files("probes")) == [4]
    # Resumed on a device where measurements cost more: the interval is 13 from here on, and the
    # measurement that has been stored stays.
    stored = probe_files(folder)
    monkeypatch.setitem(PROBE_COSTS, "cpu", PROBE_COSTS["cuda"])
    assert measurement_interval(torch.device("cpu"), 6, 9, 20) == 13
    folder = train(small_config(base, *sets, "loop.iterations=6"), folder.path, resume=True)
    assert sorted(folder.step_files("probes")) == [4]
    assert stored.items() <= probe_files(folder).items()
    assert check_run(folder.path).is_whole


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_following_answers_takes_its_share_at_most(device_type: str) -> None:
    """At the costs that were measured, as far as drawing leaves half of the share."""
    costs, device = PROBE_COSTS[device_type], torch.device(device_type)
    for refresh in (0, 20):
        drawing = costs.drawing / refresh if refresh else 0.0
        for answers in range(1, 330 if device_type == "cpu" else 117, 7):
            wait = measurement_interval(device, answers, 128, refresh)
            readings = 1 if wait == 1 else 2
            cost = (readings * costs.reading + costs.pushes) / wait + drawing
            assert answers / 128 * cost <= costs.share


def test_gpus_and_cpus_measure_at_their_own_intervals() -> None:
    intervals = {
        device: measurement_interval(torch.device(device), 256, 512, 20)
        for device in ("cpu", "mps", "cuda", "cuda:1")
    }
    assert intervals == {"cpu": 3, "mps": 3, "cuda": 9, "cuda:1": 9}


def test_answers_are_not_drawn_again_before_an_update_is_measured() -> None:
    """A batch may wait for long: its answers are still new."""
    waiting = ProbeSet(())
    assert not any(waiting.is_due(iteration, refresh=2) for iteration in range(1, 9))
    measured = replace(waiting, since=3)
    assert [measured.is_due(iteration, refresh=2) for iteration in (4, 5)] == [False, True]


def test_problems_are_drawn_in_smaller_batches_if_memory_runs_out() -> None:
    notices: list[str] = []
    drawn_together: list[int] = []

    def sample(policy: Any, prompts: Any, seeds_PG: Any, config: Any) -> list[list[Response]]:
        if len(prompts) > 2:
            raise torch.OutOfMemoryError
        drawn_together.append(len(prompts))
        texts = ["\\boxed{4}", "\\boxed{5}", "", "\\boxed{6}"]
        tokens, logprobs = np.zeros(2, np.int32), np.zeros(2, np.float32)
        return [[Response(tokens, logprobs, text, True) for text in texts] for _ in prompts]

    policy = SimpleNamespace(encode_all=lambda prompts: [np.zeros(1, np.int32) for _ in prompts])
    size = FittedSize(32, notify=notices.append)
    probes = draw_probes(
        SamplerBinding(cast(Policy, policy), size, sample),
        [Prompt(str(k), "?", "4") for k in range(4)],
        load_config("demo", ["monitor.probe=8"]),
        ExactVerifier(),
        iteration=1,
    )
    assert drawn_together == [2, 2]
    assert [answer.row.content.reward for answer in probes.answers] == [1.0, 0.0] * 4
    assert notices == [
        "2 prompts sampled at once in this evaluation from now on: out of memory at 4"
    ]
    assert size.size == 32  # that of training stays


def test_options_that_cannot_work_are_refused(base: Path) -> None:
    with pytest.raises(PoiseError, match=r"monitor\.probe_every"):
        load_config("demo", ["monitor.probe=8", "monitor.probe_every=-1"])
    with pytest.raises(PoiseError, match=r"monitor\.probe needs held-out problems"):
        train(small_config(base, "monitor.probe=4", "task.heldout=0"), base / "none")
