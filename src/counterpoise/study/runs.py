"""Training runs of a study: one folder a run, several at a time, taken up again.

Each is a process of its own with one thread: two runs on two cores are quicker than one run on
two, and a run's numbers do not depend on its neighbours. `POISE_JOBS` says how many run at a time
where that is not one a core: a GPU takes more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.runfile import load_config
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import differences

ALWAYS = ("loop.threads=1",)


def train_runs(
    runs: Mapping[str, Sequence[str]],
    folder: Path,
    progress: Callable[[str, float], None],
    *,
    preset: str = "demo",
) -> dict[str, RunFolder]:
    """Train every run (name -> --set overrides of `preset`) to its end, in folder/name.

    What is already there is not trained again; a folder that holds another run is refused. Every
    fault of the options is found before anything is trained.
    """
    jobs = number_of_jobs()
    for name, overrides in runs.items():
        _check(folder / name, preset, overrides)
    folder.mkdir(parents=True, exist_ok=True)
    done: dict[str, RunFolder] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(_train, folder / name, preset, overrides): name
            for name, overrides in runs.items()
        }
        try:
            for finished in as_completed(waiting):
                done[waiting[finished]] = finished.result()
                progress(f"{len(done)} of {len(runs)} runs", len(done) / len(runs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # one fault, or Ctrl-C, ends the rest
    return {name: done[name] for name in runs}


def number_of_jobs() -> int:
    given = os.environ.get("POISE_JOBS", "")
    if not given:
        return os.cpu_count() or 1
    if not given.isdigit() or int(given) < 1:
        raise PoiseError(f"POISE_JOBS={given}: the number of runs at a time, 1 or more")
    return int(given)


def _check(out: Path, preset: str, overrides: Sequence[str]) -> None:
    wanted = load_config(preset, [*ALWAYS, *overrides])
    if not (out / "config.toml").exists():
        return
    for name, before, after in differences(RunFolder.open(out).config(), wanted):
        raise PoiseError(
            f"{out} was made with {name}={before!r}, not {after!r}: remove it, or choose another "
            "--out"
        )


def _train(out: Path, preset: str, overrides: Sequence[str]) -> RunFolder:
    """Through the command line, so that it is the run a user would make."""
    if not (out / "model").exists():  # written last
        command = [sys.executable, "-m", "counterpoise.cli", "train", "--out", str(out)]
        if (out / "config.toml").exists():
            command.append("--resume")
        else:
            command += [preset, *(f"--set={each}" for each in (*ALWAYS, *overrides))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise PoiseError(f"the run in {out} failed: {last}")
    return RunFolder.open(out)
