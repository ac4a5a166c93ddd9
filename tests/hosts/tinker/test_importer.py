"""Rollout summaries of tinker-cookbook: token counts, endings, optimizer steps, and faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_tinker import (
    summary_record,
    tinker_run,
    turn,
    write_config,
    write_summaries,
)
from report.synthetic import Page
from serve.served import get, serve

from counterpoise.batch.plan_file import plan_file
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.report.audit.rank import audit_run
from counterpoise.store.folder import RunFolder


def import_records(tmp_path: Path, *records: Any, **options: Any) -> list[dict[str, Any]]:
    """The stored lines of iteration 0 with these records."""
    write_summaries(tmp_path / "run", records)
    write_config(tmp_path / "run", **options)
    import_run(tmp_path / "run", tmp_path / "out")
    return read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")


def plan_of(folder: Path, iteration: int = 0) -> dict[str, Any]:
    return next(plan for plan in RunFolder(folder).read("plans") if plan["iteration"] == iteration)


def test_every_field_of_a_trajectory(tmp_path: Path) -> None:
    turns = (turn(20, 40, -0.25, parse_error=1.0), turn(7, 90, 1.0, **{"stop/completed": 1.0}))
    changes = {
        "total_reward": 1.25,
        "final_reward": 0.5,
        "tags": ["search", "hard"],
        "sampling_client_step": 3,
        "trajectory_metrics": {"won": 1},
        "final_ob_len": 97,
    }
    record = summary_record(0, 0, 1.25, *turns, iteration=5, **changes)
    other = summary_record(0, 1, 0.25, turn(9), iteration=5)
    write_summaries(tmp_path / "run", [record, other], 5)
    write_config(tmp_path / "run")
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert (result.steps, result.rollouts, result.groups, result.tokens) == (1, 2, 1, 36)
    first, second = read_lines(tmp_path / "out" / "rollouts" / "step_00005.jsonl")
    assert first == {
        "schema": 1,
        "group": "5:tinker/5/0",
        "prompt_id": "tinker/5/0",
        "reward": 1.25,
        "answer": "",
        "logged": {
            "tags": ["search", "hard"],
            "sampling_client_step": 3,
            "final_reward": 0.5,
            "trajectory_metrics": {"won": 1},
            "final_ob_len": 97,
            "steps": list(turns),
        },
        "finished": True,
        "num_tokens": 27,
    }
    assert (second["num_tokens"], second["group"]) == (9, "5:tinker/5/0")
    plan = plan_of(tmp_path / "out", 5)
    assert (plan["rule"], plan["steps"]) == ("tinker-cookbook", [[0, 1]])
    assert (plan["advantage"], plan["tokens"]) == ([0.5, -0.5], [27, 9])
    (metrics,) = RunFolder(tmp_path / "out").read("metrics")
    assert (metrics["rollout_tokens"], metrics["response_length"]) == (36, 18.0)
    assert not (tmp_path / "out" / "vocabulary.json").exists()  # no text was encoded again


@pytest.mark.parametrize(
    ("metrics", "finished"),
    [
        ({"stop/completed": 1.0}, True),
        ({"stop/max_turns": 1.0}, True),
        ({"stop/parse_error": 1.0}, True),
        ({"stop/max_tokens": 1.0}, False),
        ({"stop/max_sampled_tokens": 1.0}, False),
        ({"stop/context_overflow": 1.0, "context_overflow": 1.0}, False),
        ({"stop/rollout_timeout": 1.0}, False),
        ({"max_tokens_reached": 1.0}, False),
        ({"correct": 1.0}, True),
    ],
)
def test_why_a_trajectory_ended(tmp_path: Path, metrics: dict[str, float], finished: bool) -> None:
    (line,) = import_records(tmp_path, summary_record(0, 0, 1.0, turn(63, **metrics)))
    assert line["finished"] is finished


def test_a_last_turn_of_max_tokens_was_cut_off(tmp_path: Path) -> None:
    lines = import_records(
        tmp_path,
        summary_record(0, 0, 1.0, turn(64)),
        summary_record(0, 1, 0.0, turn(64), turn(3)),
        summary_record(0, 2, 0.0, turn(64, **{"stop/completed": 1.0})),
    )
    assert [line["finished"] for line in lines] == [False, True, True]
    notes = json.loads((tmp_path / "out" / "imported.json").read_text())["notes"]
    assert "cut off or not by max_tokens of config.json: 2 rollouts" in notes


def test_without_a_config_endings_and_optimizer_steps_are_not_known(tmp_path: Path) -> None:
    write_summaries(tmp_path / "run", [summary_record(0, i, float(i)) for i in range(2)])
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert all(
        "finished" not in line
        for line in read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    )
    assert not (tmp_path / "out" / "plans.jsonl").exists()
    assert any(note.startswith("optimizer steps not known in 1 iteration") for note in result.notes)


EQUAL, MIXED = (1.0, 1.0, 1.0), (1.0, 0.0, 0.0)
SPLITS: dict[str, tuple[dict[str, Any], list[tuple[float, ...]], list[list[int]] | None]] = {
    "one step": ({}, [MIXED, EQUAL], [[0, 1, 2, 3, 4, 5]]),
    # np.linspace(0, 6, 5) is 0, 1.5, 3, 4.5, 6.
    "four steps of six rows": (
        {"num_substeps": 4},
        [MIXED, EQUAL],
        [[0], [1, 2], [3], [4, 5]],
    ),
    "more steps than rows": ({"num_substeps": 9}, [MIXED], [[0], [1], [2]]),
    "equal rewards removed": (
        {"remove_constant_reward_groups": True, "num_substeps": 2},
        [EQUAL, MIXED, EQUAL, MIXED],
        [[0, 1, 2], [3, 4, 5]],
    ),
    "all rewards equal": (
        {"remove_constant_reward_groups": True},
        [EQUAL, EQUAL],
        [[0, 1, 2]],
    ),
    "streamed": ({"stream_minibatch_config": {"groups_per_batch": 2}}, [MIXED], [[0, 1, 2]]),
    "streamed in two steps": (
        {"stream_minibatch_config": {"groups_per_batch": 2}, "num_substeps": 2},
        [MIXED],
        None,
    ),
    "no such option": ({"num_substeps": None}, [MIXED], None),
}


@pytest.mark.parametrize("name", SPLITS)
def test_optimizer_steps(tmp_path: Path, name: str) -> None:
    options, rewards, expected = SPLITS[name]
    records = [
        summary_record(group, member, reward)
        for group, group_rewards in enumerate(rewards)
        for member, reward in enumerate(group_rewards)
    ]
    lines = import_records(tmp_path, *records, **options)
    assert len(lines) == len(records)
    assert (tmp_path / "out" / "plans.jsonl").exists() == (expected is not None)
    if expected is not None:
        plan = plan_of(tmp_path / "out")
        assert plan["steps"] == expected
        trained = {plan["groups"][group] for group in plan["group"]}
        assert len(plan["group"]) == 3 * len(trained)


def test_turns_may_become_several_rows(tmp_path: Path) -> None:
    """Then the cut into two optimizer steps is not certain; one optimizer step is."""
    records = [summary_record(0, i, float(i), turn(5), turn(6)) for i in range(2)]
    import_records(tmp_path / "one", *records)
    assert plan_of(tmp_path / "one" / "out")["steps"] == [[0, 1]]
    import_records(tmp_path / "two", *records, num_substeps=2)
    assert not (tmp_path / "two" / "out" / "plans.jsonl").exists()


def test_a_prompt_over_the_budget_counts_in_the_mean_only(tmp_path: Path) -> None:
    overflow = summary_record(0, 0, -0.1, turn(0, 0, **{"stop/max_tokens": 1.0}))
    others = [summary_record(0, 1, 1.0), summary_record(0, 2, 0.0), summary_record(0, 3, 0.0)]
    lines = import_records(tmp_path, overflow, *others, num_substeps=3)
    assert [line["reward"] for line in lines] == [1.0, 0.0, 0.0]
    plan = plan_of(tmp_path / "out")
    assert plan["advantage"] == pytest.approx([1 - 0.225, -0.225, -0.225])
    assert plan["steps"] == [[0], [1], [2]]
    notes = json.loads((tmp_path / "out" / "imported.json").read_text())["notes"]
    assert "left out because no token was sampled: 1 rollout" in notes


def test_evaluations_are_left_out(tmp_path: Path) -> None:
    run = tinker_run(tmp_path / "run", iterations=2)
    file = run / "iteration_000000" / "train_rollout_summaries.jsonl"
    mixed = [*read_lines(file), summary_record(7, 0, 1.0, split="eval/gsm8k")]
    write_lines(file, mixed)
    result = import_run(run, tmp_path / "out")
    assert (result.steps, result.rollouts, result.groups) == (2, 8, 4)
    assert "left out: 1 rollout of evaluations" in result.notes
    evaluation = run / "iteration_000000" / "eval_gsm8k_rollout_summaries.jsonl"
    with pytest.raises(
        PoiseError, match=r"4 rollouts of evaluations.*: name the folder of the whole run"
    ):
        import_run(evaluation, tmp_path / "out2")


def test_files_are_found_in_both_layouts(tmp_path: Path) -> None:
    """In order of iterations; the config of the run is found from each of them."""
    run = tinker_run(tmp_path / "run", iterations=12)
    older = tmp_path / "older"
    for iteration in range(12):
        name = f"iteration_{iteration:06d}"
        source = run / name / "train_rollout_summaries.jsonl"
        write_lines(older / f"train_{name}_rollout_summaries.jsonl", read_lines(source))
    write_config(older)
    for i, path in enumerate((run, older)):
        import_run(path, tmp_path / f"out{i}")
    for file in ("metrics.jsonl", "plans.jsonl", "rollouts/step_00011.jsonl"):
        new, old = ((tmp_path / f"out{i}" / file).read_bytes() for i in range(2))
        assert new == old
    one = import_run(run / "iteration_000011", tmp_path / "one")
    assert (one.steps, one.rollouts) == (1, 4)
    assert plan_of(tmp_path / "one", 11)["steps"] == [[0, 1, 2, 3]]


def change(**changes: Any) -> Callable[[Path], object]:
    """Change the second line of a run of two iterations."""

    def write(run: Path) -> None:
        file = run / "iteration_000001" / "train_rollout_summaries.jsonl"
        records = read_lines(file)
        records[1] = {
            name: value for name, value in (records[1] | changes).items() if value is not ...
        }
        write_lines(file, records)

    return write


def cut(run: Path) -> None:
    file = run / "iteration_000001" / "train_rollout_summaries.jsonl"
    file.write_bytes(file.read_bytes()[:-9])


def tear_first_line(run: Path) -> None:
    """The other files are still recognised, and this one is not passed over."""
    file = run / "iteration_000001" / "train_rollout_summaries.jsonl"
    file.write_bytes(b'{"schema_ver\n')


def only_of_a_newer_schema(run: Path) -> None:
    for iteration in range(2):
        write_summaries(run, [{"schema_version": 2, "turns": []}], iteration)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (cut, "000001/train_rollout_summaries.jsonl, line 4: not JSON"),
    "torn first line": (tear_first_line, "jsonl, line 1: not JSON"),
    "newer": (change(schema_version=2), "line 2: schema_version '2' is not known: this reads 1"),
    "other fields": (only_of_a_newer_schema, "line 1: no 'split'.*tinker-cookbook at 9dfcc3a2"),
    "no reward": (change(total_reward=...), "line 2: no 'total_reward'"),
    "reward": (change(total_reward=float("nan")), "line 2: the reward nan is not finite"),
    "text as reward": (change(total_reward="1"), "line 2: the reward '1' is not a number"),
    "iteration": (change(iteration=0), "line 2: iteration 0 in a file of iteration 1"),
    "huge iteration": (change(iteration=10**400), "line 2: the step .* is not a whole number"),
    "group": (change(group_idx="a"), "line 2: group_idx and traj_idx must be whole numbers"),
    "twice": (change(traj_idx=0), "line 2: trajectory 0 of group 0 is in the file twice"),
    "steps": (change(steps={"ac_len": 3}), "line 2: each of 'steps' needs ob_len and ac_len"),
    "lengths": (change(steps=[turn(3) | {"ac_len": -1}]), "needs ob_len and ac_len"),
    "too long": (change(steps=[turn(2**31 - 1)] * 2), "line 2: more than 2147483647 tokens"),
    "config": (
        lambda run: (run / "config.json").write_text("{"),
        "config.json cannot be read .*: copy it again, or remove it",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line(tmp_path: Path, name: str) -> None:
    write, message = FAULTS[name]
    write(tinker_run(tmp_path / "run", iterations=2))
    with pytest.raises(PoiseError, match=message) as refused:
        import_run(tmp_path / "run", tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_empty_iteration_is_passed_over(tmp_path: Path) -> None:
    run = tinker_run(tmp_path / "run", iterations=2)
    (run / "iteration_000000" / "train_rollout_summaries.jsonl").write_bytes(b"")
    assert import_run(run, tmp_path / "out").steps == 1
    (run / "iteration_000001" / "train_rollout_summaries.jsonl").write_bytes(b"")
    with pytest.raises(PoiseError, match="the files of tinker-cookbook are empty"):
        import_run(run, tmp_path / "out2")


def test_odd_values_that_no_number_depends_on(tmp_path: Path) -> None:
    """Halves of surrogate pairs in a log are replaced; metrics of another type count as absent."""
    odd = turn(5) | {"metrics": [1], "logs": {"guess": "\ud800"}}
    (line,) = import_records(tmp_path, summary_record(0, 0, 1.0, odd, tags=10**400))
    assert line["logged"]["steps"][0]["logs"] == {"guess": "\ufffd"}
    assert line["finished"] is True


def test_plan_report_audit_and_serve(tmp_path: Path) -> None:
    run = tinker_run(tmp_path / "run", iterations=3, groups=4, size=4)
    write_config(run, num_substeps=3)
    out = tmp_path / "runs" / "out"
    import_run(run, out)
    # 16 rows in three parts: groups 1 and 2 are in two optimizer steps each.
    assert plan_of(out)["describe"]["split_groups"] == 2
    planned = plan_file(out / "rollouts" / "step_00001.jsonl", "grouped", 2, 0)
    assert planned["describe"]["split_groups"] == 0
    # A response of member m in group g has 10 g + m + 1 tokens.
    assert sum(planned["describe"]["tokens_per_step"]) == sum(
        10 * group + member + 1 for group in range(4) for member in range(4)
    )
    page = Page(write_report(out))
    assert "A run of tinker-cookbook" in " ".join(page.text.split())
    assert "rollouts" not in page.sections
    findings = {finding.title: finding for finding in audit_run(out).findings}
    assert findings["Duplicate prompts"].level == "unsupported"
    split = findings["Groups split over optimizer steps"]
    assert split.level != "unsupported"
    with serve(tmp_path / "runs", cache=tmp_path / "cache") as client:
        rows = get(client, "/runs/out/rollouts")
        assert (rows["total"], rows["problem_count"]) == (48, 0)
        assert {row["length"] for row in rows["rows"]} <= set(range(1, 35))
        view = get(client, "/runs/out/rollouts/2/2%3Atinker%2F2%2F3/1")
        assert (view["length"], view["reward"], view["advantage"]) == (32, 1.0, 0.5)
        assert view["missing"]["response"] == "the imported files hold no text of it"
