"""Start real verl runs on the CPU (verl_cpu/verl_cpu_run.py), and read what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.credit.assign import assign_weights
from counterpoise.credit.view import PolicyReader
from counterpoise.hosts.verl import host
from counterpoise.store.rollout_files import read_groups
from counterpoise.types import Row, rows_by_group

HERE = Path(__file__).parent
needs_verl = pytest.mark.skipif(
    host.installed_version() is None or not host.is_supported(host.installed_version() or ""),
    reason=f"verl {host.SUPPORTED_VERSION} is not installed: {host.INSTALL_REMEDY}",
)


def run_on_cpu(out: Path, runs: Mapping[str, tuple[int, list[str]]]) -> None:
    """Train each of `runs`: how many rollouts of four are right, and verl's options."""
    script = HERE / "verl_cpu" / "verl_cpu_run.py"
    command = [sys.executable, "-W", "ignore", str(script), str(out), json.dumps(runs)]
    with (out / "log").open("w") as log:
        started = subprocess.Popen(command, cwd=out, stdout=log, stderr=log, start_new_session=True)
        try:
            code = started.wait(timeout=3600)
        finally:
            if started.poll() is None:  # Ray's processes are of the same session
                os.killpg(started.pid, signal.SIGTERM)
    assert code == 0, (out / "log").read_text()[-3000:]


def read_notes(folder: Path, steps: int) -> list[dict[str, Any]]:
    """The rows of the first `steps` optimizer steps as the two workers trained on them."""
    return [
        row
        for rank in range(2)
        for line in (folder / f"rank_{rank}.jsonl").read_text().splitlines()[:steps]
        for row in json.loads(line)["rows"]
        if row["ids"]  # not padding
    ]


def read_update(record: Path, number: int) -> list[Row]:
    """The rows of an update in the order of its plan, from `+poise.run_folder`."""
    plan = json.loads((record / "plans.jsonl").read_text().splitlines()[number - 1])
    rollouts = {
        (group.key, index): rollout
        for group in read_groups(record / f"rollouts/step_{number:05d}.jsonl")
        for index, rollout in enumerate(group.rollouts)
    }
    names = [plan["groups"][group] for group in plan["group"]]
    columns = zip(names, plan["advantage"], plan["tokens"], plan["index"], strict=True)
    return [
        Row(group, advantage, num_tokens, index, rollout=rollouts[group, index])
        for group, advantage, num_tokens, index in columns
    ]


def with_native_weights(
    rows: Sequence[Row], method: str, settings: Sequence[str], reader: PolicyReader
) -> list[Row]:
    """The same rows with token weights as the native engine computes them."""
    groups = [[rows[i] for i in group] for group in rows_by_group(rows).values()]
    weighted = assign_weights(groups, method, settings, reader)
    by_name = {row.name: row for group in weighted for row in group}
    return [by_name[row.name] for row in rows]


def compare_advantages(
    noted: Sequence[Mapping[str, Any]], rows: Sequence[Row], atol: float
) -> None:
    """What the workers trained on, token by token, against rows of the native engine."""
    theirs, ours = defaultdict(list), defaultdict(list)
    for note in noted:
        theirs[note["uid"], *note["ids"]].append(np.array(note["advantages"]))
    for row in rows:
        name = row.group.split(":")[1]
        ours[name, *row.content.response_tokens.tolist()].append(row.advantages_T)
    assert ours.keys() == theirs.keys()
    # Two rollouts of a group may be the same response with different advantages.
    for key, advantages in ours.items():
        for native_T, noted_T in zip(
            sorted(advantages, key=np.sum), sorted(theirs[key], key=np.sum), strict=True
        ):
            np.testing.assert_allclose(noted_T, native_T, atol=atol)
