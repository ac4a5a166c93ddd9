"""completions.jsonl of ms-swift: what is kept, which tables count, rewards, groups, faults."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_ms_swift import (
    TWO,
    completion_table,
    log_line,
    megatron_table,
    ms_swift_file,
    ray_rows,
)

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import ImportContext, ImportedStep, recognise_source
from counterpoise.hosts.importing.write_folder import ImportSummary, import_run
from counterpoise.hosts.ms_swift.importer import SOURCE

FOUR = ["many?"] * 4
COLUMNS = {"Accuracy": [1.0, 0.0, 0.0, 1.0], "Format": [0.0, 1.0, 0.0, 1.0]}


def imported(folder: Path, out: Path, **options: str) -> ImportSummary:
    return import_run(folder, out, tokenizer="embedded", **options)


def steps_of(file: Path) -> list[ImportedStep]:
    context = ImportContext("ms-swift", "", file.parent)
    return list(SOURCE.read_steps([file], context))


def rewards_by_step(out: Path) -> dict[int, list[float]]:
    return {
        int(file.stem.rpartition("_")[2]): [line["reward"] for line in read_lines(file)]
        for file in sorted((out / "rollouts").iterdir())
    }


def responses_by_step(out: Path) -> dict[int, list[str]]:
    return {
        int(file.stem.rpartition("_")[2]): [line["response"] for line in read_lines(file)]
        for file in sorted((out / "rollouts").iterdir())
    }


def table_of(step: int, name: str, **changes: Any) -> dict[str, Any]:
    return completion_table(step, completions=[f"{name}{i}" for i in range(4)], **changes)


def test_rollouts_keep_texts_rewards_advantages_and_references(tmp_path: Path) -> None:
    file = ms_swift_file(
        tmp_path / "run",
        [completion_table(12, solution=["3", "3", ["5", "5 km"], None], entropy=[0.5] * 4)],
    )
    (step,) = steps_of(file)
    first, second, third, fourth = step.rollouts
    assert step.number == 12
    assert [rollout.prompt for rollout in step.rollouts] == TWO
    assert [rollout.response for rollout in step.rollouts] == ["3", "4 pens", "5", ""]
    assert [rollout.reward for rollout in step.rollouts] == [1.0, 0.0, 0.0, 1.0]
    assert first.group == second.group != third.group == fourth.group
    assert first.group == f"12:{first.prompt_id}"
    assert first.prompt_id.startswith("ms-swift/")
    assert [rollout.answer for rollout in step.rollouts] == ["3", "3", '["5", "5 km"]', ""]
    assert first.advantage == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))
    assert second.advantage == -first.advantage
    assert (first.finished, first.response_tokens, first.entropies, step.schedule) == (None,) * 4
    assert first.further_fields == {}
    result = imported(tmp_path / "run", tmp_path / "out")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("ms-swift", 1, 4, 2)
    assert "reward = Accuracy" in result.notes


def test_weights_are_those_of_the_options(tmp_path: Path) -> None:
    table = completion_table(1, FOUR, rewards=COLUMNS, size=4)
    options = {"reward_weights": [1.0, 0.25], "num_generations": 4}
    ms_swift_file(tmp_path / "run", [table], options)
    result = imported(tmp_path / "run", tmp_path / "out")
    assert result.notes[0] == "reward = Accuracy + 0.25 * Format (args.json)"
    assert rewards_by_step(tmp_path / "out") == {1: [1.0, 0.25, 0.0, 1.25]}
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert lines[3]["further"] == {"Accuracy": 1.0, "Format": 1.0}
    imported(tmp_path / "run", tmp_path / "named", reward="Accuracy,Format=-1")
    assert rewards_by_step(tmp_path / "named") == {1: [1.0, -1.0, 0.0, 0.0]}
    ms_swift_file(tmp_path / "run", [table], {"reward_weights": None})
    assert imported(tmp_path / "run", tmp_path / "equal").notes[0] == (
        "reward = Accuracy + Format (args.json)"
    )
    ms_swift_file(tmp_path / "run", [table], {"reward_weights": [1.0]})
    with pytest.raises(PoiseError, match=r"1 reward_weights in args\.json for 2 reward functions"):
        imported(tmp_path / "run", tmp_path / "none")


def test_without_options_the_advantages_decide(tmp_path: Path) -> None:
    ms_swift_file(tmp_path / "run", [completion_table(1, FOUR, rewards=COLUMNS, size=4)])
    result = imported(tmp_path / "run", tmp_path / "out")
    assert result.notes[0] == "reward = Accuracy + Format (inferred; --reward names other columns)"
    totals = np.array(COLUMNS["Accuracy"]) + 0.25 * np.array(COLUMNS["Format"])
    weighted = completion_table(
        1, FOUR, rewards=COLUMNS, advantage=(totals - totals.mean()).tolist()
    )
    ms_swift_file(tmp_path / "run", [weighted])
    with pytest.raises(PoiseError, match=r"as --reward Accuracy,Format=0\.5"):
        imported(tmp_path / "run", tmp_path / "other")


def test_nan_counts_as_in_training(tmp_path: Path) -> None:
    """ms-swift sums without NaN, so a rollout that nothing scored has reward 0 in its group."""
    rewards = {"A": [1.0, math.nan, 0.0, 1.0], "B": [math.nan, math.nan, 0.5, 0.0]}
    ms_swift_file(
        tmp_path / "run", [completion_table(1, rewards=rewards)], {"reward_weights": None}
    )
    result = imported(tmp_path / "run", tmp_path / "out")
    assert rewards_by_step(tmp_path / "out") == {1: [1.0, 0.0, 0.5, 1.0]}
    assert "reward 0, as in training, because nothing scored them: 1 completion" in result.notes
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["further"] for line in lines[:2]] == [{"A": 1.0}, {}]


def test_a_generation_that_is_logged_again_is_read_once(tmp_path: Path) -> None:
    tables = [table_of(5, "a"), table_of(10, "a"), table_of(15, "b"), table_of(15, "b")]
    ms_swift_file(tmp_path / "run", tables)
    result = imported(tmp_path / "run", tmp_path / "out")
    assert responses_by_step(tmp_path / "out") == {
        5: ["a0", "a1", "a2", "a3"],
        15: ["b0", "b1", "b2", "b3"],
    }
    assert "left out because they repeat the generation before: 2 tables" in result.notes


def test_a_table_cut_to_its_entropies_is_completed_by_the_next(tmp_path: Path) -> None:
    whole = table_of(2, "a", entropy=[0.1, 0.2, 0.3, 0.4])
    first = {name: values[:2] for name, values in whole.items()} | {"step": ["1", "1"]}
    empty = {name: [] for name in whole}
    ms_swift_file(tmp_path / "run", [empty, first, whole])
    result = imported(tmp_path / "run", tmp_path / "out")
    assert responses_by_step(tmp_path / "out") == {1: ["a0", "a1", "a2", "a3"]}
    assert any("they have no rows" in note for note in result.notes)


def test_rows_that_a_table_begins_with_again_are_left_out(tmp_path: Path) -> None:
    """A multi-turn scheduler returned two rollouts; the queues hold four."""
    before = table_of(1, "a", num_turns=[1] * 4)
    after = completion_table(2, completions=["a2", "a3", "b0", "b1"], num_turns=[1] * 4)
    after["prompt"] = [*TWO[2:], "Why?", "Why?"]
    after["advantages"][:2] = before["advantages"][2:]
    ms_swift_file(tmp_path / "run", [before, after])
    result = imported(tmp_path / "run", tmp_path / "out")
    assert responses_by_step(tmp_path / "out") == {1: ["a0", "a1", "a2", "a3"], 2: ["b0", "b1"]}
    assert "1 table began with rows of the table before: these are left out" in result.notes


def test_evaluations_are_left_out(tmp_path: Path) -> None:
    """Step 7 was not logged: only logging.jsonl tells that its table is an evaluation."""
    tables = [table_of(5, "a"), table_of(5, "e"), table_of(7, "f"), table_of(10, "b")]
    ms_swift_file(tmp_path / "run", tables)
    result = imported(tmp_path / "run", tmp_path / "out")
    assert list(responses_by_step(tmp_path / "out")) == [5, 7, 10]
    assert any("another table of their step was before them" in note for note in result.notes)
    assert any("no logging.jsonl beside the file" in note for note in result.notes)
    log = [log_line(5), log_line(5, "eval_loss"), log_line(7, "eval_loss"), log_line(10)]
    ms_swift_file(tmp_path / "run", tables, log=[*log, {"memory": 3.0}])
    result = imported(tmp_path / "run", tmp_path / "logged")
    assert {step: names[0] for step, names in responses_by_step(tmp_path / "logged").items()} == {
        5: "a0",
        10: "b0",
    }
    assert "left out because logging.jsonl says that they are evaluations: 2 tables" in result.notes
    assert not any("beside the file" in note for note in result.notes)


def test_a_resumed_run_replaces_the_steps_that_it_gave_up(tmp_path: Path) -> None:
    ms_swift_file(
        tmp_path / "run",
        [table_of(5, "a"), table_of(10, "b"), table_of(15, "c"), table_of(10, "d")],
    )
    result = imported(tmp_path / "run", tmp_path / "out")
    assert {step: names[0] for step, names in responses_by_step(tmp_path / "out").items()} == {
        5: "a0",
        10: "d0",
    }
    assert "left out because the run was resumed from an earlier step: 2 tables" in result.notes


def test_blocks_of_num_generations_are_groups(tmp_path: Path) -> None:
    prompts = ["many?"] * 4
    ms_swift_file(tmp_path / "run", [completion_table(3, prompts)], {"num_generations": 2})
    result = imported(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00003.jsonl")
    groups = [line["group"] for line in lines]
    assert groups == [groups[0], groups[0], f"{groups[0]}#2", f"{groups[0]}#2"]
    assert "groups are 2 adjacent rows, as args.json says" in result.notes


def test_rollouts_of_several_turns_share_the_beginning_of_their_prompts(tmp_path: Path) -> None:
    prompts = ["<u>many?<b>", "<u>many?<b>x<u>no<b>", "<u>far?<b>y<u>no<b>", "<u>far?<b>z<u>no<b>"]
    table = completion_table(1, prompts, num_turns=[1, 2, 2, 2])
    ms_swift_file(tmp_path / "run", [table], {"num_generations": 2})
    result = imported(tmp_path / "run", tmp_path / "out")
    assert result.groups == 2
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert lines[0]["group"] == lines[1]["group"] != lines[2]["group"] == lines[3]["group"]
    assert [line["prompt"] for line in lines] == prompts
    assert any(note.startswith("3 rollouts of several turns:") for note in result.notes)
    # Without the options nothing says which prompts belong together.
    (tmp_path / "run" / "args.json").unlink()
    assert imported(tmp_path / "run", tmp_path / "other").groups == 4


@pytest.mark.parametrize(
    "prompts",
    [
        ["far? 1", "many? 1", "many? 2", "far? 2"],
        ["many? 2", "far? 1", "far? 2", "many? 1"],
        ["far? 1", "many? 1"],
        ["far?", "far?", "far?"],
    ],
)
def test_blocks_of_two_prompts_are_no_groups(tmp_path: Path, prompts: list[str]) -> None:
    zeros = [0.0] * len(prompts)
    table = completion_table(1, prompts, [f"{i}" for i in range(len(prompts))], {"A": zeros}, zeros)
    (step,) = steps_of(ms_swift_file(tmp_path, [table], {"num_generations": 2}))
    prompts_of_group: dict[str, set[str | None]] = {}
    for rollout in step.rollouts:
        prompts_of_group.setdefault(rollout.group, set()).add(rollout.prompt)
    assert all(len(distinct) == 1 for distinct in prompts_of_group.values())


def test_megatron_and_ray_count_steps_from_0(tmp_path: Path) -> None:
    ms_swift_file(tmp_path / "megatron", [megatron_table(0), megatron_table(2, completions="abcd")])
    assert [step.number for step in steps_of(tmp_path / "megatron" / "completions.jsonl")] == [0, 2]
    rows = [*ray_rows(0), *ray_rows(4), *ray_rows(2)]
    rows[1]["reward"] = math.nan
    ms_swift_file(tmp_path / "ray", rows, {"reward_weights": [1.0, 0.5], "num_generations": 2})
    result = imported(tmp_path / "ray", tmp_path / "out")
    assert rewards_by_step(tmp_path / "out") == {0: [0.0, 0.0, 1.0], 2: [0.0, 1.0, 0.0, 1.0]}
    assert result.notes[0] == (
        "reward = reward (the sum of the reward functions without the weights of args.json: Ray "
        "writes no other)"
    )
    assert "left out because a reward function gave none: 1 completion" in result.notes


def test_a_last_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    for name, lines in (
        ("tables", [table_of(1, "a"), table_of(2, "b")]),
        ("rows", [*ray_rows(1), *ray_rows(2)]),
    ):
        file = ms_swift_file(tmp_path / name, lines)
        file.write_bytes(file.read_bytes()[:-9])
        result = imported(tmp_path / name, tmp_path / f"{name}_out")
        assert (result.steps, result.rollouts) == (1, 4)
        assert f"left out because it is cut off: the last line of {file}" in result.notes


def test_folders_of_runs(tmp_path: Path) -> None:
    ms_swift_file(tmp_path / "output" / "v0-20260101")
    assert imported(tmp_path / "output", tmp_path / "out").rollouts == 4
    ms_swift_file(tmp_path / "output" / "v1-20260102")
    with pytest.raises(PoiseError, match=r"2 runs \(v0-20260101, v1-20260102\): name one"):
        imported(tmp_path / "output", tmp_path / "other")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in completion_table().items() if key != name}


TABLE = completion_table()
FAULTS: dict[str, tuple[list[Any], str]] = {
    "distillation": ([without("advantages")], "line 1: no 'advantages' (columns: step, prompt"),
    "no rewards": ([without("Accuracy")], "line 1: no reward functions between 'completion' and"),
    "no completion": ([TABLE, without("completion")], "line 2: no 'completion' (fields: Accuracy"),
    "no step": ([TABLE, without("step")], "line 2: no 'step' (columns: prompt"),
    "array": ([TABLE, [1]], "line 2: not a JSON object"),
    "two steps": ([TABLE | {"step": ["1", "1", "2", "2"]}], "rows of several steps in one table"),
    "step of words": ([TABLE | {"step": ["x"] * 4}], "the step 'x' is not a whole number"),
    "long step": ([TABLE | {"step": ["9" * 5000] * 4}], "is not a whole number from 0"),
    "steps": ([TABLE | {"step": 1}], "'step' is not a list of 4 values, as many as prompts"),
    "few completions": ([TABLE | {"completion": ["a"]}], "'completion' is not a list of 4 values"),
    "prompts": ([TABLE | {"prompt": [1, 2, 3, 4]}], "'prompt' holds other values than texts"),
    "short column": ([TABLE | {"Accuracy": [1.0]}], "'Accuracy' is not a list of 4 numbers"),
    "texts as rewards": (
        [TABLE | {"Accuracy": ["a"] * 4}],
        "'Accuracy' is not a list of 4 numbers",
    ),
    "truth values": ([TABLE | {"Accuracy": [True] * 4}], "'Accuracy' is not a list of 4 numbers"),
    "huge number": ([TABLE | {"Accuracy": [10**400, 1, 1, 1]}], "holds a number that is too large"),
    "infinite reward": ([TABLE | {"Accuracy": [math.inf] * 4}], "line 1, row 1: the reward inf"),
    "only empty tables": (
        [{name: [] for name in TABLE}] * 2,
        "no rollout can be imported (left out",
    ),
    "other rewards": (
        [TABLE, completion_table(2, rewards={"B": [1.0, 0.0, 0.0, 1.0]}, completions="abcd")],
        "line 2: its reward functions are B, those before it Accuracy: import each run by itself",
    ),
    "two trainers": ([TABLE, *ray_rows(3)], "another trainer of ms-swift wrote the lines before"),
    "Megatron again": (
        [megatron_table(2), megatron_table(0)],
        "line 2: gen_step 0 after 2: Megatron counts from 0 again",
    ),
    "Ray without reward": (
        [{"gen_step": 0, "prompt": "a", "completion": "b"}],
        "line 1: no 'gen_step' and 'reward', so no rollout of GRPO",
    ),
    "Ray's reward": ([ray_rows(0)[0] | {"reward": "x"}], "'reward' is not a list of 1 numbers"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line(tmp_path: Path, name: str) -> None:
    lines, message = FAULTS[name]
    ms_swift_file(tmp_path / "run", lines)
    with pytest.raises(PoiseError, match=re.escape(message)) as fault:
        imported(tmp_path / "run", tmp_path / "out")
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = ms_swift_file(tmp_path / "run", [TABLE, TABLE])
    content = file.read_bytes()
    file.write_bytes(b"\n".join([content[:60], content]))
    with pytest.raises(PoiseError, match=r"completions\.jsonl, line 1: not JSON"):
        imported(tmp_path / "run", tmp_path / "out")
    ms_swift_file(tmp_path / "run")
    for damaged in ("{", "[1]"):
        (tmp_path / "run" / "args.json").write_text(damaged)
        with pytest.raises(PoiseError, match=r"args\.json.*: copy it again, or remove it"):
            imported(tmp_path / "run", tmp_path / "out")
    (tmp_path / "run" / "args.json").write_text(
        json.dumps({"num_generations": "x", "reward_weights": ["y"]})
    )
    (tmp_path / "run" / "logging.jsonl").write_text('{"loss": 1}\n[1]\n')
    with pytest.raises(PoiseError, match=r"logging\.jsonl, line 2: not a JSON object"):
        imported(tmp_path / "run", tmp_path / "out")


def test_files_of_other_tools_are_not_taken(tmp_path: Path) -> None:
    for lines in (
        [{"prompt": "a", "completion": "b"}],  # a data set of texts
        [{"prompt": ["a"], "completion": ["b"]}],
        [],
    ):
        write_lines(tmp_path / "completions.jsonl", lines)
        with pytest.raises(PoiseError, match="holds no rollouts"):
            recognise_source(tmp_path)
    row = {"step": 1, "prompt": "a", "completion": "b", "reward": 1.0}
    write_lines(tmp_path / "completions.jsonl", [row])
    assert recognise_source(tmp_path)[0].title == "your own trainer"
