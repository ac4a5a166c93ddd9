"""prime-rl's trace stream with annotations, and its traces of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_traces import (
    PROMPT,
    episode_record,
    message_node,
    ship_update,
    trace_record,
    trainer_update,
    write_chunks,
    write_stream,
)
from report.synthetic import Page

from counterpoise.cli.token_view import read_token_view
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import ImportSummary, import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.store.folder import RunFolder


def stream_parts() -> tuple[list[Any], list[Any], list[Any]]:
    """Two groups of two: the first is trained in step 1, of the second only one trace in step 2.
    The stream is in the order of arrival, with an evaluation and a failure in between."""
    scores = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0}
    episodes = {
        name: episode_record(trace_record(name, score), group="g0" if name in "ab" else "g1")
        for name, score in scores.items()
    }
    evaluation = trace_record("e", 1.0)
    evaluation["info"]["kind"] = "eval"
    stream = [
        episodes["c"],
        episodes["a"],
        episode_record(evaluation, kind="eval"),
        episode_record(),
        episodes["d"],
        episodes["b"],
    ]
    shipped = [ship_update("a", 1, 0.5), ship_update("b", 1, -0.5), ship_update("c", 2, 0.5, 20.0)]
    return stream, shipped, [trainer_update(name) for name in "abc"]


def plans_of(out: Path) -> list[dict[str, Any]]:
    return RunFolder(out).read("plans")


def check_stream(result: ImportSummary, out: Path) -> None:
    assert (result.source, result.steps, result.rollouts) == ("prime-rl", 3, 4)
    first, second = plans_of(out)
    assert (first["iteration"], first["steps"], first["advantage"]) == (1, [[0, 1]], [0.5, -0.5])
    assert (second["iteration"], second["steps"], second["advantage"]) == (2, [[0]], [0.5])
    lines = read_lines(out / "rollouts" / "step_00001.jsonl")
    assert [line["response"] for line in lines] == ["a pens", "b pens"]
    assert {line["group"] for line in lines} == {"1:maths/g0"}
    assert [line["reward"] for line in lines] == [1.0, 0.0]
    assert lines[0]["prompt_tokens"] == [*PROMPT, 9]
    assert lines[0]["response_tokens"] == [11, 12]
    assert lines[0]["sampled_logprobs"] == [-0.25, -0.25]
    assert (lines[0]["prompt"], lines[0]["answer"]) == ("How many?", "3")
    # "d" was sampled and never trained: it is where it arrived, and in no plan.
    (untrained,) = read_lines(out / "rollouts" / "step_00000.jsonl")
    assert untrained["response"] == "d pens"
    table = pq.read_table(out / "tokens" / "step_00001.parquet")
    assert np.allclose(table["logprob"], [-0.3, -0.2] * 2)
    assert np.allclose(table["old_logprob"], -0.25)
    assert np.allclose(table["entropy"], [0.7, 0.5] * 2)
    assert np.allclose(table["advantage"], [0.5, 0.5, -0.5, -0.5])


def test_stream_with_annotations(tmp_path: Path) -> None:
    write_stream(tmp_path / "run", *stream_parts())
    result = import_run(tmp_path / "run", tmp_path / "out")
    check_stream(result, tmp_path / "out")
    assert result.notes == (
        "left out: 1 episode of evaluations",
        "left out: 1 episode that failed without a trace",
        "plans show the trainer's own batches in 2 iterations",
    )
    assert RunFolder(tmp_path / "out").read("metrics")[1]["entropy"] == pytest.approx(0.6)
    page = Page(write_report(tmp_path / "out"))
    sections = ["learning", "mosaic", "tokens", "monitor", "plans", "rollouts", "words"]
    assert page.sections == sections
    assert read_token_view(tmp_path / "out", iteration=1).quantity.name == "entropy"


def test_sealed_chunks(tmp_path: Path) -> None:
    stream, orchestrator, trainer = stream_parts()
    traces = tmp_path / "run" / "monitors" / "file" / "traces"
    write_chunks(traces / "stream", stream, sealed=4)
    write_chunks(traces / "annotations" / "orchestrator", orchestrator, sealed=3)
    write_chunks(traces / "annotations" / "trainer", trainer, sealed=0)
    # A chunk that is just being sealed is there twice.
    (traces / "stream" / "00001.jsonl").write_bytes(
        write_lines(tmp_path / "copy.jsonl", stream[1:2]).read_bytes()
    )
    for path in (tmp_path / "run", traces, traces / "stream"):
        out = tmp_path / f"out_{path.name}"
        check_stream(import_run(path, out), out)


def test_a_live_run_may_end_in_half_a_line(tmp_path: Path) -> None:
    traces = write_stream(tmp_path / "run", *stream_parts())
    with (traces / "stream.jsonl").open("ab") as stream:
        stream.write(b'{"id": "episode-f", "tra')
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert result.rollouts == 4
    file = traces / "stream.jsonl"
    assert f"left out because it is cut off: the last line of {file}" in result.notes


def test_a_step_that_was_trained_again_counts_once(tmp_path: Path) -> None:
    """The run stopped after step 1, went back to its checkpoint, and shipped other traces."""
    stream, orchestrator, trainer = stream_parts()
    again = [episode_record(trace_record(name, 0.0), group="g2") for name in "xy"]
    shipped_again = [ship_update(name, 1, 0.0, time=30.0) for name in "xy"]
    write_stream(tmp_path / "run", [*stream, *again], [*orchestrator, *shipped_again], trainer)
    result = import_run(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["response"] for line in lines] == ["x pens", "y pens"]
    assert "left out: 2 traces of steps that a resumed run trained again" in result.notes


def test_each_branch_is_a_sample_and_tools_speak_between_turns(tmp_path: Path) -> None:
    """Nodes 0-1-2-3 are one branch, 0-4 another; 2 is a tool's answer."""
    trace = trace_record("a", 1.0)
    trace["rewards"] = {
        "correct": {"score": 1.0, "weight": 0.5},
        "form": {"score": 1.0, "weight": 0.1},
        "late": None,
    }
    trace["nodes"] += [
        message_node("tool", "17", [21, 22], 1),
        message_node("assistant", "so 17", [9, 13], 2, 1),
        message_node("assistant", "else", [9, 14], 0, 1),
    ]
    trace["calls"] = [{"node": 3, "finish_reason": "length"}]
    write_stream(tmp_path / "run", [episode_record(trace)], [ship_update("a", 0, 0.5)])
    import_run(tmp_path / "run", tmp_path / "out")
    long, short = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert long["response_tokens"] == [11, 12, 13]
    assert [turn["told"] for turn in long["turns"]] == [[], [21, 22, 9]]
    assert long["response"] == "assistant: a pens\n\ntool: 17\n\nassistant: so 17"
    assert (short["response_tokens"], short["response"]) == ([14], "else")
    assert long["reward"] == short["reward"] == pytest.approx(0.6)
    assert long["finished"] is False
    (plan,) = plans_of(tmp_path / "out")
    assert plan["steps"] == [[0, 1]]


def test_a_shared_message_is_trained_in_its_first_branch(tmp_path: Path) -> None:
    """Nodes 0-1-2-3 are one branch and 0-1-4-5 another: both go on from the answer 1."""
    trace = trace_record("a", 1.0)
    trace["nodes"] += [
        message_node("tool", "17", [21, 22], 1),
        message_node("assistant", "so 17", [9, 13], 2, 1),
        message_node("user", "And?", [31], 1),
        message_node("assistant", "else", [9, 14], 4, 1),
    ]
    trainer = trainer_update("a") | {
        "branches": [
            {"index": 0, "trainer_logprobs": [*[None] * 3, -0.3, -0.2, *[None] * 3, -0.1]},
            {"index": 1, "trainer_logprobs": [*[None] * 7, -0.4]},
        ]
    }
    write_stream(tmp_path / "run", [episode_record(trace)], [ship_update("a", 0, 0.5)], [trainer])
    import_run(tmp_path / "run", tmp_path / "out")
    first, second = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert (first["prompt_tokens"], first["response_tokens"]) == ([*PROMPT, 9], [11, 12, 13])
    assert second["prompt_tokens"] == [*PROMPT, 9, 11, 12, 31, 9]
    assert (second["response_tokens"], second["sampled_logprobs"]) == ([14], [-0.25])
    assert second["prompt"] == "user: How many?\n\nassistant: a pens\n\nuser: And?"
    assert second["response"] == "else"
    table = pq.read_table(tmp_path / "out" / "tokens" / "step_00000.parquet")
    assert table["row"].to_pylist() == [0, 0, 0, 1]
    assert np.allclose(table["logprob"], [-0.3, -0.2, -0.1, -0.4])


def test_a_compaction_that_was_given_up_is_named(tmp_path: Path) -> None:
    trace = trace_record("a", 1.0)
    attempt = message_node("assistant", "in short", [9, 15], 0, 1)
    trace["nodes"].append(
        attempt | {"semantic_parents": [{"node": 1, "type": "compaction_attempt"}]}
    )
    write_stream(tmp_path / "run", [episode_record(trace)], [ship_update("a", 0, 0.5)])
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert result.rollouts == 1
    assert result.notes[0] == ("left out: 1 message path of compactions that were not resumed from")


def test_untrained_traces_of_a_trained_episode_are_kept(tmp_path: Path) -> None:
    """`effective` has the trained traces of an episode only, `all` has the whole episode."""
    trained, untrained = trace_record("a", 1.0), trace_record("b", 0.0)
    folder = tmp_path / "run" / "rollouts"
    write_lines(
        folder / "step_4" / "train" / "all" / "traces.jsonl", [episode_record(trained, untrained)]
    )
    write_lines(
        folder / "step_5" / "train" / "effective" / "traces.jsonl", [episode_record(trained)]
    )
    assert import_run(tmp_path / "run", tmp_path / "out").rollouts == 2
    (line,) = read_lines(tmp_path / "out" / "rollouts" / "step_00004.jsonl")
    assert line["response"] == "b pens"


def test_every_unfinished_file_is_named(tmp_path: Path) -> None:
    files = []
    for step in (4, 5):
        file = tmp_path / "run" / f"step_{step}" / "train" / "all" / "traces.jsonl"
        files.append(write_lines(file, [episode_record(trace_record(f"a{step}", 1.0))]))
        file.write_text(file.read_text() + '{"id": "half')
    (note,) = import_run(tmp_path / "run", tmp_path / "out").notes
    assert note == f"left out because it is cut off: the last line of {files[0]}, {files[1]}"


def test_an_import_without_rollouts_says_why(tmp_path: Path) -> None:
    evaluation = trace_record("e", 1.0)
    evaluation["info"]["kind"] = "eval"
    records = [episode_record(evaluation, kind="eval")]
    folder = tmp_path / "steps" / "rollouts" / "step_4" / "train" / "all"
    write_lines(folder / "traces.jsonl", records)
    write_stream(tmp_path / "stream", records)
    for name in ("steps", "stream"):
        with pytest.raises(PoiseError, match=r"imported \(left out: 1 episode of evaluations\)"):
            import_run(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("bare", [False, True])
def test_traces_of_steps(tmp_path: Path, bare: bool) -> None:
    """Lines were traces before they were episodes."""
    traces = [trace_record(name, float(name == "a")) for name in "abd"]
    for trace, advantage in zip(traces, (0.5, -0.5, None), strict=True):
        trace["info"] |= {"env_name": "maths", "group_id": "g0"}
        if advantage is not None:
            trace["info"]["advantage"] = advantage
    records = traces if bare else [episode_record(trace) for trace in traces]
    folder = tmp_path / "run" / "rollouts"
    write_lines(folder / "step_4" / "train" / "all" / "traces.jsonl", records)
    write_lines(folder / "step_5" / "train" / "effective" / "traces.jsonl", records[:2])
    write_lines(folder / "step_5" / "eval" / "effective" / "traces.jsonl", records)
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert (result.steps, result.rollouts) == (2, 3)
    (plan,) = plans_of(tmp_path / "out")
    assert (plan["iteration"], plan["steps"], plan["advantage"]) == (5, [[0, 1]], [0.5, -0.5])
    assert plan["groups"] == ["5:maths/g0"]
    (untrained,) = read_lines(tmp_path / "out" / "rollouts" / "step_00004.jsonl")
    assert untrained["response"] == "d pens"
    only = import_run(folder / "step_5", tmp_path / "only")
    assert only.rollouts == 2
    # A run that is still training: the last line is not complete.
    torn = folder / "step_5" / "train" / "effective" / "traces.jsonl"
    torn.write_text(torn.read_text() + '{"id": "half')
    live = import_run(tmp_path / "run", tmp_path / "live")
    assert live.rollouts == 3
    assert any("traces.jsonl" in note for note in live.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "line 1: a trace of version 2: version 1, as in prime-rl of September"),
        ({"rewards": [1.0]}, "'rewards' is not a JSON object: version 1"),
        ({"rewards": {"a": {"score": "x"}}}, "the reward 'x' is not a number"),
        ({"nodes": [1]}, "'nodes' holds something else than messages"),
        ({"nodes": [{"token_ids": [1], "mask": []}]}, "do not match"),
    ],
)
def test_newer_and_faulty_records(tmp_path: Path, change: dict, message: str) -> None:
    write_stream(tmp_path / "run", [episode_record(trace_record("a", 1.0) | change)])
    with pytest.raises(PoiseError, match=message):
        import_run(tmp_path / "run", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_newer_annotations_and_lines(tmp_path: Path) -> None:
    stream, orchestrator, _ = stream_parts()
    write_stream(tmp_path / "run", stream, [orchestrator[0] | {"version": 2}])
    with pytest.raises(PoiseError, match="an annotation of version 2: version 1"):
        import_run(tmp_path / "run", tmp_path / "out")
    write_stream(tmp_path / "other", [{"rollouts": []}])
    with pytest.raises(PoiseError, match=r"no 'traces' \(fields: rollouts\): written by another"):
        import_run(tmp_path / "other", tmp_path / "out")


def test_exports_without_rewards_say_what_to_do(tmp_path: Path) -> None:
    from hosts.importing.foreign import prime_record

    records = []
    for advantage in (0.5, -0.5):
        record = prime_record([5, 6], [7, 8], 0.0)
        del record["rewards"]
        records.append(record | {"advantages": [advantage] * 4, "trainer_logprobs": [-0.1] * 4})
    write_lines(tmp_path / "run" / "token_exports" / "step_0" / "rank_0.jsonl", records)
    with pytest.raises(PoiseError, match="exports none since 2026-06-27; import the run's traces"):
        import_run(tmp_path / "run", tmp_path / "out")
    import_run(tmp_path / "run", tmp_path / "out", reward="advantage")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["reward"] for line in lines] == [0.5, -0.5]
    (plan,) = plans_of(tmp_path / "out")
    assert (plan["steps"], plan["rank"], plan["micro_batch"]) == ([[0, 1]], [0, 0], [0, 0])
