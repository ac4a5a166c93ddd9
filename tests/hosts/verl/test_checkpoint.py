"""What RB adds to verl's checkpoints, where it is lost (test_adapter.py resumes a real run)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed")
pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")

from counterpoise.batch.buffer import BufferCounts
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.checkpoint import (
    BalanceState,
    checkpoint_to_resume,
    load_state,
    save_state,
)
from counterpoise.types import Row

COUNTS = BufferCounts(added=64, emitted=32, dropped_surplus=20, dropped_aged=1, without_signal=9)
WAITING = {"5c1e_0_0": Row("5c1e", 0.5, 57, 0, 3), "5c1e_1_0": Row("5c1e", -0.5, 40, 1, 3)}


def asynchronous_state() -> BalanceState:
    return BalanceState(
        "colocate_async",
        counts=COUNTS,
        rounds=4,
        prompts_at_start=24,
        waiting_rows=WAITING,
        update_of_group={"5c1e": 2},
        scored_keys=list(WAITING),
    )


def test_rows_that_cannot_be_restored_count_as_dropped(tmp_path: Path) -> None:
    """They age by other units in another mode."""
    save_state(tmp_path, 7, asynchronous_state())
    state, warning = load_state(tmp_path / "global_step_7", "sync")
    assert warning == (
        "2 waiting rollouts are lost: they were sampled in trainer mode colocate_async"
    )
    assert (state.waiting_rows, state.update_of_group, state.scored_keys) == ({}, {}, ())
    assert state.counts == BufferCounts(64, 32, 20, dropped_aged=3, without_signal=9)
    assert (state.trainer_mode, state.rounds, state.prompts_at_start) == ("sync", 4, 24)


def test_rows_without_their_tokens_are_lost_with_one_line(tmp_path: Path) -> None:
    save_state(tmp_path, 7, asynchronous_state())
    file = tmp_path / "global_step_7" / "poise.json"
    file.write_text(file.read_text().replace("colocate_async", "sync"))
    state, warning = load_state(tmp_path / "global_step_7", "sync")
    assert warning.startswith("2 waiting rollouts are lost: ")
    assert "\n" not in warning
    assert state.counts.dropped_aged == 3


def test_a_checkpoint_of_an_earlier_version_says_what_is_lost(tmp_path: Path) -> None:
    state, warning = load_state(tmp_path, "sync")
    assert warning == (
        f"{tmp_path} has no poise.json: rollouts that waited are lost, and poise/rollouts_* count "
        "from 0"
    )
    assert state.counts == BufferCounts()


@pytest.mark.parametrize("text", ["{torn", "[]", '{"schema": 1}'])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "poise.json").write_text(text)
    with pytest.raises(PoiseError, match=r"poise\.json is damaged .*remove it to go on"):
        load_state(tmp_path, "sync")


def test_the_checkpoint_to_resume_is_verls(tmp_path: Path) -> None:
    def find(**trainer: str) -> Path | None:
        return checkpoint_to_resume({"trainer": {"default_local_dir": str(tmp_path), **trainer}})

    assert find(resume_mode="auto") is None
    (tmp_path / "global_step_7").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    assert find(resume_mode="auto") == tmp_path / "global_step_7"
    assert find(resume_mode="disable") is None
    chosen = str(tmp_path / "global_step_3")
    assert find(resume_mode="resume_path", resume_from_path=chosen) == Path(chosen)
