"""One run file through two engines: do they learn alike?

    python benchmarks/engines.py --trl .venvs/trl/bin/python --seeds 6 --out out/engines

Every seed trains the embedded model with the native engine and with TRL: the same prompts in every
iteration, the same credit, balance, plan and optimizer, other random numbers in the sampler. The
table has success on the prompts of each iteration and on held-out problems: the mean over seeds and
its 95 % interval (Student), and the difference of the engines, seed by seed. A run that is in the
folder already is not repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from counterpoise.statistics.student import SeedMean, student_mean
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import RunFolder

ENGINES = ("native", "trl")
SETS = (
    "evaluate.every=5", "monitor.every=0", "store.tokens=false", "store.rollouts=false",
    "store.report=false", "store.model=false", "loop.threads=1",
)  # fmt: skip
Curve = dict[str, float]  # row of the table -> success


def train(engine: str, python: str, seed: int, iterations: int, out: Path) -> None:
    if is_finished(out, iterations):
        return
    words = [python, "-m", "counterpoise.cli", "train", "demo", "--engine", engine]
    words += ["--out", str(out), "--set", f"loop.seed={seed}"]
    words += ["--set", f"loop.iterations={iterations}"]
    for option in SETS:
        words += ["--set", option]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def curve(out: Path) -> Curve:
    folder = RunFolder.open(out)
    found = {f"sampled {line['iteration']}": line["success"] for line in folder.read("metrics")}
    held = {f"held-out {line['iteration']}": line["mean"] for line in folder.read("evaluations")}
    return found | held


def shown(mean: SeedMean, signed: bool = False) -> str:
    sign = "+" if signed else ""
    low, high = 100 * mean.low, 100 * mean.high
    return f"{100 * mean.value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def table(curves: dict[str, list[Curve]]) -> str:
    """A line a row of the curves; `in` says whether each mean lies in the other's interval."""
    lines = ["| success, % | native | TRL | TRL - native | in |", "|---|---|---|---|---|"]
    for name in curves["native"][0]:
        native, trl = ([c[name] for c in curves[engine]] for engine in ENGINES)
        a, b = student_mean(native), student_mean(trl)
        apart = student_mean([y - x for x, y in zip(native, trl, strict=True)])
        inside = a.low <= b.value <= a.high and b.low <= a.value <= b.high
        cells = (name, shown(a), shown(b), shown(apart, signed=True), "yes" if inside else "no")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl", default=sys.executable, help="a Python that has TRL 1.16")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/engines"))
    given = parser.parse_args()
    pythons = {"native": sys.executable, "trl": given.trl}
    curves: dict[str, list[Curve]] = {engine: [] for engine in ENGINES}
    for seed in range(given.seeds):
        for engine in ENGINES:
            out = given.out / f"{engine}-{seed}"
            train(engine, pythons[engine], seed, given.iterations, out)
            curves[engine].append(curve(out))
    print(table(curves))


if __name__ == "__main__":
    main()
