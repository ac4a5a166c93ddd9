"""Why a run lacks what an update leaves: tokens, or how far held-out answers moved.

A run that took no optimizer step has nothing to show, whatever its options are. Held-out answers
are measured every `monitor.probe_every` iterations, so a short run may have measured no update.
"""

from __future__ import annotations

from counterpoise.config import MonitorConfig
from counterpoise.errors import PoiseError
from counterpoise.store.folder import RunFolder, is_run
from counterpoise.store.logs import LogRecords

NO_UPDATE = "took no optimizer step"
FOLLOW = "train with --set monitor.probe=32"
MEASURE_ALL = "train with --set monitor.probe_every=1"


def took_no_step(metrics: LogRecords) -> bool:
    """Whether metrics.jsonl counts optimizer steps, and there were none."""
    counts = [record["steps"] for record in metrics if record.get("steps") is not None]
    return bool(counts) and not any(counts)


def explain_no_probes(folder: RunFolder, shown_as: str) -> str:
    """Why a run has no measurement of held-out answers, and what to do.

    Example:
        "out/demo measured no update on its held-out answers: train with --set
        monitor.probe_every=1"
    """
    try:
        monitor = folder.read_config().monitor if is_run(folder.path) else MonitorConfig()
    except PoiseError:  # options of another version
        monitor = MonitorConfig()
    # Other trainers' folders keep their options elsewhere.
    if not monitor.follows_probes and not (folder.path / "probes.jsonl").exists():
        return f"{shown_as} followed no held-out answers: {FOLLOW}"
    metrics = folder.read("metrics")
    if not metrics:
        return f"{shown_as} has not finished its first iteration yet: try again later"
    if took_no_step(metrics):
        return f"{shown_as} {NO_UPDATE}, so no held-out answer moved"
    reason = f"{shown_as} measured no update on its held-out answers"
    return reason if monitor.probe_every == 1 else f"{reason}: {MEASURE_ALL}"
