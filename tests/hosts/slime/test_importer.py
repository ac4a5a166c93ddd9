"""slime's and miles' dumps: the plan is the schedule of all data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hosts.importing.foreign import read_lines
from hosts.importing.foreign_dumps import (
    REWARDS,
    STEPS,
    sample_tokens,
    write_miles_dumps,
    write_rollout_dump,
    write_slime_dump,
)
from report.synthetic import Page

from counterpoise.cli.token_view import read_token_view
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.hosts.slime.dump_files import load_dump
from counterpoise.lab.choose_page import write_report
from counterpoise.store.folder import RunFolder

# The rank that computed each sample, and in which of the step's micro-batches.
RANKS = [0, 1, 0, 0, 0, 1, 1, 0]
PLACES = [0, 0, 1, 1, 0, 0, 1, 1]


def test_the_plan_is_what_the_ranks_did(tmp_path: Path) -> None:
    for rollout_id in (1, 0):
        write_slime_dump(tmp_path / "run", rollout_id)
        write_rollout_dump(tmp_path / "run", rollout_id)
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("slime", 2, 16, 8)
    assert result.notes == ("plans show the trainer's own batches in 2 iterations",)
    first, second = RunFolder(tmp_path / "out").read("plans")
    assert [sorted(step) for step in first["steps"]] == STEPS
    assert (first["rank"], first["micro_batch"]) == (RANKS, PLACES)
    assert first["groups"] == ["0:0", "0:1", "0:2", "0:3"]
    assert second["groups"] == ["1:4", "1:5", "1:6", "1:7"]
    assert (first["group"], first["index"]) == ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1] * 4)
    half = 0.5**0.5
    expected = [half, -half, 0, 0, half, -half, -half, half]
    assert first["advantage"] == pytest.approx(expected, abs=1e-3)
    assert first["describe"]["split_groups"] == 0
    assert first["describe"]["tokens_per_step"] == [7, 8]
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["reward"] for line in lines] == REWARDS
    for position, line in enumerate(lines):
        prompt, response = sample_tokens(position)
        assert (line["prompt_tokens"], line["response_tokens"]) == (prompt, response)
        assert line["sampled_logprobs"] == [-0.5] * len(response)
        assert (line["response"], line["answer"]) == (f"{position} pens", "3")
        assert line["finished"] == (position != 5)
    metrics = RunFolder(tmp_path / "out").read("metrics")[0]
    assert (metrics["steps"], metrics["batch_rows"], metrics["truncated_share"]) == (2, 8, 0.125)
    assert metrics["sampler_mismatch"] == pytest.approx(0.1)


def test_tokens_can_be_looked_at(tmp_path: Path) -> None:
    write_slime_dump(tmp_path / "run")
    write_rollout_dump(tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    table = pq.read_table(tmp_path / "out" / "tokens" / "step_00000.parquet")
    assert table["row"].to_pylist() == [p for p in range(8) for _ in range(1 + p % 3)]
    assert table["step"].to_pylist() == [0] * 7 + [1] * 8
    assert np.allclose(table["logprob"], -0.4)
    assert np.allclose(table["old_logprob"], -0.5)
    view = read_token_view(tmp_path / "out", row=4)
    assert view.quantity.name == "advantage"  # slime dumps no entropy
    assert view.values.tolist() == pytest.approx([0.7071, 0.7071], abs=1e-3)
    page = Page(write_report(tmp_path / "out"))
    sections = ["learning", "mosaic", "tokens", "monitor", "plans", "rollouts", "words"]
    assert page.sections == sections


def test_groups_that_the_schedule_cuts_are_seen(tmp_path: Path) -> None:
    """Rank 0 takes the first sample of every group first, then the second ones."""
    file = write_slime_dump(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    positions = [0, 2, 4, 6, 1, 3, 5, 7]
    content["dp_shards"] = [
        content["dp_shards"][0]
        | {
            "partition": positions,
            "sample_indices": positions,
            "micro_batch_indices": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "num_microbatches": [1, 1],
        }
    ]
    torch.save(content, file)
    import_run(tmp_path / "run", tmp_path / "out")
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["steps"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert plan["describe"]["split_groups"] == 4


@pytest.mark.parametrize("sampled", [True, False])
def test_ranks_of_miles_are_put_together(tmp_path: Path, sampled: bool) -> None:
    write_miles_dumps(tmp_path / "run")
    if sampled:
        write_rollout_dump(tmp_path / "run", miles=True)
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert (result.source, result.rollouts, result.groups) == ("miles", 8, 4)
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert [sorted(step) for step in plan["steps"]] == STEPS
    assert (plan["rank"], plan["micro_batch"]) == (RANKS, PLACES)
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["reward"] for line in lines] == REWARDS
    assert ("response" in lines[0]) == sampled
    guessed = "rewards were matched to samples by the order of sample indices, in 1 iteration"
    assert (guessed in result.notes) != sampled


def test_what_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    write_miles_dumps(tmp_path / "unscheduled", scheduled=False)
    notes = import_run(tmp_path / "unscheduled", tmp_path / "a").notes
    assert "no plan, because the files do not tell the optimizer steps, in 1 iteration" in notes
    for file in write_miles_dumps(tmp_path / "part")[2:]:
        file.unlink()
    write_rollout_dump(tmp_path / "part", miles=True)
    notes = import_run(tmp_path / "part", tmp_path / "b").notes
    assert "no plan, because files of some ranks are missing, in 1 iteration" in notes
    write_rollout_dump(tmp_path / "sampled")
    assert import_run(tmp_path / "sampled", tmp_path / "c").rollouts == 8
    for out in "abc":
        assert not (tmp_path / out / "plans.jsonl").exists()


@pytest.mark.parametrize("scheduled", [False, True])
def test_rewards_are_not_guessed_without_all_ranks(tmp_path: Path, scheduled: bool) -> None:
    """Only the order of all samples says which reward is whose."""
    for file in write_miles_dumps(tmp_path / "run", scheduled=scheduled)[2:]:
        file.unlink()
    with pytest.raises(PoiseError, match=r"no rollout can be imported .*files of some ranks are"):
        import_run(tmp_path / "run", tmp_path / "out")
    write_miles_dumps(tmp_path / "run", 1, scheduled=scheduled)
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert result.rollouts == 8
    assert any(note.startswith("left out, because files of some ranks") for note in result.notes)


def replace_dump(file: Path, content: object) -> None:
    """Save it anew: `content` may be mapped from the file itself."""
    file.unlink()
    torch.save(content, file)


@pytest.mark.parametrize("has_index", [False, True])
def test_samples_with_one_index_are_told_apart_by_tokens(tmp_path: Path, has_index: bool) -> None:
    """Two samples of each rollout, which have its index with miles. Samples 2 and 5 are equal."""
    file = write_rollout_dump(tmp_path / "run", miles=True)
    sampling_dump = load_dump(file)
    equal = {"tokens": [5, 6, 20], "response_length": 1}
    for position, sample in enumerate(sampling_dump["samples"]):
        sample["index"] //= 2
        sample |= equal if position in (2, 5) else {}
    replace_dump(file, sampling_dump)
    for file in write_miles_dumps(tmp_path / "run"):
        content = load_dump(file)
        columns = content["rollout_data"] | {"num_rollouts": [2, 2]}
        for i, position in enumerate(columns["rollout_ids"]):
            if position in (2, 5):
                columns["tokens"][i] = torch.tensor(equal["tokens"])
                columns["response_lengths"][i] = equal["response_length"]
        columns["sample_indices"] = columns["rollout_ids"] = columns["rollout_ids"] // 2
        if not has_index:
            del columns["sample_indices"]
        replace_dump(file, content | {"rollout_data": columns})
    import_run(tmp_path / "run", tmp_path / "out")
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert [sorted(step) for step in plan["steps"]] == STEPS
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["response"] for line in lines] == [f"{position} pens" for position in range(8)]
    tokens = [[20] if position in (2, 5) else sample_tokens(position)[1] for position in range(8)]
    assert [line["response_tokens"] for line in lines] == tokens


def test_two_ranks_may_have_the_same_indices(tmp_path: Path) -> None:
    """Each rank has one of the two samples of every rollout."""
    for file in write_miles_dumps(tmp_path / "run"):
        content = load_dump(file)
        columns = {
            name: values[:3] if len(values) in (3, 5) else values
            for name, values in content["rollout_data"].items()
        }
        columns["sample_indices"] = columns["rollout_ids"] = np.arange(3)
        columns |= {"num_rollouts": [1, 2], "num_microbatches": [1, 1]}
        columns |= {"micro_batch_indices": [[0], [1, 2]], "raw_reward": REWARDS[:6]}
        replace_dump(file, content | {"rollout_data": columns})
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert result.rollouts == 6
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert [len(step) for step in plan["steps"]] == [2, 4]


def test_trailing_samples_and_masks(tmp_path: Path) -> None:
    """A sample that fills no step is kept without a place in the plan; a masked one in it."""
    write_rollout_dump(tmp_path / "run")
    file = write_slime_dump(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    content["samples"] = content["samples"][:7]
    content["samples"][2]["loss_masks"] = torch.tensor([0, 0, 0])
    content["samples"][5]["loss_masks"] = torch.tensor([1, 0, 1])
    shard = content["dp_shards"][0]
    shard |= {
        "partition": [0, 2, 3, 4],
        "sample_indices": [0, 2, 3, 4],
        "global_batch_sizes": [4, 3],
    }
    shard |= {"micro_batch_indices": [[0], [1, 2], [3], []]}
    torch.save(content, file)
    import_run(file.parent.parent, tmp_path / "out")
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert [sorted(step) for step in plan["steps"]] == [[0, 1, 2, 3], [4, 5, 6]]
    assert plan["advantage"][2] == 0.0
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert len(lines) == 8
    assert len(lines[2]["response_tokens"]) == 3
    assert (lines[5]["response_tokens"], lines[5]["turns"][1]["told"]) == ([25, 25], [25])


@dataclass
class Harmful:
    """Unpickling an object of a class may run code."""

    size: int = 3


def test_files_that_could_run_code_are_refused(tmp_path: Path) -> None:
    file = write_rollout_dump(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    content["samples"][0]["multimodal_inputs"] = Harmful()
    torch.save(content, file)
    with pytest.raises(PoiseError) as refusal:
        import_run(tmp_path / "run", tmp_path / "out")
    message = str(refusal.value)
    assert "Harmful, which is not read because it could run code" in message
    assert "torch.load(FILE, weights_only=False)" in message
    assert "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "format_version 3, expected at most 2: dumps of slime at 624b824a"),
        ({"dp_shards": None}, "no 'dp_shards' \\(fields: format_version, rollout_id"),
        ({"samples": [{}]}, "is not among the samples: dumps of slime at"),
    ],
)
def test_newer_formats_are_named(tmp_path: Path, changes: dict, message: str) -> None:
    file = write_slime_dump(tmp_path / "run", **changes)
    with pytest.raises(PoiseError, match=message):
        import_run(file, tmp_path / "out")


def test_schedules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = write_slime_dump(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    content["dp_shards"][0]["num_microbatches"] = [2, 1]
    torch.save(content, file)
    with pytest.raises(PoiseError, match="do not fit num_microbatches \\[2, 1\\] and 5 samples"):
        import_run(file, tmp_path / "out")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(PoiseError, match="holds no rollouts that can be read"):
        import_run(file, tmp_path / "out")


def test_advantages_that_are_no_numbers_are_computed(tmp_path: Path) -> None:
    file = write_slime_dump(tmp_path / "run")
    content = torch.load(file, weights_only=True)
    content["samples"][0]["advantages"] = torch.tensor([float("nan")])
    torch.save(content, file)
    notes = import_run(file, tmp_path / "out").notes
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["advantage"][0] > 0
    assert notes[-1].startswith("where the trainer wrote no advantages, plans show GRPO's")


def test_other_files_are_named(tmp_path: Path) -> None:
    files = [write_slime_dump(tmp_path / "run", rollout_id) for rollout_id in range(3)]
    files[1].write_bytes(files[1].read_bytes()[:-100])
    files[2].with_name("eval_2.pt").write_bytes(files[2].read_bytes())
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert result.steps == 2
    assert "left out: 1 file of evaluations" in result.notes
    assert f"left out because they are no complete dumps: {files[1]}" in result.notes


def test_a_torn_file_is_named_though_it_leaves_one_or_none_of_its_kind(tmp_path: Path) -> None:
    write_slime_dump(tmp_path / "run")
    torn = [write_slime_dump(tmp_path / "run", 1), write_rollout_dump(tmp_path / "run")]
    for file in torn:
        file.write_bytes(file.read_bytes()[:-100])
    result = import_run(tmp_path / "run", tmp_path / "out")
    names = ", ".join(map(str, sorted(torn)))
    assert f"left out because they are no complete dumps: {names}" in result.notes


def test_odd_values_are_one_line(tmp_path: Path) -> None:
    file = write_slime_dump(tmp_path / "run", dp_shards=[{"rank": 0}])
    with pytest.raises(PoiseError, match="or slime of another version wrote it: KeyError: 'data_"):
        import_run(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_one_of_several_rewards_must_be_named(tmp_path: Path) -> None:
    file = write_rollout_dump(tmp_path / "run")
    with pytest.raises(PoiseError, match="slime has one reward here"):
        import_run(file, tmp_path / "out", reward="accuracy")
    content = torch.load(file, weights_only=True)
    for sample in content["samples"]:
        sample["reward"] = {"accuracy": sample["reward"], "format": 1.0}
    torch.save(content, file)
    with pytest.raises(PoiseError, match="dicts with the keys accuracy, format: name the one"):
        import_run(file, tmp_path / "out")
    import_run(file, tmp_path / "out", reward="accuracy")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["reward"] for line in lines] == REWARDS
