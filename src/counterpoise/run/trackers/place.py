"""Where a tracker's files lie: in RUN/NAME, or with `--out DIR` in DIR/RUN/NAME.

DIR/RUN/run.json says whose they are, so that two runs of one name do not become one.
"""

from __future__ import annotations

import json
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.store.atomic import replacing


def home_of(run: Path, out: Path | None) -> Path:
    """The folder that gets a folder of each tracker's."""
    if out is None:
        return run
    home = out / run.resolve().name
    home.mkdir(parents=True, exist_ok=True)
    mark, mine = home / "run.json", {"schema": 1, "run": str(run.resolve())}
    if not mark.exists():
        with replacing(mark) as temporary:
            temporary.write_text(json.dumps(mine), encoding="utf-8")
    if (found := json.loads(mark.read_text(encoding="utf-8"))) != mine:
        raise PoiseError(f"{home} is of another run, {found['run']}: choose another --out")
    return home
