"""Find run folders below the folders that are served, and give each a name for its address.

A name is the path below the served folder (`sweep/seed-1`), or the folder's own name where it is a
run itself; a second run of that name gets `~2`. A folder that a symbolic link leads out of the
served ones is not shown: a link in a shared folder must not open the rest of the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from counterpoise.store.folder import CHECKPOINTS, CONFIG, IMPORTED

DEEPEST = 4  # levels below a served folder
MOST_FOLDERS = 20_000  # looked at in one search, so that serving a home folder stays cheap
LOGS_OF_A_RUN = ("metrics.jsonl", "rollouts")
FILES_OF_A_RUN = {CONFIG, IMPORTED}
CHECKSUMS = "checksums.jsonl"


def find_runs(roots: Sequence[Path]) -> dict[str, Path]:
    """Name -> resolved folder of every run, in a stable order."""
    runs: dict[str, Path] = {}
    resolved_roots = [root.resolve() for root in roots]
    seen_folders: set[Path] = set()
    for root in resolved_roots:
        for folder in sorted(_walk(root, resolved_roots)):
            if folder in seen_folders:
                continue
            seen_folders.add(folder)
            relative = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else "."
            base_name = folder.name if relative == "." else relative
            name, copies = base_name or "run", 1
            while name in runs:
                copies += 1
                name = f"{base_name}~{copies}"
            runs[name] = folder
    return runs


def is_inside(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a path, with its links followed, lies in one of the resolved folders."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a circle of links
        return False
    return any(resolved.is_relative_to(root) for root in roots)


def _walk(root: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Run folders at or below `root`; folders inside a run are not searched."""
    pending, looked_at = [(root, 0)], 0
    while pending and looked_at < MOST_FOLDERS:
        folder, depth = pending.pop()
        looked_at += 1
        try:
            with os.scandir(folder) as entries:
                children = {entry.name: entry for entry in entries}
        except OSError:
            continue
        if _is_run(children):
            yield folder.resolve()
            continue
        if depth == DEEPEST:
            continue
        for child_name, entry in children.items():
            if child_name.startswith("."):
                continue
            try:
                is_folder = entry.is_dir()
                is_allowed = not entry.is_symlink() or is_inside(folder / child_name, roots)
            except OSError:
                continue
            if is_folder and is_allowed:
                pending.append((folder / child_name, depth + 1))


def _is_run(children: dict[str, os.DirEntry[str]]) -> bool:
    """A folder with a config.toml or imported.json; one that lost it is known by its logs."""
    has_logs = any(name in children for name in LOGS_OF_A_RUN)
    if FILES_OF_A_RUN & children.keys():
        is_started = CHECKPOINTS in children or CHECKSUMS in children
        return has_logs or is_started or len(children) <= 3
    return all(name in children for name in LOGS_OF_A_RUN)
