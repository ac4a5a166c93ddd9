"""The numbers of one benchmark: rewards of every sample -> avg@n, pass@k, maj@k, lengths.

    avg@n = mean over problems of the share of their n samples that is right     (n = 1: pass@1)

pass@k and maj@k are given for k = 1, 2, 4, ... up to n. Every number is a mean over problems, with
the interval of prompt_intervals.py; lengths and the share cut off are plain means over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from counterpoise.lab.evaluate.majority import maj_at_k
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile, ResultHeader
from counterpoise.statistics.pass_at_k import pass_at_k
from counterpoise.statistics.prompt_intervals import Estimate, share


@dataclass(frozen=True, slots=True)
class BenchmarkScore:
    """Of the problems judged so far: `problems` of `of`."""

    header: ResultHeader
    problems: int
    average: Estimate
    pass_at: dict[int, Estimate]
    maj_at: dict[int, Estimate]
    truncated: float  # share of samples cut off at the length limit
    unboxed: float  # share of samples without an answer in a box
    mean_tokens: float

    @property
    def whole(self) -> bool:
        return self.problems == self.header.problems

    @property
    def measure(self) -> str:
        return "pass@1" if self.header.samples == 1 else f"avg@{self.header.samples}"

    def to_json(self) -> dict[str, Any]:
        header = asdict(self.header)
        return {
            **{k: header[k] for k in ("model", "benchmark", "temperature", "top_p", "samples")},
            "measure": self.measure,
            "problems": self.problems,
            "of": self.header.problems,
            **asdict(self.average),
            "pass_at": {str(k): asdict(found) for k, found in self.pass_at.items()},
            "maj_at": {str(k): asdict(found) for k, found in self.maj_at.items()},
            "truncated": self.truncated,
            "unboxed": self.unboxed,
            "mean_tokens": self.mean_tokens,
            **{k: header[k] for k in ("template", "max_new_tokens", "sampler", "seed", "verifier")},
            "weights": header["weights"],
        }


def score_benchmark(cell: ResultFile) -> BenchmarkScore | None:
    """None while no problem is judged."""
    if not cell.judged:
        return None
    judged = list(cell.judged.values())
    ks = sample_counts(cell.header.samples)
    return BenchmarkScore(
        header=cell.header,
        problems=len(judged),
        average=share(solved_shares(judged)),
        pass_at={
            k: share([pass_at_k(count_right(one), len(one.rewards), k) for one in judged])
            for k in ks
        },
        maj_at={k: share([_majority(one, k) for one in judged]) for k in ks},
        truncated=_mean([not ended for one in judged for ended in one.finished]),
        unboxed=_mean([vote is None for one in judged for vote in one.votes]),
        mean_tokens=_mean([length for one in judged for length in one.tokens]),
    )


def solved_shares(judged: Sequence[JudgedProblem]) -> list[float]:
    """x_p: the share of a problem's samples that is right, of every problem."""
    return [count_right(one) / len(one.rewards) for one in judged]


def solved_any(judged: Sequence[JudgedProblem]) -> list[float]:
    """pass@n of every problem: whether any of its samples is right."""
    return [float(count_right(one) > 0) for one in judged]


def count_right(one: JudgedProblem) -> int:
    """Samples with a reward above 0: one of the user's may be any number."""
    return sum(reward > 0 for reward in one.rewards)


def sample_counts(n: int) -> list[int]:
    """
    Example:
        >>> powers(32), powers(1), powers(6)
        ([1, 2, 4, 8, 16, 32], [1], [1, 2, 4, 6])
    """
    return [*(2**i for i in range(n.bit_length()) if 2**i < n), n]


def _majority(one: JudgedProblem, k: int) -> float:
    return maj_at_k(one.votes, [reward > 0 for reward in one.rewards], k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
