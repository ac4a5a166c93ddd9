"""The finding about prompts that push right held-out answers down, update after update.

    P(X >= lowering | updates, 1/2) < 0.05        X: lowering updates, if signs were coin tosses

It is a note, never a warning: the pushes predict how held-out answers move only as far as their
rank correlation says, and a few prompts pass the test by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from counterpoise.errors import PoiseError
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.records import (
    NEEDS_UPDATE,
    AuditFinding,
    Example,
    Measurement,
    unsupported,
)
from counterpoise.report.probe_trace.influence import Influence, trace_run
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.store.folder import is_imported, is_run

TITLE = "Prompts that lower held-out answers"
MIN_UPDATES = 5  # in fewer, no sequence of signs is unlikely
TAIL = 0.05
SHOWN_PROMPTS = 5


def lowering_prompts(run: AuditRun) -> AuditFinding:
    """Prompts whose rows lower the mean right held-out answer in most of their updates."""
    if run.took_no_step:
        return unsupported(TITLE, NEEDS_UPDATE)
    is_run_folder = is_run(run.path) or is_imported(run.path)
    if not (is_run_folder and (run.path / "probes.jsonl").is_file()):
        return unsupported(TITLE, "probes/", remedy=" and ".join(_options_to_measure(run)))
    try:
        probed_run = ProbedRun.open(run.path)
    except PoiseError:  # no update can be traced, which the other findings do not need
        return unsupported(
            TITLE,
            "probes/ and the rows of plans.jsonl of a finished iteration",
            remedy=" and ".join([*_options_to_measure(run), "store.report = true"]),
        )
    trace = trace_run(probed_run)
    frequent = {
        prompt: influence
        for prompt, influence in trace.prompts.items()
        if influence.updates >= MIN_UPDATES
    }
    lowering = {
        prompt: influence for prompt, influence in frequent.items() if is_unlikely(influence)
    }
    by_chance = sum(chance_of_passing(influence.updates) for influence in frequent.values())
    worst = sorted(lowering, key=lambda prompt: lowering[prompt].total)[:SHOWN_PROMPTS]
    correlation, low, high = trace.agreement.correlation
    is_bounded = math.isfinite(low) and math.isfinite(high)
    bounds = (low, high) if is_bounded else (None, None)
    return AuditFinding(
        title=TITLE,
        level="note" if len(lowering) > by_chance else "clear",
        verdict=f"{len(lowering)} of {len(frequent)} prompts with {MIN_UPDATES} updates or more "
        f"lowered right held-out answers in {_count_lowering(lowering.values())}; {by_chance:.1f} "
        "prompts would by chance",
        measurements=(
            Measurement("rank correlation of predicted and real change", correlation, *bounds),
            Measurement(
                "movement explained, median update", trace.agreement.explained, unit="share"
            ),
        ),
        threshold="a note if more prompts than expected by chance lower right answers that often "
        f"(one-sided, p < {TAIL:g} for each prompt)",
        cost="unknown: a push predicts the order of movements, not success",
        remedy="poise trace RUN --prompt ID shows what a prompt did; check its reference answer",
        examples=tuple(Example(prompt, None, _describe(lowering[prompt])) for prompt in worst),
    )


def _options_to_measure(run: AuditRun) -> list[str]:
    """What makes the next run measure its updates on held-out answers; [] if it is set already."""
    if run.config is None or not run.config.monitor.follows_probes:
        return ["monitor.probe = 32"]
    return [] if run.config.monitor.probe_every == 1 else ["monitor.probe_every = 1"]


def is_unlikely(influence: Influence) -> bool:
    """Whether so many lowering updates would be rare if each sign were a coin toss."""
    return binomial_tail(influence.updates - influence.raising, influence.updates) < TAIL


def chance_of_passing(updates: int) -> float:
    """The probability that a prompt without any tendency passes the test.

    Example:
        >>> chance_of_passing(5)
        0.03125
    """
    tails = [binomial_tail(lowering, updates) for lowering in range(updates + 1)]
    return max((tail for tail in tails if tail < TAIL), default=0.0)


def binomial_tail(successes: int, trials: int) -> float:
    """P(X >= successes) of a fair coin.

    Example:
        >>> binomial_tail(5, 5), binomial_tail(0, 5)
        (0.03125, 1.0)
    """
    ways = sum(math.comb(trials, count) for count in range(successes, trials + 1))
    return ways / 2**trials


def _count_lowering(influences: Iterable[Influence]) -> str:
    """
    Example:
        >>> _count_lowering([Influence(-1.0, updates=35, raising=5)])
        '30 of their 35 updates'
    """
    counts = [
        (influence.updates - influence.raising, influence.updates) for influence in influences
    ]
    if not counts:
        return "most of their updates"
    lowered, updates = (sum(column) for column in zip(*counts, strict=True))
    return f"{lowered} of their {updates} updates"


def _describe(influence: Influence) -> str:
    lowering = influence.updates - influence.raising
    return f"lowered them in {lowering} of {influence.updates} updates, {influence.total:+.2g} nats"
