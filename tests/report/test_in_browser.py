"""The page in a real browser, where there is one: it draws, says nothing, and is not taken over."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic import write_run

from counterpoise.report.page import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--virtual-time-budget=8000 --dump-dom"
)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
def test_the_page_draws_itself(tmp_path: Path):
    hostile = "</script><script>document.title = 'hacked'</script>"
    run = write_run(tmp_path / "run", tau=0.0, composer="shuffled", response=hostile)
    page = write_report(run)
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS.split(), profile, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert "<title>run · Counterpoise</title>" in done.stdout
    charts = done.stdout.count('class="specification"')
    assert charts == 13
    assert len(re.findall(r'<svg[^>]*class="marks"', done.stdout)) == charts
    assert done.stdout.count('class="cell ') == 24  # every rollout of the batch
    assert 'class="thread"' in done.stdout  # shuffled: groups are split
