"""A real verl run on two FSDP ranks, recorded and dumped: token weights, pushes, its audit twice.

Token weights of the first update and pushes of its first step are computed again natively: the
policy is that of the model's files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hosts.compare_audits import NOT_FROM_TEXTS, SAME_FROM_TEXTS, check_same_audit
from hosts.verl.run_on_cpu import (
    compare_advantages,
    needs_verl,
    read_notes,
    read_update,
    run_on_cpu,
    with_native_weights,
)

from counterpoise.config import ModelConfig
from counterpoise.credit.view import PolicyReader
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.monitor_records import part_column
from counterpoise.model.load import Policy, load_policy
from counterpoise.types import Row

pytestmark = [needs_verl, pytest.mark.slow]
UPDATES, STEPS = 6, 2
ACTOR = "actor_rollout_ref.actor"
WEIGHTS, SETTINGS = "cancellation", ("strength=0.9",)  # reads hidden states


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """record/ by `+poise.run_folder`, dump/ by verl, imported/ from it."""
    out = tmp_path_factory.mktemp("verl_coupling")
    options = [
        "algorithm.adv_estimator=poise_grpo", "+poise.composer=grouped", "+poise.monitor_every=1",
        f"+poise.credit_weights={WEIGHTS}", f"+poise.credit_settings={json.dumps(SETTINGS)}",
        f"+poise.run_folder={out / 'record'}", f"trainer.rollout_data_dir={out / 'dump'}",
        f"trainer.total_training_steps={UPDATES}", "data.train_batch_size=4",
        f"{ACTOR}.ppo_mini_batch_size=2",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=3",  # needs fillers
    ]  # fmt: skip
    run_on_cpu(out, {"run": (2, options)})
    import_run(out / "dump", out / "imported", tokenizer="embedded")
    return out


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(name="embedded", device="cpu", dtype="float32"))


@pytest.fixture(scope="module")
def rows(folder: Path, policy: Policy) -> list[Row]:
    """The rows of the first update as recorded, with token weights computed natively."""
    bare_rows = read_update(folder / "record", 1)
    return with_native_weights(bare_rows, WEIGHTS, SETTINGS, PolicyReader(policy))


def read_tokens(folder: Path, number: int) -> pd.DataFrame:
    return pq.read_table(folder / f"record/tokens/step_{number:05d}.parquet").to_pandas()


def test_token_weights_are_those_of_the_native_computation(folder: Path, rows: list[Row]) -> None:
    """Advantages of the first update as both ranks trained on them, token by token."""
    noted = read_notes(folder / "run", STEPS)
    assert len(noted) == len(rows) == 16
    compare_advantages(noted, rows, atol=1e-3)
    # The weights of a row differ between its tokens.
    assert max(np.ptp(row.advantages_T) for row in rows) > 0.2


def test_pushes_are_those_of_the_native_computation(
    folder: Path, rows: list[Row], policy: Policy
) -> None:
    """Gathered from two ranks, in float32; the model's files are the weights of the first step."""
    (plan, *_) = lines(folder / "record/plans.jsonl")
    step_tokens = sum(plan["tokens"][i] for i in plan["steps"][0])
    number_of_row = {rows[i].name: i for i in plan["steps"][0] if rows[i].advantage}
    rows = [rows[i] for i in number_of_row.values()]
    tokens = take_snapshot(policy, rows)
    table = read_tokens(folder, 1)
    table = table[table["step"] == 0].set_index(["row", "position"])
    places = [
        (number_of_row[row.name], position) for row in rows for position in range(row.num_tokens)
    ]
    assert sorted(places) == sorted(table.index)
    table = table.loc[places]
    np.testing.assert_array_equal(table["token"], tokens.tokens)
    np.testing.assert_allclose(table["logprob"], tokens.logprobs.detach(), atol=1e-4)
    # Token-mean, and the ratio is 1. Token weights agree absolutely, as above: a small weight is a
    # difference of larger numbers.
    np.testing.assert_allclose(table["pull"] * step_tokens, tokens.advantages, atol=1e-3)
    W, pulls = policy.decoder.unembedding.detach(), torch.tensor(table["pull"].to_numpy())
    expected = decompose(tokens.hidden, W, tokens.tokens, pulls, tokens.groups, eta=len(tokens))
    columns = {"own": expected.self_push} | {
        part_column(part): values for part, values in expected.parts.items()
    }
    largest = float(expected.total.abs().max())
    for name, values in columns.items():
        difference = np.abs(table[name].to_numpy() - values.numpy()).max()
        assert difference < 1e-5 * largest, (name, difference, largest)
    assert float(torch.stack(list(expected.parts.values())).abs().max()) > 0.01 * largest


def test_every_measured_update_has_pushes(folder: Path) -> None:
    metrics = lines(folder / "record/metrics.jsonl")
    assert len(metrics) == UPDATES
    for record in metrics:
        table = read_tokens(folder, record["iteration"])
        assert set(table["step"]) == set(range(STEPS))
        for name in ("own", "same_token_other_query_negative", "pull", "logprob", "displacement"):
            assert table[name].notna().all(), name
        assert 0 < record["own_share"] < 1
        assert 0 <= record["cancellation"] <= 1
        # A token is pushed by its own step and moved by both.
        assert record["proxy_agreement"] is None
        pushes = pq.read_table(
            folder / f"record/pushes/step_{record['iteration']:05d}.parquet"
        ).to_pandas()
        assert len(pushes) > 0
        steps_of_row = table.groupby("row")["step"].first()
        assert (
            steps_of_row[pushes["row"]].to_numpy() == steps_of_row[pushes["by_row"]].to_numpy()
        ).all()
    tracked = lines(folder / "run/metrics.jsonl")
    assert [line["data"]["poise/own_share"] for line in tracked] == pytest.approx(
        [record["own_share"] for record in metrics]
    )


def test_record_and_dump_give_the_same_audit(folder: Path) -> None:
    same = (*SAME_FROM_TEXTS, "accepted_answers", "rejected_answers")
    # No prompt has the rollouts that it takes to say that one is never or always solved.
    same = tuple(name for name in same if name != "unusable_prompts")
    types = {"cancelling_types": ("cancellation_types in metrics.jsonl or tokens/",)}
    ours, theirs = check_same_audit(
        folder / "record", folder / "imported", same, {**NOT_FROM_TEXTS, **types}
    )
    assert ours["inconsistent_rewards"].level == "alarm"  # rewards here ignore the answer
    # The server returned log-probabilities, which verl's dump does not hold.
    assert ours["sampler_mismatch"].level == "clear"
    assert theirs["sampler_mismatch"].missing == ("sampler_mismatch in metrics.jsonl",)
    notes = json.loads((folder / "imported/imported.json").read_text())["notes"]
    assert any(note.startswith("left out because they fill up a batch") for note in notes)
