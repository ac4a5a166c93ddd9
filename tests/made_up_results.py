"""Evaluations made by hand, for the tests of what is made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise.lab.evaluate.result_files import (
    JudgedProblem,
    ResultFile,
    ResultHeader,
    write_order,
)

HEADER = ResultHeader(
    model="a", name="out/a/model", weights="0", benchmark="aime24", title="AIME24", problems=2,
    problems_digest="0", temperature=0.6, top_p=0.95, samples=4, template="chat",
    max_new_tokens=64, sampler="native", device="cpu", dtype="float32", rows=64, seed=0,
    verifier="math",
)  # fmt: skip


def judged(problem: str, rewards: Sequence[float], text: str = "so \\boxed{%s}") -> JudgedProblem:
    """Right samples box 1, wrong ones 2; every second one is cut off."""
    votes = ["1" if reward else "2" for reward in rewards]
    return JudgedProblem(
        id=problem,
        problem=f"problem {problem}",
        answer="1",
        rewards=list(rewards),
        votes=votes,
        tokens=[10 * (g + 1) for g in range(len(rewards))],
        finished=[g % 2 == 0 for g in range(len(rewards))],
        responses=[text.replace("%s", vote) for vote in votes],
    )


def cell(folder: Path, rewards: Mapping[str, Sequence[float]], **changes: object) -> ResultFile:
    """A whole file on disk."""
    samples = len(next(iter(rewards.values())))
    told = {"problems": len(rewards), "samples": samples} | changes
    made = ResultFile(folder, replace(HEADER, **told))  # type: ignore[arg-type]
    made.open()
    for problem, found in rewards.items():
        made.write(judged(problem, found))
    return made


def evaluation(folder: Path, cells: Sequence[ResultFile]) -> Path:
    write_order(folder, [cell.header for cell in cells])
    return folder
