"""Two processes under TRL, killed at several moments: the resumed run ends with the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_run import SETS, small_model

from counterpoise.hosts.trl import host
from counterpoise.store.check.check_run import check_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        host.installed_version() is None or not host.is_supported(host.installed_version() or ""),
        reason=f"TRL {host.SUPPORTED_SERIES} is not installed: {host.INSTALL_REMEDY}",
    ),
]
LAUNCHED = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
    "-m", "counterpoise.cli", "train",
]  # fmt: skip
ENVIRONMENT = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
ITERATIONS = 4
# RANK:CALL of the reward function at which that process is killed; the first one, with rank 0,
# writes the folder. The calls of every launch are counted anew.
KILLS = ["0:8", "1:8", "0:2"]
REWARD = """
import os, signal, zlib
calls = 0
def score(completion, answer):
    global calls
    calls += 1
    if os.environ.get("KILL_AT") == f"{os.environ['RANK']}:{calls}":
        os.kill(os.getpid(), signal.SIGKILL)
    return float(zlib.crc32(completion.encode()) % 2)
"""


def launch(words: list[str], kill_at: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCHED, *words],
        env={**ENVIRONMENT, "KILL_AT": kill_at},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


def folder_content(run: Path) -> dict[str, Any]:
    """Every file; without times, and checksums, whose lines hold them."""
    content: dict[str, Any] = {}
    for path in run.rglob("*"):
        if not path.is_file() or path.name in ("checksums.jsonl", "report.html", "README.md"):
            continue
        content[str(path.relative_to(run))] = path.read_bytes()
        if path.name in ("metrics.jsonl", "evaluations.jsonl"):
            content[str(path.relative_to(run))] = [
                {name: value for name, value in json.loads(line).items() if "second" not in name}
                for line in path.read_text().splitlines()
            ]
    return content


def test_a_killed_run_on_two_processes_ends_with_the_same_files(tmp_path: Path) -> None:
    sets = [
        *SETS, *small_model(tmp_path), f"loop.iterations={ITERATIONS}", "loop.checkpoint_every=1",
        "sample.prompts=4", "balance.tau=0", "balance.target=0", "evaluate.prompts=0",
        "verify.reward_timeout_seconds=0",
    ]  # fmt: skip
    (tmp_path / "mine.py").write_text(REWARD)
    flags = ["--engine=trl", *(f"--set={option}" for option in sets)]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = launch(["demo", *flags, f"--out={whole}"])
    assert reference.returncode == 0, reference.stderr[-3000:]
    words = ["demo", *flags, f"--out={killed}"]
    for kill_at in KILLS:
        assert launch(words, kill_at).returncode != 0
        assert not (killed / "finished.json").exists()
        words = ["--resume", f"--out={killed}"]
    resumed = launch(words)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    expected, content = folder_content(whole), folder_content(killed)
    assert sorted(content) == sorted(expected)
    assert [name for name in content if content[name] != expected[name]] == []
    assert check_run(killed).is_whole
