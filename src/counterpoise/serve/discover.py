"""Find run folders below the folders that are served, and give each a name for its address.

A name is the path below the served folder (`sweep/seed-1`), or the folder's own name where it is a
run itself; a second run of that name gets `~2`. A folder that a symbolic link leads out of the
served ones is not shown: a link in a shared folder must not open the rest of the disk.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.store.checksums import CHECKSUMS_FILE
from counterpoise.store.credit_tables import CREDIT
from counterpoise.store.folder import CHECKPOINTS, CONFIG, IMPORTED, MODEL
from counterpoise.store.schema import STEP_FILES

DEEPEST = 4  # levels below a served folder
MOST_FOLDERS = 20_000  # looked at in one search, so that serving a home folder stays cheap
LOGS_OF_A_RUN = ("metrics.jsonl", "rollouts")
# A folder with a config.toml may be anything. One with so few files is a run that was just
# created: config.toml, its checksum, and a file that is being written.
FILES_OF_A_NEW_RUN = 3


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


def check_links(run_folder: Path, roots: Sequence[Path]) -> None:
    """Refuse a run with a link that leads out of the resolved `roots`.

    For readers that open the files of a run by themselves and quote them: the report, the audit
    and the trace. None of them opens checkpoints/ or model/, which often are links to a larger
    disk.
    """
    for name in ("", *STEP_FILES, CREDIT):
        folder = run_folder / name
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
        for link in links:
            is_unread = not name and link in (CHECKPOINTS, MODEL)
            if not is_unread and not is_inside(folder / link, roots):
                place = f"{name}/{link}".lstrip("/")
                raise PoiseError(f"{place} is a link that leads out of the served folders")


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
        if is_run_folder(children):
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


def is_run_folder(children: Collection[str]) -> bool:
    """Whether files of these names are a run: ours, an imported one, or one without its config."""
    logs = [name for name in LOGS_OF_A_RUN if name in children]
    if CONFIG in children or IMPORTED in children:
        is_started = CHECKPOINTS in children or CHECKSUMS_FILE in children
        return bool(logs) or is_started or len(children) <= FILES_OF_A_NEW_RUN
    return len(logs) == len(LOGS_OF_A_RUN)
