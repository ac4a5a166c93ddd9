"""A short form of `make torture`: a few faults of every kind, and nothing goes wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_torture.py")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="watches system calls by a preloaded library")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc)")
def test_a_few_faults_of_every_kind_leave_the_same_run() -> None:
    command = [sys.executable, SCRIPT, "--minutes", "60", "--cases", "1", "--seed", "7"]
    command += ["--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\|(.+?)\|([\d,]+)\|.*\|0\|0\|0\|$", done.stdout, re.MULTILINE)
    faults = {fault: int(count.replace(",", "")) for fault, count in rows}
    assert len(faults) == 14
    assert faults["process killed at a system call"] >= 1
    assert faults["fuzzed line of a log"] >= 2_000
