"""Check the files of a run: each is what the run wrote, can be read, and none is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import find_leftovers
from counterpoise.store.check.findings import CheckReport, describe_fault, name_some
from counterpoise.store.check.log_lines import Coverage
from counterpoise.store.checksums import Checksum
from counterpoise.store.credit_tables import CREDIT
from counterpoise.store.finished import FINISHED_FILE
from counterpoise.store.folder import CHECKPOINTS, CONFIG, MODEL, REPLAY
from counterpoise.store.resume import find_config_damage, load_stored_config
from counterpoise.store.schema import FILES, LOGS, STEP_FILES

WRITTEN_NAMES = {name.partition("/")[0] for name in FILES}  # at the top of a run folder
# Pages and trackers are made from the rest.
DERIVED = {
    "report.html", "comparison.html", "audit.html", "credit.html", CREDIT, "tensorboard", "wandb",
    "trackio",
}  # fmt: skip
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RecursionError)


def check_files(
    run: Path, checksums: Mapping[str, list[Checksum]], coverage: Coverage, report: CheckReport
) -> None:
    """Compare every file with its checksum; find files that are missing or have none."""
    log_names = {f"{log}.jsonl" for log in LOGS}
    present_names = {name for name in _list_files(run) if name not in log_names}
    for name in sorted(present_names):
        folder, iteration = _split_name(name)
        if iteration is None:
            report.checked_files.add(name)
        else:
            report.checked_iterations.setdefault(folder, set()).add(iteration)
        try:
            checksum = Checksum.of_file(run / name)
        except OSError as fault:
            report.add(name, describe_fault(fault), iteration)
            continue
        known_checksums = checksums.get(name, [])
        if known_checksums and checksum not in known_checksums:
            # A power cut may leave empty files, which a resumed run counts as missing.
            add_finding = report.add if checksum.num_bytes else report.add_missing
            add_finding(name, _describe_change(checksum, known_checksums[-1]), iteration)
        elif not known_checksums and _needs_checksum(name, iteration, coverage):
            report.add(name, "has no checksum in checksums.jsonl", iteration)
    for name in sorted(checksums.keys() - present_names - log_names):
        folder, iteration = _split_name(name)
        if _must_exist(name, iteration, coverage):
            report.add_missing(name, "is missing", iteration)


def _list_files(run: Path) -> list[str]:
    """Files that a checksum may belong to, as paths inside the run folder.

    Checkpoints have manifests instead; `note_other_files` names what no run writes.
    """
    names = []
    for top_name in WRITTEN_NAMES - DERIVED - {CHECKPOINTS}:
        path = run / top_name
        files = path.rglob("*") if path.is_dir() else [path]
        names += [
            file.relative_to(run).as_posix()
            for file in files
            if file.is_file() and not file.name.startswith(".")
        ]
    return names


def _split_name(name: str) -> tuple[str, int | None]:
    """("tokens", 3) for tokens/step_00003.parquet; no iteration for files of the whole run."""
    folder, _, file_name = name.rpartition("/")
    number = Path(file_name).stem.removeprefix("step_")
    is_step = folder in STEP_FILES and number.isdecimal()
    return folder, int(number) if is_step else None


def _describe_change(checksum: Checksum, expected: Checksum) -> str:
    if checksum.num_bytes == expected.num_bytes:
        return "is not what the run wrote"
    return f"has {checksum.num_bytes:,} bytes, but the run wrote {expected.num_bytes:,}"


def _needs_checksum(name: str, iteration: int | None, coverage: Coverage) -> bool:
    if iteration is not None:
        return coverage.needs_checksum(iteration)
    if coverage.first_iteration is None:
        return False
    # Before release 0.3.0 replay.json had no checksum.
    is_ours = (name in FILES and name != REPLAY) or name.startswith(f"{MODEL}/")
    return is_ours and coverage.first_iteration == 1


def _must_exist(name: str, iteration: int | None, coverage: Coverage) -> bool:
    if iteration is not None:
        return coverage.must_exist(iteration)
    # The model and finished.json come at the end.
    if name.startswith(f"{MODEL}/"):
        return coverage.finished
    return name in FILES and name != FINISHED_FILE


def check_config(run: Path, report: CheckReport) -> RunConfig | None:
    """The run's options, if config.toml can be read."""
    report.checked_files.add(CONFIG)
    try:
        if damage := find_config_damage(run / CONFIG):
            report.add(CONFIG, damage)
            return None
        return load_stored_config(run / CONFIG)
    except (PoiseError, OSError, RecursionError) as fault:
        report.add(CONFIG, describe_fault(fault))
    return None


def read_json(run: Path, name: str, report: CheckReport) -> dict[str, Any] | None:
    """A JSON object of the folder; None if it is not there or cannot be read."""
    if not (run / name).is_file():
        return None
    try:
        content = json.loads((run / name).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("not a JSON object")
        if content.get("schema") != 1:
            raise ValueError("schema is not 1")
    except READ_ERRORS as fault:
        report.add(name, describe_fault(fault))
        return None
    return content


def check_vocabulary_file(run: Path, report: CheckReport) -> int | None:
    """The number of tokens in vocabulary.json; None if it cannot be read."""
    content = read_json(run, "vocabulary.json", report)
    if content is None:
        return None
    tokens = content.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(text, str) for text in tokens):
        report.add("vocabulary.json", "has no list of token texts")
        return None
    return len(tokens)


def check_model_folder(run: Path, report: CheckReport) -> None:
    """The headers of the saved model's tensors; their content has checksums."""
    from safetensors import SafetensorError, safe_open

    for file in sorted((run / MODEL).glob("*.safetensors")):
        try:
            with safe_open(file, framework="np") as tensors:
                tensors.keys()
        except (OSError, SafetensorError) as fault:
            report.add(f"{MODEL}/{file.name}", f"cannot be read: {first_line(fault)}")


def note_other_files(run: Path, report: CheckReport) -> None:
    """Remarks about files that are not the run's, and about what killed processes left."""
    other_files = sorted(
        path.name
        for path in run.iterdir()
        if path.name not in WRITTEN_NAMES and not path.name.startswith(".")
    )
    if other_files:
        report.remarks.append(f"not checked, because no run writes it: {name_some(other_files)}")
    leftovers = [
        path for folder in (run, run / CHECKPOINTS) if folder.is_dir()
        for path in find_leftovers(folder)
    ]  # fmt: skip
    if leftovers:
        names = [path.name for path in leftovers]
        report.remarks.append(f"left by a process that was killed: {name_some(names)}")
