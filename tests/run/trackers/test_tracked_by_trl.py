"""Through TRL the folder is ours, and so is what trackers are sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from run.trackers.test_tensorboard import Acts, StopError, same, small, stop

from counterpoise.hosts.trl import host

pytestmark = pytest.mark.skipif(
    host.installed_version() is None or not host.is_supported(host.installed_version() or ""),
    reason=f"TRL {host.SUPPORTED_SERIES} is not installed: {host.INSTALL_REMEDY}",
)


def test_a_run_through_trl_that_is_resumed_shows_every_iteration_once(tmp_path: Path) -> None:
    from counterpoise.hosts.trl.run import train

    out = tmp_path / "run"
    with pytest.raises(StopError):
        train(small(), out, observer=Acts(3, stop))
    folder = train(small(), out, resume=True)
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2, 3, 4]
    same(out / "tensorboard", folder)
