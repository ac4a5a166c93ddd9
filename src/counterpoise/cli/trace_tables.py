"""The tables that `poise trace` prints."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from counterpoise.errors import format_count
from counterpoise.report.probe_trace.agreement import Agreement
from counterpoise.report.probe_trace.influence import (
    Influence,
    ProblemTrace,
    PromptTrace,
    RolloutEffect,
    RunTrace,
    UpdateEffect,
    ranked_influences,
)
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.report.traces import Vocabulary, read_vocabulary
from counterpoise.statistics.bootstrap import Interval
from counterpoise.terminal import shorten

MAX_TEXT = 300  # characters of a problem


def print_run(trace: RunTrace, console: Console, top: int) -> None:
    """Every problem's movement, and the prompts with the largest influence."""
    _print_agreement(trace.agreement, console)
    table = _make_table("held-out problem", "half", "updates", "right", "predicted", "wrong")
    followed = {name: sums for name, sums in trace.problems.items() if sums["updates"]}
    ordered = sorted(followed, key=lambda problem: -followed[problem]["right"])
    shown = ordered if len(ordered) <= 2 * top else [*ordered[:top], *ordered[-top:]]
    for problem in shown:
        sums = followed[problem]
        table.add_row(
            problem,
            trace.halves[problem],
            f"{sums['updates']:.0f}",
            _nats(sums["right"]),
            _nats(sums["predicted"]),
            _nats(sums["wrong"]),
        )
    console.print()
    console.print(table)
    if len(shown) < len(ordered):
        hidden = format_count(len(ordered) - len(shown), "problem")
        console.print(f"{hidden} more: --top, --json", highlight=False)
    if len(followed) < len(trace.problems):
        unfollowed = format_count(len(trace.problems) - len(followed), "problem")
        console.print(f"{unfollowed}: no right answer was followed", highlight=False)
    console.print()
    _print_influences(trace.prompts, "the right answers on average", console, top)


def print_problem(trace: ProblemTrace, probed_run: ProbedRun, console: Console, top: int) -> None:
    """One held-out problem: update by update, then prompts, rollouts and tokens."""
    console.print(f"{trace.problem_id} ({trace.half} half), answer {trace.answer}", highlight=False)
    console.print(shorten(trace.problem, MAX_TEXT), highlight=False)
    console.print()
    _print_agreement(trace.agreement, console)
    vocabulary = read_vocabulary(probed_run.run.path)
    for kind in ("right", "wrong"):
        updates = [update for update in trace.updates if update.kind == kind]
        if updates:
            _print_updates(updates, kind, vocabulary, console, top)
        else:
            console.print(f"\nno {kind} answer was followed", highlight=False)
    if trace.prompts:
        console.print()
        _print_influences(trace.prompts, "its right answer", console, top)
        _print_both_ways(trace, console, top)
        _print_rollouts(trace.rollouts, console)


def print_prompt(trace: PromptTrace, console: Console, top: int) -> None:
    """One training prompt: the problems that it helped and hurt."""
    count = format_count(len(trace.iterations), "traced update")
    console.print(f"{trace.prompt_id}: in {count}", highlight=False)
    console.print(shorten(trace.prompt, MAX_TEXT), highlight=False)
    console.print()
    _print_agreement(trace.agreement, console)
    helped, hurt = ranked_influences(
        {name: kinds["right"] for name, kinds in trace.problems.items() if kinds["right"].updates},
        top,
    )
    for title, problems in (("helped most", helped), ("hurt most", hurt)):
        table = _make_table(title, "right", "raised in updates", "wrong", "really moved")
        for name, influence in problems:
            table.add_row(
                name,
                _nats(influence.total),
                _share_of_updates(influence),
                _nats(trace.problems[name]["wrong"].total),
                _nats(trace.moved.get(name, math.nan)),
            )
        console.print()
        console.print(table if problems else f"no held-out problem was {title.split()[0]}")


def print_parameters(probed_run: ProbedRun, console: Console) -> None:
    """Say what influence was computed through, unless it is the output layer."""
    if probed_run.run.config.monitor.takes_gradients:
        console.print(
            f"prompts and rollouts: through {probed_run.through}; single tokens: through the "
            "output layer"
        )


def _print_agreement(agreement: Agreement, console: Console) -> None:
    updates = len(agreement.updates)
    above = sum(update.correlation[1] > 0 for update in agreement.updates)
    console.print(
        f"predicted and real change of the answers, {format_count(updates, 'update')}: mean rank "
        f"correlation {_interval(agreement.correlation)}; {above} of the updates have an interval "
        f"above 0; {agreement.explained:.0%} of the movement explained (median)",
        highlight=False,
    )
    if agreement.momentum:
        console.print(
            "this correlation is that of the prediction with AdamW's momentum; without momentum it "
            f"is {agreement.plain_correlation:.2f}",
            highlight=False,
        )


def _print_updates(
    updates: list[UpdateEffect], kind: str, vocabulary: Vocabulary, console: Console, top: int
) -> None:
    total, predicted = (
        sum(update.moved for update in updates),
        sum(update.predicted for update in updates),
    )
    console.print(
        f"\n{kind} answer: moved {_nats(total)}, predicted {_nats(predicted)} in "
        f"{format_count(len(updates), 'update')}",
        highlight=False,
    )
    table = _make_table(
        "iteration",
        "sampled in",
        "moved",
        "predicted",
        "= up",
        "+ down",
        "most moved tokens",
    )
    shown = updates if len(updates) <= 2 * top else [*updates[:top], *updates[-top:]]
    for update in shown:
        tokens = [
            f"{vocabulary[token]!r} {_nats(change)}" for token, change in update.changed_tokens
        ]
        table.add_row(
            str(update.iteration),
            str(update.sampled_in) if update.sampled_in else "probe_file",
            _nats(update.moved),
            _nats(update.predicted),
            _nats(update.raised),
            _nats(update.lowered),
            "  ".join(tokens),
        )
    console.print(table)
    if len(shown) < len(updates):
        hidden = format_count(len(updates) - len(shown), "update")
        console.print(f"{hidden} between them: --top, --json", highlight=False)


def _print_influences(
    influences: dict[str, Influence], target: str, console: Console, top: int
) -> None:
    raising, lowering = ranked_influences(influences, top)
    for title, sources in (
        (f"raised {target} most", raising),
        (f"lowered {target} most", lowering),
    ):
        table = _make_table(title, "predicted", "raised in updates")
        for name, influence in sources:
            table.add_row(name, _nats(influence.total), _share_of_updates(influence))
        if sources:
            console.print(table)
            console.print()


def _print_both_ways(trace: ProblemTrace, console: Console, top: int) -> None:
    table = _make_table("moved its right answer most, up or down", "without signs", "predicted")
    ordered = sorted(trace.both_ways.items(), key=lambda item: -item[1])
    for prompt, change in ordered[:top]:
        table.add_row(prompt, f"{change:.3g}", _nats(trace.prompts[prompt].total))
    console.print(table)
    console.print()


def _print_rollouts(rollouts: list[RolloutEffect], console: Console) -> None:
    for title, effects in (
        ("rollouts that raised it most", [e for e in rollouts if e.change > 0]),
        ("rollouts that lowered it most", [e for e in reversed(rollouts) if e.change < 0]),
    ):
        if not effects:
            continue
        console.print(title, style="bold", highlight=False)
        for effect in effects:
            console.print(
                f"  {_nats(effect.change)}  iteration {effect.iteration}  {effect.group} "
                f"#{effect.index}  advantage {effect.advantage:+.2f}",
                highlight=False,
            )
            if effect.response:
                console.print(f"      {effect.response!r}", highlight=False)
            if effect.tokens:
                tokens = [
                    f"{text!r}@{position} {_nats(push)}" for position, text, push in effect.tokens
                ]
                console.print(f"      by {'  '.join(tokens)}", highlight=False)


def _make_table(*titles: str) -> Table:
    """A plain table: texts to the left, numbers to the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, title in enumerate(titles):
        is_text = index == 0 or title in ("half", "most moved tokens")
        table.add_column(title, justify="left" if is_text else "right")
    return table


def _share_of_updates(influence: Influence) -> str:
    return f"{influence.raising} of {influence.updates}"


def _nats(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.3g}"


def _interval(interval: Interval) -> str:
    value, low, high = interval
    if math.isnan(value):
        return "undefined"
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"
