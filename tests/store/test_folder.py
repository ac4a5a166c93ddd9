"""The run folder: whole files or none, no half lines, and a way back to a checkpoint."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny

from counterpoise.config import RunConfig
from counterpoise.config.load import config_from_tables, to_toml
from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.hosts.choose_engine import stored_engine
from counterpoise.store import folder as folder_module
from counterpoise.store.check.check_run import check_run
from counterpoise.store.credit_tables import write_weights
from counterpoise.store.folder import Engine, RunFolder, is_run
from counterpoise.store.resume import forbidden_differences, load_config_to_resume
from counterpoise.store.rollout_files import check_vocabulary
from counterpoise.types import Group, TokenTrace


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "a" / "run", RunConfig())


def names(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


# -- atomic -------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with atomic_write(path) as temporary:
        temporary.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert names(tmp_path) == {"a.txt"}


def test_a_fault_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fail_half_way() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of ")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert path.read_text() == "before"
    assert names(tmp_path) == {"a.txt"}


# -- opening ------------------------------------------------------------------------------------


def test_a_new_folder_holds_its_configuration(folder: RunFolder) -> None:
    assert names(folder.path) == {"config.toml", "checksums.jsonl"}
    assert (folder.path / "config.toml").read_text() == to_toml(RunConfig())
    assert RunFolder.open(folder.path).read_config() == RunConfig()
    assert folder.read("metrics") == []
    assert folder.read_rollouts(1) == []


def test_a_folder_is_made_once(folder: RunFolder) -> None:
    with pytest.raises(PoiseError, match="already holds a run"):
        RunFolder.create(folder.path, RunConfig())


def test_a_new_folder_that_another_process_resumed_is_left_to_it(folder: RunFolder) -> None:
    folder.check_unused()
    folder.append("metrics", {"iteration": 1})  # a second process, before the first has the lock
    with pytest.raises(PoiseError, match="resumed by another process"):
        folder.check_unused()


def test_only_an_empty_folder_will_do(tmp_path: Path) -> None:
    RunFolder.check_free(tmp_path)
    RunFolder.check_free(tmp_path / "new")
    (tmp_path / ".hidden").write_text("")
    with pytest.raises(PoiseError, match="not empty"):
        RunFolder.check_free(tmp_path)
    with pytest.raises(PoiseError, match="is a file"):
        RunFolder.check_free(tmp_path / ".hidden")
    with pytest.raises(PoiseError, match="holds no run"):
        RunFolder.open(tmp_path)


# -- logs ---------------------------------------------------------------------------------------


def test_lines_are_appended_with_their_schema(folder: RunFolder) -> None:
    folder.append("metrics", {"iteration": 1, "success": 0.1 + 0.2})
    folder.append("metrics", {"iteration": 2, "success": None})
    assert folder.read("metrics") == [
        {"schema": 1, "iteration": 1, "success": 0.1 + 0.2},
        {"schema": 1, "iteration": 2, "success": None},
    ]


@pytest.mark.parametrize("cut", [1, 2, 10, 24])
def test_a_last_line_cut_off_by_a_crash_is_left_out(folder: RunFolder, cut: int) -> None:
    folder.append("metrics", {"iteration": 1})
    folder.append("metrics", {"iteration": 2})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [r["iteration"] for r in folder.read("metrics")] == [1]


def test_a_cut_line_does_not_spoil_the_next_one(folder: RunFolder) -> None:
    for iteration in (1, 2):
        folder.append("metrics", {"iteration": iteration})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    folder.rewind(1)
    folder.append("metrics", {"iteration": 2, "again": True})
    assert [r["iteration"] for r in folder.read("metrics")] == [1, 2]
    assert path.read_text().count("\n") == 2


def test_rewinding_forgets_what_came_after(folder: RunFolder) -> None:
    groups = [Group("1:p", 1, tuple(row.content for row in tiny.rows(groups=1)))]
    trace = TokenTrace({"row": np.arange(3)})
    folder.append("evaluations", {"iteration": 0, "mean": 0.5})
    for iteration in range(1, 13):
        folder.append("metrics", {"iteration": iteration, "x": 1e-300 * iteration})
        folder.append("plans", {"iteration": iteration})
        folder.write_rollouts(iteration, groups)
        folder.write_table("tokens", iteration, trace)
        folder.write_table("pushes", iteration, trace)
        write_weights(folder.path, iteration, [("1:p", 0)], {"gtpo": [np.ones(2, np.float32)]})
    folder.append("evaluations", {"iteration": 12, "mean": 0.6})
    kept = folder.read("metrics")[:10]
    (folder.path / "report.html").write_text("page")
    folder.rewind(10)
    assert folder.read("metrics") == kept
    assert [r["iteration"] for r in folder.read("plans")] == list(range(1, 11))
    assert [r["iteration"] for r in folder.read("evaluations")] == [0]
    steps = [f"step_{i:05d}" for i in range(1, 11)]
    assert sorted(p.stem for p in (folder.path / "rollouts").iterdir()) == steps
    assert sorted(p.stem for p in (folder.path / "tokens").iterdir()) == steps
    assert sorted(p.stem for p in (folder.path / "pushes").iterdir()) == steps
    assert sorted(p.stem for p in (folder.path / "credit").iterdir()) == steps
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    folder.rewind(10)  # once more changes nothing
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before
    folder.rewind(-1)
    assert names(folder.path) == {
        "config.toml", "metrics.jsonl", "plans.jsonl", "evaluations.jsonl", "checksums.jsonl",
        "report.html",
    }  # fmt: skip
    assert folder.read("metrics") == folder.read("evaluations") == []


def test_files_of_the_whole_run_keep_their_checksums_when_it_starts_again(
    folder: RunFolder,
) -> None:
    """contamination.json is not written a second time: without a checksum it looked damaged."""
    with folder.atomic_write("contamination.json") as temporary:
        temporary.write_text('{"schema": 1}')
    with folder.atomic_write("finished.json") as temporary:
        temporary.write_text('{"schema": 1}')
    folder.append("evaluations", {"iteration": 0, "mean": 0.5})
    (folder.path / "finished.json").unlink()
    folder.rewind(-1)
    files = [record["file"] for record in folder.read("checksums")]
    assert files == ["config.toml", "contamination.json"]
    assert check_run(folder.path).findings == []


def test_rewinding_an_empty_run(folder: RunFolder) -> None:
    folder.rewind(-1)
    assert names(folder.path) == {"config.toml", "checksums.jsonl"}


# -- files of an iteration ----------------------------------------------------------------------


def test_rollouts_are_one_line_each(folder: RunFolder) -> None:
    rows = tiny.rows(groups=2, size=3)
    groups = [
        Group(f"7:p{g}", 7, tuple(r.content for r in rows[3 * g : 3 * g + 3])) for g in (0, 1)
    ]
    folder.write_rollouts(7, groups)
    lines = (folder.path / "rollouts" / "step_00007.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == folder.read_rollouts(7)
    assert [r["group"] for r in folder.read_rollouts(7)] == ["7:p0"] * 3 + ["7:p1"] * 3
    for record, row in zip(folder.read_rollouts(7), rows, strict=True):
        assert set(record) >= {
            "schema", "prompt_id", "prompt", "response", "answer", "reward", "prompt_tokens",
            "response_tokens", "sampled_logprobs",
        }  # fmt: skip
        assert record["response_tokens"] == row.content.response_tokens.tolist()
        assert record["sampled_logprobs"] == pytest.approx(row.content.sampled_logprobs, abs=1e-6)


def test_the_plan_command_reads_them(folder: RunFolder) -> None:
    from counterpoise.batch.plan_file import plan_file

    rows = tiny.rows(groups=4, size=2)
    groups = [
        Group(f"1:p{g}", 1, tuple(r.content for r in rows[2 * g : 2 * g + 2])) for g in range(4)
    ]
    folder.write_rollouts(1, groups)
    planned = plan_file(folder.path / "rollouts" / "step_00001.jsonl", "grouped", 2, 0)
    assert planned["describe"]["groups"] == 4
    assert planned["describe"]["split_groups"] == 0


def test_tokens_keep_their_types(folder: RunFolder) -> None:
    columns = {
        "step": np.array([0, 0, 1], np.int16),
        "token": np.array([5, 6, 7], np.int32),
        "logprob": np.array([-0.1, -1e-30, -3.0], np.float32),
    }
    folder.write_table("tokens", 3, TokenTrace(columns))
    table = pq.read_table(folder.path / "tokens" / "step_00003.parquet")
    assert table.schema.metadata[b"counterpoise_schema"] == b"1"
    for name, column in columns.items():
        stored = table[name].to_numpy()
        assert stored.dtype == column.dtype
        assert stored.tobytes() == column.tobytes()


@pytest.mark.parametrize("token", [-1, 10])
def test_tokens_that_the_model_lacks_are_named(token: int) -> None:
    (row,) = tiny.rows(groups=1, size=1)
    tokens = np.array([3, token, 4], dtype=np.int32)
    rollout = replace(row.content, prompt_tokens=tokens[:1], response_tokens=tokens)
    groups = [Group("1:p", 1, (rollout,))]
    with pytest.raises(PoiseError, match=f"have the token {token}, but .* are 0 to 9"):
        check_vocabulary(groups, 10)


# -- resuming -----------------------------------------------------------------------------------


def test_the_stored_configuration_is_the_runs(folder: RunFolder) -> None:
    assert load_config_to_resume(folder.path, None, []) == RunConfig()
    longer = load_config_to_resume(folder.path, None, ["loop.iterations=99", "verify.workers=1"])
    assert (longer.loop.iterations, longer.verify.workers) == (99, 1)


def test_a_resumed_run_is_not_contradicted(folder: RunFolder) -> None:
    with pytest.raises(PoiseError, match=r"made with batch\.steps=4, not 2"):
        load_config_to_resume(folder.path, None, ["batch.steps=2"])
    with pytest.raises(PoiseError, match=r"made with loop\.seed=0, not 1"):
        load_config_to_resume(folder.path, config_from_tables({"loop": {"seed": 1}}), [])
    other = config_from_tables({"loop": {"seed": 1}})
    assert load_config_to_resume(folder.path, other, [], from_start=True) == other
    fewer = load_config_to_resume(folder.path, None, ["batch.steps=2"], from_start=True)
    assert fewer.batch.steps == 2
    same = config_from_tables({"loop": {"iterations": 50}})
    assert load_config_to_resume(folder.path, same, []) == same


@pytest.mark.parametrize(
    ("sets", "changed"),
    [
        ([], []),
        (["update.schedule=linear"], ["loop.iterations"]),
        (["credit.rule=sdpg"], []),
        (["credit.rule=sdpg", 'credit.rule_settings=["decay = 5"]'], ["loop.iterations"]),
    ],
)
def test_what_decays_over_the_run_fixes_its_length(sets: list[str], changed: list[str]) -> None:
    short, long = (config_from_tables({}, [*sets, f"loop.iterations={n}"]) for n in (20, 40))
    assert [option for option, _, _ in forbidden_differences(short, long)] == changed


def test_a_configuration_that_is_not_text_is_one_line(folder: RunFolder) -> None:
    path = folder.path / "config.toml"
    path.write_bytes(path.read_bytes().replace(b'"', b'"\xff', 1))
    with pytest.raises(PoiseError, match=r"is torn, not a TOML file \('utf-8' codec"):
        load_config_to_resume(folder.path, None, [])


def test_a_folder_is_replaced_by_a_folder_and_never_by_a_file(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(IsADirectoryError), atomic_write(target) as temporary:
        temporary.write_text("a file")
    assert (target / "old").read_text() == "old"
    with atomic_write(target) as temporary:
        temporary.mkdir()
        (temporary / "new").write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in target.iterdir()] == ["new"]


def test_a_path_that_is_not_utf8_is_refused_before_training(tmp_path: Path) -> None:
    """safetensors cannot write a model there, which would come out at the end of the run."""
    with pytest.raises(PoiseError, match="is not UTF-8: choose another --out"):
        RunFolder.check_free(tmp_path / "run\udcff")


# -- engines ------------------------------------------------------------------------------------


def test_a_run_of_another_engine_never_lacks_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed between the two files leaves no run; one that is left knows its engine."""
    written: list[str] = []

    def write(path: Path, **options: bool) -> AbstractContextManager[Path]:
        written.append(path.name)
        if path.name == "config.toml" and len(written) == 2:
            raise KeyboardInterrupt
        return atomic_write(path, **options)

    monkeypatch.setattr(folder_module, "atomic_write", write)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.create(tmp_path / "run", RunConfig(), Engine("trl", "1.16.0"))
    assert written == ["engine.json", "config.toml"]
    assert names(tmp_path / "run") == {"engine.json"}
    assert not is_run(tmp_path / "run")

    native = RunFolder.create(tmp_path / "run", RunConfig())  # takes no engine.json over
    assert names(native.path) == {"config.toml", "checksums.jsonl"}
    inside_trl = RunFolder.create(tmp_path / "trl", RunConfig(), Engine("trl", "1.16.0"))
    assert stored_engine(inside_trl.path) == "trl"
    inside_trl.check_unused()
    assert [record["file"] for record in inside_trl.read("checksums")] == [
        "engine.json",
        "config.toml",
    ]
