"""What `poise trace --json` prints, as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from counterpoise.report.probe_trace.agreement import Agreement
from counterpoise.report.probe_trace.influence import (
    Influence,
    ProblemTrace,
    PromptTrace,
    RunTrace,
)


def trace_to_data(trace: ProblemTrace | PromptTrace | RunTrace) -> dict[str, Any]:
    """The trace as JSON values; `agreement` has every update."""
    agreement = _agreement_to_data(trace.agreement)
    if isinstance(trace, ProblemTrace):
        return {
            "problem_id": trace.problem_id,
            "problem": trace.problem,
            "answer": trace.answer,
            "half": trace.half,
            # `drawn` is the name that `sampled_in` had at first.
            "updates": [asdict(update) | {"drawn": update.sampled_in} for update in trace.updates],
            "prompts": _influences_to_data(trace.prompts),
            "both_ways": trace.both_ways,
            "rollouts": [asdict(effect) for effect in trace.rollouts],
            "agreement": agreement,
        }
    if isinstance(trace, PromptTrace):
        problems = {
            problem: {kind: asdict(influence) for kind, influence in by_kind.items()}
            | {"moved": trace.moved.get(problem)}
            for problem, by_kind in trace.problems.items()
        }
        return {
            "prompt_id": trace.prompt_id,
            "prompt": trace.prompt,
            "iterations": trace.iterations,
            "problems": problems,
            "agreement": agreement,
        }
    return {
        "problems": {
            problem: {**sums, "half": trace.halves.get(problem)}
            for problem, sums in trace.problems.items()
        },
        "prompts": _influences_to_data(trace.prompts),
        "agreement": agreement,
    }


def _influences_to_data(influences: dict[str, Influence]) -> dict[str, Any]:
    return {name: asdict(influence) for name, influence in influences.items()}


def _agreement_to_data(agreement: Agreement) -> dict[str, Any]:
    names = ("correlation", "low", "high")
    return {
        **dict(zip(names, agreement.correlation, strict=True)),
        "momentum": agreement.momentum,
        "plain_correlation": agreement.plain_correlation,
        "explained": agreement.explained,
        "updates": [
            {
                "iteration": update.iteration,
                "answers": update.answers,
                **dict(zip(names, update.correlation, strict=True)),
                "plain_correlation": update.plain_correlation,
                "explained": update.explained,
            }
            for update in agreement.updates
        ],
    }
