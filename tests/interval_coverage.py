"""Coverage of our intervals over prompts, measured on simulated evaluations.

    difficulty_p ~ Beta(m k, (1 - m) k),  k = 1/rho - 1       m: true success, rho: correlation of
    x_p ~ Binomial(samples, difficulty_p) / samples           two samples of one problem

Compared with: the same without the correction c of statistics/prompt_intervals.py, Student's t over
problems, and Wilson's interval with all samples taken as independent. `python
tests/interval_coverage.py` prints the table in about four minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.seeds import rng_for
from counterpoise.statistics import prompt_intervals

Values = NDArray[np.float64]  # [P]
Bounds = tuple[float, float]
SIZES = ((30, 32), (40, 32), (128, 4), (272, 1), (500, 1))  # problems, samples
MEANS = (0.05, 0.1, 0.3, 0.5, 0.9)
CORRELATIONS = (0.2, 0.5, 0.8)
# (problems, samples) of the paper's benchmarks.
PAPER_SIZES = (
    (30, 32),
    (30, 32),
    (40, 32),
    (675, 1),
    (272, 1),
    (500, 1),
)
# True success on each benchmark: the paper's baselines, and a weak model.
MODELS = {
    "Qwen3-4B-Base": (0.283, 0.242, 0.58, 0.532, 0.445, 0.862),
    "Qwen3-1.7B-Base": (0.124, 0.094, 0.37, 0.345, 0.283, 0.698),
    "a weak model": (0.02, 0.02, 0.1, 0.1, 0.08, 0.2),
}


def shipped_interval(x_P: Values, samples: int) -> Bounds:
    estimate = prompt_intervals.share_estimate(x_P)
    return estimate.low, estimate.high


def uncorrected_interval(x_P: Values, samples: int) -> Bounds:
    P, m, variance = len(x_P), float(x_P.mean()), float(x_P.var(ddof=1))
    n = P * m * (1 - m) / variance if variance else P
    return prompt_intervals.wilson_interval(m, n, prompt_intervals.t_critical(P - 1))


def student_interval(x_P: Values, samples: int) -> Bounds:
    P, m = len(x_P), float(x_P.mean())
    half_width = prompt_intervals.t_critical(P - 1) * float(x_P.std(ddof=1)) / P**0.5
    return m - half_width, m + half_width


def independent_interval(x_P: Values, samples: int) -> Bounds:
    return prompt_intervals.wilson_interval(float(x_P.mean()), len(x_P) * samples)


METHODS: dict[str, Callable[[Values, int], Bounds]] = {
    "ours": shipped_interval,
    "without c": uncorrected_interval,
    "Student's t": student_interval,
    "samples independent": independent_interval,
}


def coverage(
    method: str, problems: int, samples: int, mean: float, rho: float, runs: int = 20_000
) -> float:
    """The share of `runs` simulated evaluations whose interval contains `mean`."""
    values = simulate_evaluations(problems, samples, mean, rho, runs)
    bounds = np.array([METHODS[method](x_P, samples) for x_P in values])
    return float(((bounds[:, 0] <= mean) & (mean <= bounds[:, 1])).mean())


def average_coverage(means: Sequence[float], rho: float, runs: int = 3000) -> float:
    """The same for the average over benchmarks of the paper's six sizes."""
    simulations = [
        simulate_evaluations(problems, samples, mean, rho, runs, index)
        for index, ((problems, samples), mean) in enumerate(zip(PAPER_SIZES, means, strict=True))
    ]
    truth = sum(means) / len(means)
    averages = [
        prompt_intervals.average_estimates(
            [prompt_intervals.share_estimate(values[run_index]) for values in simulations]
        )
        for run_index in range(runs)
    ]
    return sum(estimate.low <= truth <= estimate.high for estimate in averages) / runs


def simulate_evaluations(
    problems: int, samples: int, mean: float, rho: float, runs: int, index: int = 0
) -> NDArray[np.float64]:
    """Simulated mean success of every problem: [runs, P].

    Benchmarks of equal size and success get different random numbers by their `index`.
    """
    rng = rng_for(0, f"coverage/{problems}/{samples}/{mean}/{rho}", index)
    # A beta distribution with this concentration gives two samples of a problem correlation rho.
    concentration = 1 / rho - 1
    difficulty = rng.beta(mean * concentration, (1 - mean) * concentration, size=(runs, problems))
    return rng.binomial(samples, difficulty) / samples


def main() -> None:
    print(f"| problems x samples | success | correlation | {' | '.join(METHODS)} |")
    print("|---" * (3 + len(METHODS)) + "|")
    for problems, samples in SIZES:
        for mean in MEANS:
            # A single sample per problem has no correlation.
            for rho in CORRELATIONS if samples > 1 else CORRELATIONS[1:2]:
                shares = [coverage(method, problems, samples, mean, rho) for method in METHODS]
                columns = " | ".join(f"{100 * share:.1f}" for share in shares)
                correlation = f"{rho:g}" if samples > 1 else "-"
                print(f"| {problems} x {samples} | {100 * mean:g} % | {correlation} | {columns} |")
    for name, means in MODELS.items():
        shares = [average_coverage(means, rho) for rho in CORRELATIONS]
        print(f"average of six, {name}: " + ", ".join(f"{100 * share:.1f}" for share in shares))


if __name__ == "__main__":
    main()
