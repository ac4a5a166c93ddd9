"""prime-rl's rollouts, in the newest of the forms that a path holds.

    monitors/file/traces/stream/NNNNN.jsonl[.zst]         since September 2026; traces.py
    monitors/file/traces/stream.jsonl                     since 31 August 2026; traces.py
    rollouts/step_N/train/{effective,all}/traces.jsonl    until August 2026; step_traces.py
    token_exports/step_N/rank_R.jsonl                     until August 2026; token_exports.py

With enable_token_export a run may have both: then the traces are read, which have the rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from counterpoise.hosts.importing.formats import ImportContext, ImportedStep, RolloutSource
from counterpoise.hosts.prime_rl import step_traces, token_exports, traces

FORMS = (traces, step_traces, token_exports)  # the newest first


def find_files(path: Path) -> list[Path]:
    return next((files for form in FORMS if (files := form.find_files(path))), [])


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    form = next(form for form in FORMS if form.recognises_file(files[0]))
    return form.read_steps(files, context)


SOURCE = RolloutSource(
    "prime-rl",
    "monitors/file/traces/stream, rollouts/step_N/train/effective/traces.jsonl, or "
    "token_exports/step_N/rank_R.jsonl",
    find_files,
    read_steps,
    has_tokens=True,
)
