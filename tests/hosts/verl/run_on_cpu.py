"""Start real verl runs on the CPU (verl_cpu/verl_cpu_run.py), and end what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from counterpoise.hosts.verl import host

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
            code = started.wait(timeout=900)
        finally:
            if started.poll() is None:  # Ray's processes are of the same session
                os.killpg(started.pid, signal.SIGTERM)
    assert code == 0, (out / "log").read_text()[-3000:]
