"""Numbers of speed.md about TRL and vLLM on an H200, and about probes, are those of its records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from page_numbers import DATA, page_text, section, table_rows

from counterpoise.lab.speed.probes import default_cadence
from counterpoise.run.probes import PROBE_COSTS

PAGE = page_text("speed.md")
RECORDS: dict[str, Any] = json.loads((DATA / "h200-peers.json").read_text(encoding="utf-8"))


def test_an_iteration_of_ours_and_of_trl() -> None:
    printed = {row[0].strip("*"): row[1:] for row in table_rows(PAGE, "|64 x 8 x 128, SmolLM2")}
    measured = {
        name: (iteration, sampling, update, peak)
        for name, iteration, _, _, sampling, update, peak in (
            RECORDS["peer"]["parts"]["peer"]["rows"]
        )
    }
    for page_name, record_name in (
        ("ours", "ours"),
        ("ours, 4 optimizer steps", "ours, 4 steps"),
        ("TRL", "TRL"),
        ("TRL, gradient checkpointing (its default)", "TRL, gradient checkpointing"),
        ("TRL with vLLM", "TRL + vLLM"),
    ):
        cells = [cell.strip("*").split(",")[0] for cell in printed[page_name]]
        expected = ["" if cell == "-" else cell for cell in measured[record_name]]
        assert cells == expected, page_name


def test_sampling_beside_generate_and_vllm() -> None:
    rows = list(table_rows(PAGE, "|sampling, 128 tokens a rollout|"))
    assert len(rows) == 3
    for row, record in zip(rows, RECORDS["sampler"]["parts"]["sampler"]["sampler"], strict=True):
        assert int(row[0].split()[0].replace(",", "")) == record["rollouts"]
        ours = record["ours"]["median"]
        assert row[1] == f"{ours:.3f} s"
        for cell, name in zip(row[2:], ("generate", "vllm"), strict=True):
            if not cell:
                assert not record.get(name)
                continue
            seconds, times = cell.split(" s, ")
            assert float(seconds) == pytest.approx(record[name]["median"], rel=0.01)
            assert float(times.split()[0]) == pytest.approx(record[name]["median"] / ours, rel=0.02)


def test_uneven_lengths() -> None:
    record, later = RECORDS["uneven_lengths"], RECORDS["uneven_lengths_by_pages"]
    text = section(PAGE, "|long, uneven responses", "|monitor|")
    assert f"{record['rows']} rows" in text
    assert f"mean {record['mean']:.0f} tokens, longest {record['longest']:,}" in text
    (ours,), (vllm,) = record["seconds"]["ours"], record["seconds"]["vllm"]
    assert f"ours beside it, with neither|{vllm:.1f}; {ours:.1f}|" in text
    seconds = {name: f"{run['seconds']:.1f}" for name, run in later["runs"].items()}
    assert f"|**{seconds['pages and parts']}**|" in text
    others = [seconds[name] for name in ("pages", "parts", "neither")]
    assert f"neither|{'; '.join(others)}|" in text
    last_steps, last_seconds = later["runs"]["pages and parts"]["last_8_rows"]
    assert f"{last_seconds:.0f} go to the last 8 rows" in text
    assert f"{1000 * last_seconds / last_steps:.1f} ms a token" in text


def probe_record(device: str) -> dict[str, Any]:
    if device == "cuda":
        return RECORDS["probes"]["parts"]["probes"]["probes"]
    records = json.loads((DATA / "cpu-probes.json").read_text(encoding="utf-8"))
    return records["parts"]["probes"]["probes"]


@pytest.mark.parametrize(("device", "rollouts"), [("cuda", 64 * 8), ("cpu", 8 * 8)])
def test_probes_keep_within_their_share_at_the_default_cadence(device: str, rollouts: int) -> None:
    record = probe_record(device)
    seconds = record["without"]["iteration"]["median"]
    look, refresh = record["look_seconds"], record["refresh_seconds"]
    cadence = default_cadence(torch.device(device), record["answers"], rollouts)
    share = cadence.seconds_per_iteration(look, refresh) / seconds
    assert share <= PROBE_COSTS[device].share
    assert record["weights"]["run_repeats"]
    assert record["weights"]["equal_with_probes"]
    # Intervals are computed from these costs; those of the GPU are of an earlier, slower run.
    reading = record["look_parts"]["each of two readings"]
    measured = np.array([reading, look - 2 * reading, refresh]) / record["answers"]
    costs = PROBE_COSTS[device]
    stored = np.array([costs.reading, costs.pushes, costs.drawing])
    assert (0.88 * stored < measured / (seconds / rollouts)).all()
    assert (measured / (seconds / rollouts) < 1.05 * stored).all()
    printed = {
        "cuda": "without takes {seconds:.3f} s; a look adds {look:.3f} s, drawing answers "
        "{refresh:.3f} s. A look every {look_every} iterations and a draw every {refresh_every}, "
        "the default, take {percent:.1f} %",
        "cpu": "an iteration {seconds:.2f} s, a look at 256 answers {look:.2f} s, drawing them "
        "{refresh:.2f} s; one of each in {look_every} iterations, the default, {percent:.1f} %",
    }[device]
    assert printed.format(
        seconds=seconds,
        look=look,
        refresh=refresh,
        look_every=cadence.look_every,
        refresh_every=cadence.refresh_every,
        percent=100 * share,
    ) in " ".join(PAGE.split())


def test_trl_on_a_gpu() -> None:
    text = " ".join(section(PAGE, "- **TRL on an H200**").split())
    largest = [
        max(step["trl_to_native_float32"] for step in RECORDS[name]["float32"])
        for name in ("gradients_of_the_shape", "gradients_of_the_embedded_model")
    ]
    assert f"at most {largest[0]:.1e}".replace("e-0", "e-") in text
    assert f"and {largest[1]:.1e}".replace("e-0", "e-") in text
    for key in ("trl_to_native", "trl_to_native_float32", "native_to_native_float32"):
        medians = [
            float(np.median([step[key] for step in RECORDS[name]["bfloat16"]]))
            for name in ("gradients_of_the_shape", "gradients_of_the_embedded_model")
        ]
        assert f"{medians[0]:.3f} and {medians[1]:.3f}" in text, key
    shares = [
        100 * RECORDS[name]["summary"]["overhead_by_code"]
        for name in ("trl_with_generate", "trl_with_vllm")
    ]
    assert f"{shares[0]:.1f} and {shares[1]:.1f} % of an iteration" in text
