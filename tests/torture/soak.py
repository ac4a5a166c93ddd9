"""A long run: memory, descriptors, threads, seconds and bytes of an iteration stay flat.

    python tests/torture/soak.py --iterations 2000 --page docs/results/trust.md      (make soak)

One process trains the smallest run; this one reads its folder all the while, as a live report does:
every log, and the rollouts, tokens and pushes of the newest iteration. Compares the first tenth
after a warm-up with the last tenth, and ends with code 1 if anything grew or a reading failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
BEGIN, END = "<!-- table: make soak -->", "<!-- end of soak -->"
# What is measured -> its unit, and how much of it the last tenth may have more.
MEASURES = {
    "resident memory": ("MiB", 1.05),
    "open descriptors": ("", 1.0),
    "threads": ("", 1.0),
    "new files of an iteration": ("", 1.02),
    "new bytes of an iteration": ("KiB", 1.1),
    "CPU time of an iteration": ("ms", 1.25),
}
SUFFIXES = (".jsonl", ".parquet")
READING_PAUSE_SECONDS = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    options = parser.parse_args()
    memory_disk = Path("/dev/shm")
    scratch = Path(
        tempfile.mkdtemp(prefix="soak-", dir=memory_disk if memory_disk.is_dir() else None)
    )
    start = time.monotonic()
    try:
        trainer = os.fork()
        if not trainer:
            train(scratch, options.iterations)
        reader = LiveReader(scratch / "run")
        while os.waitid(os.P_PID, trainer, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            reader.read()
            time.sleep(READING_PAUSE_SECONDS)
        code = os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1])
        samples = [json.loads(line) for line in (scratch / "samples.jsonl").open()]
        rows, grown = compare_tenths(samples)
        table = format_table(rows)
        minutes = (time.monotonic() - start) / 60
        remark = (
            f"{len(samples):,} iterations in {minutes:.0f} minutes, {datetime.now(UTC):%Y-%m-%d}; "
            f"a reader beside it read all logs and the newest files {reader.readings:,} times, "
            f"with {len(reader.faults)} errors."
        )
        print(f"{table}\n\n{remark}")
        for problem in [*grown, *reader.faults[:5]]:
            print(problem)
        if options.page:
            write_table(options.page, f"{table}\n\n{remark}")
        return 1 if code or grown or reader.faults else 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# -- the run ---------------------------------------------------------------------------------------


def train(scratch: Path, iterations: int) -> NoReturn:
    """Train in this process, take a sample of it after every iteration, and end it."""
    code = 1
    try:
        from small_run import small_config

        from counterpoise import loop

        class Sampler(loop.RunObserver):
            def on_iteration(self, record: dict[str, Any]) -> None:
                write_sample(scratch, record["iteration"])

        config = small_config(
            scratch,
            f"loop.iterations={iterations}",
            "loop.checkpoint_every=20",
            "evaluate.every=0",
            "balance.tau=0",  # every iteration takes a step
            "update.lr=1e-7",  # so that responses stay as long as they are
            "verify.reward_timeout_seconds=60",
        )
        loop.train(config, scratch / "run", observer=Sampler())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def write_sample(scratch: Path, iteration: int) -> None:
    """Counts the iteration's own files and the logs, which costs the same in every iteration."""
    status = Path("/proc/self/status").read_text()
    run = scratch / "run"
    step_files = [
        path
        for kind in ("rollouts", "tokens", "pushes")
        for path in (run / kind / f"step_{iteration:05d}{suffix}" for suffix in SUFFIXES)
        if path.is_file()
    ]
    sample = {
        "resident memory": int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024,
        "open descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "new files of an iteration": len(step_files),
        "step bytes": sum(path.stat().st_size for path in step_files) / 1024,
        "log bytes": sum(path.stat().st_size for path in run.glob("*.jsonl")) / 1024,
        "cpu": 1000 * time.process_time(),
    }
    with (scratch / "samples.jsonl").open("a") as file:
        file.write(json.dumps(sample) + "\n")


# -- the reader ------------------------------------------------------------------------------------


@dataclass(slots=True)
class LiveReader:
    """Reads a run that is being written."""

    run: Path
    readings: int = 0
    faults: list[str] = field(default_factory=list)

    def read(self) -> None:
        from counterpoise.report.traces import read_pushes, read_trace
        from counterpoise.store.folder import RunFolder
        from counterpoise.store.schema import LOGS

        if not (self.run / "metrics.jsonl").exists():
            return
        try:
            folder = RunFolder.open(self.run)
            lines = {log: folder.read(log) for log in LOGS}
            newest = lines["metrics"][-1]["iteration"] if lines["metrics"] else 0
            if [line["iteration"] for line in lines["metrics"]] != list(range(1, newest + 1)):
                self.faults.append(f"lines of metrics.jsonl are missing before {newest}")
            if newest:
                folder.read_rollouts(newest)
            if newest and lines["metrics"][-1]["steps"]:  # else there are no tokens
                read_trace(self.run, newest)
                read_pushes(self.run, newest)
            self.readings += 1
        except Exception:
            self.faults.append(traceback.format_exc()[-600:])


# -- the table -------------------------------------------------------------------------------------


def compare_tenths(
    samples: list[dict[str, float]],
) -> tuple[list[tuple[str, str, float, float]], list[str]]:
    """(measure, unit, first tenth, last tenth), and the measures that grew."""
    for later, earlier in zip(samples[:0:-1], samples[-2::-1], strict=True):
        new_log_bytes = later["log bytes"] - earlier["log bytes"]
        later["new bytes of an iteration"] = later["step bytes"] + new_log_bytes
        later["CPU time of an iteration"] = later["cpu"] - earlier["cpu"]
    tenth = max(1, len(samples) // 10)
    first_tenth, last_tenth = samples[tenth : 2 * tenth], samples[-tenth:]
    rows, grown = [], []
    for measure, (unit, allowed) in MEASURES.items():
        before = statistics.mean(sample[measure] for sample in first_tenth)
        after = statistics.mean(sample[measure] for sample in last_tenth)
        rows.append((measure, unit, before, after))
        if after > allowed * before + 1e-9:
            grown.append(f"{measure} grew from {before:.1f} to {after:.1f} {unit}")
    return rows, grown


def format_table(rows: list[tuple[str, str, float, float]]) -> str:
    lines = ["|measure|second tenth|last tenth|", "|---|---|---|"]
    lines += [
        f"|{measure}|{before:.1f} {unit}|{after:.1f} {unit}|"
        for measure, unit, before, after in rows
    ]
    return "\n".join(lines).replace(" |", "|")


def write_table(page: Path, table: str) -> None:
    text = page.read_text(encoding="utf-8")
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    replaced = re.sub(pattern, lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.DOTALL)
    page.write_text(replaced, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
