"""Find run folders below the folders that are served, and give each a name for its address.

A name is the path below the served folder (`sweep/seed-1`), or the folder's own name where it is a
run itself; a second run of that name gets `~2`. A folder that a symbolic link leads out of the
served ones is not shown: a link in a shared folder must not open the rest of the disk. The page
that lists the runs says what was left out.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.store.checksums import CHECKSUMS_FILE
from counterpoise.store.credit_tables import CREDIT
from counterpoise.store.folder import CHECKPOINTS, CONFIG, IMPORTED, MODEL
from counterpoise.store.schema import STEP_FILES

MOST_FOLDERS = 20_000  # looked at below a served folder, so that serving a home folder stays cheap
LOGS_OF_A_RUN = ("metrics.jsonl", "rollouts")
# A folder with a config.toml may be anything. One with so few files is a run that was just
# created: config.toml, its checksum, and a file that is being written.
FILES_OF_A_NEW_RUN = 3


@dataclass(slots=True)
class RunSearch:
    """The runs below the served folders, and what was left out of the search for them."""

    runs: dict[str, Path] = field(default_factory=dict)  # by name, in a stable order
    too_large: list[Path] = field(default_factory=list)  # served, with more than MOST_FOLDERS
    unreadable: list[Path] = field(default_factory=list)
    links_out: list[Path] = field(default_factory=list)  # of folders

    def describe_omissions(self) -> list[str]:
        """Sentences about places that may hold further runs."""
        sentences = [
            f"{folder} holds more than {MOST_FOLDERS:,} folders, and only those nearest to it were "
            "searched: serve a folder closer to your runs."
            for folder in self.too_large
        ]
        if self.unreadable:
            sentences.append(
                f"Folders that cannot be read are not searched: {_name_first(self.unreadable)}."
            )
        if self.links_out:
            sentences.append(
                "Links that lead out of the served folders are not followed: "
                f"{_name_first(self.links_out)}."
            )
        return sentences


def _name_first(paths: Sequence[Path]) -> str:
    first, *others = dict.fromkeys(paths)  # served folders may overlap
    return f"{first}" + (f" and {len(others):,} more" if others else "")


def find_runs(roots: Sequence[Path]) -> RunSearch:
    """Search the served folders."""
    search = RunSearch()
    resolved_roots = [root.resolve() for root in roots]
    found_folders: set[Path] = set()
    for root in resolved_roots:
        for folder in sorted(_walk(root, resolved_roots, search)):
            if folder in found_folders:
                continue
            found_folders.add(folder)
            relative = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else "."
            base_name = folder.name if relative == "." else relative
            name, copies = base_name or "run", 1
            while name in search.runs:
                copies += 1
                name = f"{base_name}~{copies}"
            search.runs[name] = folder
    return search


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


def _walk(root: Path, roots: Sequence[Path], search: RunSearch) -> Iterator[Path]:
    """Run folders at or below `root`, the nearest first; folders inside a run are not searched.

    What is left out is noted in `search`.
    """
    pending, seen = deque([root]), {root}  # with links resolved, so that a circle of them ends
    looked_at = 0
    while pending:
        if looked_at == MOST_FOLDERS:
            search.too_large.append(root)
            return
        folder = pending.popleft()
        looked_at += 1
        try:
            with os.scandir(folder) as entries:
                children = {entry.name: entry for entry in entries}
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError:
            search.unreadable.append(folder)
            continue
        if is_run_folder(children):
            yield folder
            continue
        for child in _subfolders(folder, children.values(), roots, search):
            if child not in seen:
                seen.add(child)
                pending.append(child)


def _subfolders(
    folder: Path, entries: Iterable[os.DirEntry[str]], roots: Sequence[Path], search: RunSearch
) -> Iterator[Path]:
    """Subfolders that may be searched, with links resolved; links out are noted in `search`."""
    for entry in entries:
        path = folder / entry.name
        try:
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            if not entry.is_symlink():
                yield path
            elif is_inside(path, roots):
                yield path.resolve()
            else:
                search.links_out.append(path)
        except OSError:  # a circle of links, or a folder that vanished
            continue


def is_run_folder(children: Collection[str]) -> bool:
    """Whether files of these names are a run: ours, an imported one, or one without its config."""
    logs = [name for name in LOGS_OF_A_RUN if name in children]
    if CONFIG in children or IMPORTED in children:
        is_started = CHECKPOINTS in children or CHECKSUMS_FILE in children
        return bool(logs) or is_started or len(children) <= FILES_OF_A_NEW_RUN
    return len(logs) == len(LOGS_OF_A_RUN)
