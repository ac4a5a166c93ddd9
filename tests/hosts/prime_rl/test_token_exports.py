from __future__ import annotations

from pathlib import Path

import pytest
from hosts.importing.foreign import prime_record, read_lines, write_lines
from transformers import AutoTokenizer

from counterpoise.batch.plan_file import rows_from_file
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.model.load import EMBEDDED_FOLDER

A, B = [5, 6, 7], [5, 6, 8]  # prompts


def export(folder: Path, step: int = 0) -> Path:
    """Two ranks; each has a rollout of both prompts."""
    for rank in (0, 1):
        records = [
            prime_record(A, [11, 12 + rank], float(rank)) | {"export_step": step},
            prime_record(B, [13], 1.0) | {"export_step": step},
        ]
        write_lines(folder / "token_exports" / f"step_{step}" / f"rank_{rank}.jsonl", records)
    return folder / "token_exports" / f"step_{step}"


def test_tokens_logprobs_and_rewards_are_kept(tmp_path: Path) -> None:
    export(tmp_path / "run")
    result = import_run(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["response_tokens"] for line in lines] == [[11, 12], [13], [11, 13], [13]]
    assert [line["prompt_tokens"] for line in lines] == [A, B, A, B]
    assert [line["sampled_logprobs"] for line in lines] == [[-0.25] * 2, [-0.25]] * 2
    assert [line["reward"] for line in lines] == [0.0, 1.0, 1.0, 1.0]
    groups = [line["group"] for line in lines]
    assert groups[0] == groups[2] != groups[1] == groups[3]
    assert groups[0].startswith("0:maths/")
    assert not {"prompt", "response", "finished"} & lines[0].keys()
    assert (result.groups, result.tokens) == (2, 6)
    rows = rows_from_file(tmp_path / "out" / "rollouts" / "step_00000.jsonl", "dr_grpo")
    assert [row.advantage for row in rows] == [-0.5, 0.0, 0.5, 0.0]


def test_with_a_tokenizer_there_are_texts(tmp_path: Path) -> None:
    export(tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    assert lines[0]["prompt"] == tokenizer.decode(A, skip_special_tokens=True)
    assert lines[0]["response"] == tokenizer.decode([11, 12], skip_special_tokens=True)


def test_only_trained_tokens_of_several_turns_count(tmp_path: Path) -> None:
    record = prime_record([5], [11, 21, 22, 12, 31], 1.0)
    record["loss_mask"] = [False, True, False, False, True, False]
    record["inference_logprobs"] = [0.0, -0.1, 0.0, 0.0, -0.2, 0.0]
    file = write_lines(tmp_path / "step_3" / "rank_0.jsonl", [record | {"export_step": 3}])
    import_run(file, tmp_path / "out")
    (line,) = read_lines(tmp_path / "out" / "rollouts" / "step_00003.jsonl")
    assert (line["response_tokens"], line["sampled_logprobs"]) == ([11, 12], [-0.1, -0.2])
    assert line["prompt_tokens"] == [5]
    # What the model saw between its own tokens is kept, what came after them is not.
    assert [(turn["start"], turn["told"]) for turn in line["turns"]] == [(0, []), (1, [21, 22])]


def test_older_exports_have_a_step_only_and_null_is_no_logprob(tmp_path: Path) -> None:
    record = prime_record(A, [11], 0.0) | {"step": 4}
    del record["export_step"]
    record["inference_logprobs"][-1] = None
    write_lines(tmp_path / "run" / "token_exports" / "step_4" / "rank_0.jsonl", [record])
    import_run(tmp_path / "run" / "token_exports", tmp_path / "out")
    (line,) = read_lines(tmp_path / "out" / "rollouts" / "step_00004.jsonl")
    assert "sampled_logprobs" not in line


def test_a_step_that_is_not_marked_whole_is_left_out(tmp_path: Path) -> None:
    (export(tmp_path / "run", 0) / "STABLE").touch()
    export(tmp_path / "run", 1)
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out" / "rollouts").iterdir()] == ["step_00000.jsonl"]
    assert "left out because they are incomplete: 1 step" in result.notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema_version 2 is not known"),
        ({"rewards": [None] * 4}, "no reward was exported"),
        ({"rewards": [0.0, 0.0, 0.0, 1.0, 0.0]}, "differ in length"),
        ({"rewards": [0.0, 0.0, 0.0, 1.0]}, "rewards differ within the sequence"),
        ({"loss_mask": [False] * 4}, "no token was trained"),
        ({"token_ids": [1, 2, 3, -4]}, "something else than token ids"),
        ({"rewards": 1.0}, "must be lists"),
        ({"rewards": [[1.0]] * 4}, "is not a number"),
        ({"rewards": [10**400] * 4}, "is not finite"),
        ({"inference_logprobs": ["a"] * 4}, "must be numbers"),
    ],
)
def test_faulty_values(tmp_path: Path, change: dict, message: str) -> None:
    record = prime_record(A[:2], [11, 12], 1.0) | change
    file = write_lines(tmp_path / "run" / "rank_0.jsonl", [record])
    with pytest.raises(PoiseError, match=message):
        import_run(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "rank_0.jsonl", [prime_record(A, [10**6], 1.0)])
    with pytest.raises(PoiseError, match="token 1000000 is beyond the tokenizer's"):
        import_run(file, tmp_path / "out", tokenizer="embedded")
