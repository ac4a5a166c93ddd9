"""NeMo-RL's training batches: every column arrives, and groups, texts and plans are found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_nemo_rl import (
    ENVIRONMENT,
    POLICY,
    nemo_rl_file,
    sample_record,
    step_records,
    write_config,
    write_step,
)

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import recognise_source
from counterpoise.hosts.importing.write_folder import ImportSummary, import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.store.folder import RunFolder

ANSWER = [(POLICY, [7, 8, 2])]


def imported(folder: Path, step: int = 1) -> tuple[ImportSummary, list[dict[str, Any]]]:
    out = folder.parent / "out"
    summary = import_run(folder, out)
    return summary, read_lines(out / "rollouts" / f"step_{step:05d}.jsonl")


def test_every_column(tmp_path: Path) -> None:
    run = tmp_path / "exp_001"
    write_step(run, step_records(), 7)
    write_config(run / "config.yaml")
    summary, lines = imported(run, 7)
    assert (summary.source, summary.steps, summary.rollouts) == ("NeMo-RL", 1, 4)
    assert (summary.groups, summary.tokens) == (2, 12)
    assert [line["reward"] for line in lines] == [0.0, 1.0, 0.0, 1.0]
    first, second, third, _ = lines
    assert first["group"] == second["group"] != third["group"]
    assert re.fullmatch(r"7:nemo-rl/[0-9a-f]{12}", first["group"])
    assert first["prompt_tokens"] == [5, 6]
    assert second["response_tokens"] == [21, 21, 2]
    assert (second["prompt"], second["response"]) == ("How many, 0?", "so 1")
    assert first["sampled_logprobs"] == pytest.approx([-0.2, -0.3, -0.4])
    assert "finished" not in first
    assert "turns" not in first
    out = tmp_path / "out"
    (plan,) = RunFolder(out).read("plans")
    assert plan["steps"] == [[0, 1, 2, 3]]
    assert plan["advantage"] == [-1.0, 1.0, -1.0, 1.0]
    tokens = pq.read_table(out / "tokens" / "step_00007.parquet").to_pydict()
    assert tokens["token"] == [20, 21, 2, 21, 21, 2] * 2
    assert tokens["row"] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert tokens["advantage"] == [-1.0] * 3 + [1.0] * 3 + [-1.0] * 3 + [1.0] * 3
    np.testing.assert_allclose(tokens["old_logprob"], [-0.2, -0.3, -0.4] * 4, rtol=1e-6)
    np.testing.assert_allclose(tokens["logprob"], [-0.25, -0.35, -0.45] * 4, rtol=1e-6)
    (metrics,) = RunFolder(out).read("metrics")
    assert metrics["sampler_mismatch"] == pytest.approx(0.05)
    assert write_report(out).is_file()


def test_turns(tmp_path: Path) -> None:
    pieces = [(POLICY, [7, 8]), (ENVIRONMENT, [30, 31]), (POLICY, [9]), (ENVIRONMENT, [32])]
    texts = ["Rules.", "How many?", "so 4", "too few", "so 5", "right"]
    advantages = [float(t) for t in range(12)]
    record = sample_record([5, 6], pieces, texts=texts, advantages=advantages)
    write_step(tmp_path / "run", [record])
    write_config(tmp_path / "run" / "config.yaml", 1, 1, 1)
    _, (line,) = imported(tmp_path / "run")
    assert line["response_tokens"] == [7, 8, 9]
    assert line["sampled_logprobs"] == pytest.approx([-0.2, -0.3, -0.6])
    assert (line["prompt"], line["response"]) == ("Rules.How many?", "so 4so 5")
    assert line["turns"] == [
        {"start": 0, "told": [], "action": [0, 2], "feedback": "too few"},
        {"start": 2, "told": [30, 31], "action": [2, 3], "feedback": ""},
    ]
    tokens = pq.read_table(tmp_path / "out" / "tokens" / "step_00001.parquet").to_pydict()
    assert tokens["advantage"] == [2.0, 3.0, 6.0]
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["advantage"] == [pytest.approx(11 / 3)]


def test_a_reply_without_tokens_does_not_join_the_prompt(tmp_path: Path) -> None:
    """The mask shows one turn where there were two; the other sample shows the prompt's end."""
    silent = sample_record(
        [5, 6], [(POLICY, [7, 8, 9])], texts=["How many?", "so 4", "", "so 5", "right"]
    )
    usual = sample_record([5, 6], ANSWER, texts=["How many?", "so 6", "wrong"])
    write_step(tmp_path / "run", [silent, usual])
    summary, lines = imported(tmp_path / "run")
    assert summary.groups == 1
    assert [line["prompt"] for line in lines] == ["How many?"] * 2
    assert [line["response"] for line in lines] == ["so 4so 5", "so 6"]


def test_dynamic_sampling_has_its_own_rewards(tmp_path: Path) -> None:
    """`rewards` are those of all samples, cut to the size of the batch: of other rows."""
    records = [
        sample_record([5, 6], ANSWER, 0.0, filtered_rewards=reward) for reward in (1.0, 0.0, 0.5)
    ]
    write_step(tmp_path / "run", records)
    _, lines = imported(tmp_path / "run")
    assert [line["reward"] for line in lines] == [1.0, 0.0, 0.5]


def test_prompts_that_were_cut_are_told_apart_by_their_texts(tmp_path: Path) -> None:
    """NeMo-RL keeps four tokens of a prompt that is too long, and takes it out of the loss."""
    cut = [
        sample_record([1, 2, 3, 4], ANSWER, weight=0.0, texts=[prompt, "so", "wrong"])
        for prompt in ("Ana", "Ana", "Ben")
    ]
    write_step(tmp_path / "run", cut)
    write_step(tmp_path / "run", cut[2:], 2)
    write_step(tmp_path / "run", cut[:1], 3)
    _, lines = imported(tmp_path / "run")
    for step, other in ((2, lines[2]), (3, lines[0])):
        (line,) = read_lines(tmp_path / "out" / "rollouts" / f"step_{step:05d}.jsonl")
        assert line["prompt_id"] == other["prompt_id"]
    groups = [line["group"] for line in lines]
    assert groups[0] == groups[1] != groups[2]
    assert [line["prompt"] for line in lines] == ["Ana", "Ana", "Ben"]


def test_a_long_response_stays_in_its_group(tmp_path: Path) -> None:
    records = [sample_record([5, 6], ANSWER, weight=weight) for weight in (1.0, 0.0)]
    write_step(tmp_path / "run", records)
    write_config(tmp_path / "run" / "config.yaml", 1, 2, 2)
    summary, lines = imported(tmp_path / "run")
    assert lines[0]["group"] == lines[1]["group"]
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["steps"] == [[0]]
    assert "in no plan, because sample_loss_mask is 0: 1 rollout" in summary.notes


def test_texts_that_differ_in_a_group_are_left_out(tmp_path: Path) -> None:
    records = [
        sample_record([5, 6], ANSWER, texts=[prompt, "so", "right"]) for prompt in ("Ana", "Ben")
    ]
    write_step(tmp_path / "run", records)
    summary, lines = imported(tmp_path / "run")
    assert summary.groups == 1
    assert not any("prompt" in line or "response" in line for line in lines)
    assert any(note.endswith("do not fit the mask: 2 rollouts") for note in summary.notes)


def test_nemo_gym(tmp_path: Path) -> None:
    """Messages have no texts; equal prompts of two agents are two groups."""
    records = [
        sample_record([5, 6], ANSWER, texts=["", ""], agent_ref={"name": agent})
        for agent in ("maths", "maths", "search")
    ]
    write_step(tmp_path / "run", records)
    summary, lines = imported(tmp_path / "run")
    assert [line["group"].split("/")[0] for line in lines] == ["1:maths", "1:maths", "1:search"]
    assert "prompt" not in lines[0]
    assert not any("without texts" in note for note in summary.notes)


def test_rows_that_the_policy_did_not_write(tmp_path: Path) -> None:
    """They are no rollouts, but count where rows are cut into batches."""
    records = step_records()
    records[1] = sample_record([5, 6], [(ENVIRONMENT, [30])])
    write_step(tmp_path / "run", records)
    write_config(tmp_path / "run" / "config.yaml", batch=2)
    summary, lines = imported(tmp_path / "run")
    assert len(lines) == 3
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["steps"] == [[0], [1, 2]]
    assert "left out because none of their tokens is the policy's: 1 sample" in summary.notes


@pytest.mark.parametrize(
    ("config", "wandb"),
    [("config.yaml", False), ("wandb/wandb/offline-run-20260801_0-a/files/config.yaml", True)],
)
def test_optimizer_steps_by_the_options(tmp_path: Path, config: str, wandb: bool) -> None:
    nemo_rl_file(tmp_path / "run")
    write_config(tmp_path / "run" / config, batch=2, wandb=wandb)
    summary, _ = imported(tmp_path / "run")
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["steps"] == [[0, 1], [2, 3]]
    assert not any("no plan" in note for note in summary.notes)


def write_ppo_config(folder: Path) -> None:
    content = write_config(folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(content.replace("grpo:", "ppo:"))


CONFIGS: dict[str, Callable[[Path], object]] = {
    "none": lambda folder: None,
    "of another run": lambda folder: write_config(folder / "config.yaml", prompts=3),
    "two that differ": lambda folder: [
        write_config(folder / name / "config.yaml", batch=batch)
        for name, batch in ((".", 4), ("wandb/wandb/run-1/files", 2))
    ],
    "no whole batches": lambda folder: write_config(folder / "config.yaml", batch=3),
    "PPO": write_ppo_config,  # several epochs over the same rows
    "torn": lambda folder: (folder / "config.yaml").write_text("grpo: ["),
    "no YAML": lambda folder: (folder / "config.yaml").write_bytes(b"\xff\xfe\x00"),
    "deep": lambda folder: (folder / "config.yaml").write_text("[" * 100_000),
    "no numbers": lambda folder: write_config(folder / "config.yaml", batch="x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CONFIGS)
def test_no_plan_where_the_optimizer_steps_are_not_certain(tmp_path: Path, name: str) -> None:
    nemo_rl_file(tmp_path / "run")
    CONFIGS[name](tmp_path / "run")
    summary, _ = imported(tmp_path / "run")
    assert not (tmp_path / "out" / "plans.jsonl").exists()
    assert any(note.startswith("no plan, because the files do not") for note in summary.notes)


def test_zeros_for_the_trainer_mean_one_optimizer_step(tmp_path: Path) -> None:
    """force_on_policy_ratio: one step a batch, and zeros in place of prev_logprobs."""
    write_step(tmp_path / "run", [r | {"prev_logprobs": [[0.0] * 12]} for r in step_records()])
    imported(tmp_path / "run")
    (plan,) = RunFolder(tmp_path / "out").read("plans")
    assert plan["steps"] == [[0, 1, 2, 3]]
    assert not (tmp_path / "out" / "tokens").exists()


def test_zeros_of_sampler_and_trainer_say_nothing(tmp_path: Path) -> None:
    zeros = {"prev_logprobs": [[0.0] * 12], "generation_logprobs": [[0.0] * 12]}
    write_step(tmp_path / "run", [record | zeros for record in step_records()])
    imported(tmp_path / "run")
    assert not (tmp_path / "out" / "plans.jsonl").exists()


def test_steps_of_a_run(tmp_path: Path) -> None:
    """In the order of numbers; validation and other files are left out."""
    for step in (10, 9):
        nemo_rl_file(tmp_path / "run", step)
    write_step(tmp_path / "run", step_records(3), 11)
    write_lines(tmp_path / "run" / "val_data_step10.jsonl", [{"content": [[]], "rewards": [1.0]}])
    (tmp_path / "run" / "train_data_step12.jsonl").write_text("")
    source, files = recognise_source(tmp_path / "run")
    assert source.title == "NeMo-RL"
    assert [file.stem[-2:] for file in files] == ["p9", "10", "11", "12"]
    summary, _ = imported(tmp_path / "run", 9)
    assert (summary.steps, summary.rollouts, summary.groups) == (3, 14, 7)
    assert (
        "1 file with another number of rows than most, such as train_data_step11.jsonl: if it is "
        "incomplete, copy it again" in summary.notes
    )


def test_a_prompt_drawn_twice_is_noted(tmp_path: Path) -> None:
    first, second = step_records(2)[:2], step_records(2)[2:]
    write_step(tmp_path / "run", [*first, *second, *first, *step_records(3)[4:]])
    summary, _ = imported(tmp_path / "run")
    assert summary.groups == 3
    assert any(note.endswith("in their images only: 1 group") for note in summary.notes)


def test_files_of_distillation_are_not_recognised(tmp_path: Path) -> None:
    record = {"content": [["How many?", "4"]], "input_lengths": [6], "idx": 0}
    file = write_lines(tmp_path / "run" / "train_data_step1.jsonl", [record])
    for path in (file, file.parent):
        with pytest.raises(PoiseError, match="holds no rollouts"):
            recognise_source(path)


def change(**changes: Any) -> Callable[[Path], object]:
    """A step whose second line has other fields."""

    def write(folder: Path) -> None:
        records = step_records()
        records[1] |= changes
        write_step(folder, records)

    return write


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: write_step(
        folder, [{k: v for k, v in record.items() if k != name} for record in step_records()]
    )


def cut(folder: Path) -> None:
    file = nemo_rl_file(folder)
    file.write_bytes(file.read_bytes()[:-30])


def lose_line(folder: Path) -> None:
    file = nemo_rl_file(folder)
    write_lines(file, [line for line in read_lines(file) if line["idx"] != 1])


def garble_first_line(folder: Path) -> None:
    file = nemo_rl_file(folder)
    file.write_bytes(b'{"content": [[' + file.read_bytes())


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "before 0.6": (drop("token_ids"), "line 1: no 'token_ids' .*the format of NeMo-RL 0.6.0 to"),
    "no idx": (lambda folder: write_lines(
        folder / "train_data_step1.jsonl",
        [record | {"idx": None} for record in step_records()],
    ), "line 1: idx is 'None' and not 0"),
    "torn": (cut, "line 4: not JSON"),
    "first line": (garble_first_line, "line 1: not JSON"),
    "line missing": (lose_line, "line 2: idx is '2' and not 1: lines are missing"),
    "empty": (lambda folder: write_step(folder, []), "the files of NeMo-RL are empty"),
    "no response": (
        lambda folder: write_step(folder, [sample_record([5], [])]),
        "none of their tokens is the policy's: 1 sample",
    ),
    "no step": (
        lambda folder: nemo_rl_file(folder).rename(folder / "train_data_step.jsonl"),
        "no step in its name",
    ),
    "huge step": (
        lambda folder: nemo_rl_file(folder, 10**30), "is not a whole number from 0 to 2147483647"
    ),
    "array": (lambda folder: write_lines(
        folder / "train_data_step1.jsonl", [[1, 2]]
    ), "line 1: not a JSON object"),
    "two items": (change(rewards=[1.0, 0.0]), "line 2: 'rewards' is not a list of one item"),
    "no list": (change(token_ids=7), "line 2: 'token_ids' is not a list of one item"),
    "filtered": (change(filtered_rewards=[]), "line 2: 'filtered_rewards' is not a list of one"),
    "reward": (change(rewards=["good"]), "line 2: the reward 'good' is not a number"),
    "no reward": (change(rewards=[float("nan")]), "line 2: the reward nan is not finite"),
    "tokens": (change(token_ids=[[5, -6]]), "line 2: token_ids is no list of token ids"),
    "mask": (change(token_loss_mask=[[0, "1"]]), "line 2: token_loss_mask is no list of 0 and 1"),
    "short mask": (change(token_loss_mask=[[0, 1]]), "line 2: input_lengths is '6', with 12 token"),
    "length": (change(input_lengths=[10**400]), "line 2: input_lengths is '1000"),
    "weight": (change(sample_loss_mask=["x"]), "line 2: sample_loss_mask is 'x', not a number"),
    "logprobs": (change(generation_logprobs=[[0.0]]), "line 2: generation_logprobs is no list of"),
    "huge": (change(advantages=[[10**400] * 12]), "line 2: advantages is no list of numbers"),
    "null": (change(prev_logprobs=[[None] * 12]), "line 2: prev_logprobs is no list of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_imported_is_one_line(tmp_path: Path, name: str) -> None:
    write, message = REFUSED[name]
    write(tmp_path / "run")
    with pytest.raises(PoiseError, match=message) as refused:
        import_run(tmp_path / "run", tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "x"},
        {"content": []},
        {"content": [[1, 2, 3]]},
        {"content": [["only one"]]},
        {"agent_ref": [7]},
        {"agent_ref": {}},
        {"agent_ref": [{"name": 3}]},
    ],
)
def test_odd_texts_and_agents_count_as_absent(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_step(tmp_path / "run", [record | changes for record in step_records()])
    summary, lines = imported(tmp_path / "run")
    assert (summary.rollouts, summary.groups) == (4, 2)
    assert all("nemo-rl/" in line["group"] for line in lines)
    assert all(("prompt" in line) == ("content" not in changes) for line in lines)


def test_the_reward_option_is_refused(tmp_path: Path) -> None:
    nemo_rl_file(tmp_path / "run")
    with pytest.raises(PoiseError, match="NeMo-RL writes one reward"):
        import_run(tmp_path / "run", tmp_path / "out", reward="correct")


def test_imported_json_records_what_was_assumed(tmp_path: Path) -> None:
    nemo_rl_file(tmp_path / "run")
    imported(tmp_path / "run")
    notes = json.loads((tmp_path / "out" / "imported.json").read_text())["notes"]
    assert any("equal prompt tokens are taken as a group" in note for note in notes)
