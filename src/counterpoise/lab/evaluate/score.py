"""Scores of one benchmark, from the rewards of every sample: avg@n, pass@k, maj@k, lengths.

    avg@n = mean over problems of the share of their n samples that is right     (n = 1: pass@1)

pass@k and maj@k are given for k = 1, 2, 4, ... up to n. Every score is a mean over problems, with
the interval of prompt_intervals.py; lengths and the truncated share are plain means over all
samples. Where rewards are graded (not all 0 or 1) the score is the mean reward. Problems without
any reward (nan, as a user's function returned None) are left out; a single sample without one
counts as wrong in shares and not at all in mean rewards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from counterpoise.lab.evaluate.majority import maj_at_k
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile, ResultHeader
from counterpoise.statistics.pass_at_k import pass_at_k
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    mean_estimate,
    share_estimate,
)


@dataclass(frozen=True, slots=True)
class BenchmarkScore:
    """Scores over the `problems` judged so far."""

    header: ResultHeader
    problems: int
    average: IntervalEstimate
    pass_at: dict[int, IntervalEstimate]
    maj_at: dict[int, IntervalEstimate]
    truncated: float  # share of samples that hit the length limit
    unboxed: float  # share of samples without a boxed answer
    mean_tokens: float
    unscored: int = 0  # problems without any reward
    graded: bool = False  # `average` is the mean reward

    @property
    def is_complete(self) -> bool:
        return self.problems + self.unscored == self.header.problems

    @property
    def measure(self) -> str:
        if self.graded:
            return "mean reward"
        return "pass@1" if self.header.samples == 1 else f"avg@{self.header.samples}"

    def to_json(self) -> dict[str, Any]:
        header = asdict(self.header)
        return {
            **{
                field: header[field]
                for field in ("model", "benchmark", "temperature", "top_p", "samples")
            },
            "measure": self.measure,
            "problems": self.problems,
            "of": self.header.problems,
            **asdict(self.average),
            "pass_at": {str(field): asdict(estimate) for field, estimate in self.pass_at.items()},
            "maj_at": {str(field): asdict(estimate) for field, estimate in self.maj_at.items()},
            **({"unscored": self.unscored} if self.unscored else {}),
            "truncated": self.truncated,
            "unboxed": self.unboxed,
            "mean_tokens": self.mean_tokens,
            **{
                field: header[field]
                for field in ("template", "max_new_tokens", "sampler", "seed", "verifier")
            },
            "weights": header["weights"],
        }


def score_benchmark(result_file: ResultFile, *, graded: bool = False) -> BenchmarkScore | None:
    """Scores of a result file; None while no problem is judged.

    Graded rewards have no pass@k and maj@k, since nothing says which of them is a success.
    """
    problems = [problem for problem in result_file.judged.values() if has_reward(problem)]
    if not problems:
        return None
    sample_sizes = [] if graded else sample_counts(result_file.header.samples)
    return BenchmarkScore(
        header=result_file.header,
        problems=len(problems),
        average=mean_estimate(mean_rewards(problems))
        if graded
        else share_estimate(solved_shares(problems)),
        pass_at={
            k: share_estimate(
                [pass_at_k(count_right(problem), len(problem.rewards), k) for problem in problems]
            )
            for k in sample_sizes
        },
        maj_at={
            k: share_estimate([_majority(problem, k) for problem in problems]) for k in sample_sizes
        },
        truncated=_mean(
            [not is_finished for problem in problems for is_finished in problem.finished]
        ),
        unboxed=_mean([vote is None for problem in problems for vote in problem.votes]),
        mean_tokens=_mean([length for problem in problems for length in problem.tokens]),
        unscored=len(result_file.judged) - len(problems),
        graded=graded,
    )


def has_reward(problem: JudgedProblem) -> bool:
    """Whether any sample of the problem has a reward."""
    return not all(map(math.isnan, problem.rewards))


def mean_rewards(problems: Sequence[JudgedProblem]) -> list[float]:
    """The mean reward of every problem over its samples that have one."""
    return [
        _mean([reward for reward in problem.rewards if not math.isnan(reward)])
        for problem in problems
    ]


def solved_shares(problems: Sequence[JudgedProblem]) -> list[float]:
    """x_p, the share of right samples, of every problem."""
    return [count_right(problem) / len(problem.rewards) for problem in problems]


def solved_any(problems: Sequence[JudgedProblem]) -> list[float]:
    """pass@n of every problem: 1.0 if any of its samples is right."""
    return [float(count_right(problem) > 0) for problem in problems]


def count_right(problem: JudgedProblem) -> int:
    """Number of right samples: reward above 0, since a user's reward may be any number."""
    return sum(reward > 0 for reward in problem.rewards)


def sample_counts(n: int) -> list[int]:
    """The k of pass@k: powers of two below n, and n.

    Example:
        >>> sample_counts(32), sample_counts(1), sample_counts(6)
        ([1, 2, 4, 8, 16, 32], [1], [1, 2, 4, 6])
    """
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def _majority(problem: JudgedProblem, k: int) -> float:
    return maj_at_k(problem.votes, [reward > 0 for reward in problem.rewards], k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
