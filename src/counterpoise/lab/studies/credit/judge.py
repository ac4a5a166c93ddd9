"""What the records of the credit study say: numbers and verdict. The figures: draw.py."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.lab.experiments.compare import FEWEST_SEEDS, as_number, format_points
from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.training import Trained, trained, untrained
from counterpoise.lab.studies.credit.value_correlation import Tokens, Valued, valued
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Finding, Number, Records, Verdict

MARGIN = 0.05  # of rank correlation: the smallest gain that would matter
COLUMNS = {  # of Valued: what its number is called
    "gain": "A w and value, less A alone",
    "credit": "A w and value",
    "right": "w and value, right rollouts",
    "wrong": "-w and value, wrong rollouts",
    "moved": "movement and value",
    "lift": "movement and value, less uniform's",
    "hidden": "movement and value, less A w of the same tokens",
    "residual": "left on shared prefixes",
    "group": "left of whole groups",
    "cancellation": "cancellation index",
}


def judge(records: Records) -> Finding:
    tokens = Tokens(records)
    found = valued(records, tokens)
    runs, unfinished = trained(records), untrained(records)
    gains = {one.arm: one.gain for one in found if one.judged and one.gain}
    better = [arm for arm, (_, low, _) in gains.items() if low > 0]
    worse = [arm for arm, (_, _, high) in gains.items() if high < 0]
    small = [arm for arm, (_, _, high) in gains.items() if high < MARGIN]
    base = next(one for one in found if one.arm == BASELINE)
    because = (
        f"A alone follows the value of a token by {told(base.credit)}. Of {len(gains)} token "
        f"weights {len(better)} follow it more closely with A w ({_names(better)}) and "
        f"{len(worse)} less ({_names(worse)}); for {len(small)} a gain of {MARGIN:g} or more is "
        f"excluded ({_names(small)})"
    )
    if gains:
        first = max(gains, key=lambda arm: gains[arm][0])
        because += f"; most: {first}, {told(gains[first])} more"
    return Finding(
        verdict_of(list(gains.values())),
        because + ".",
        (*_numbers(found), *_trained_numbers(runs)),
        (*_notes(found, runs, tokens, unfinished), *_refused(records)),
    )


def verdict_of(gains: Sequence[Interval]) -> Verdict:
    """The rule: half of them are above 0, or it is excluded that half gain as much as MARGIN."""
    shown = sum(low > 0 for _, low, _ in gains)
    small = sum(high < MARGIN for _, _, high in gains)
    if gains and 2 * shown >= len(gains):
        return "replicated"
    return "not replicated" if 2 * small > len(gains) else "inconclusive"


def told(found: Interval | None) -> str:
    return f"{found[0]:+.2f} [{found[1]:+.2f}, {found[2]:+.2f}]" if found else "nothing"


def _names(arms: Sequence[str]) -> str:
    return ", ".join(arms) or "none"


def _numbers(found: Sequence[Valued]) -> list[Number]:
    numbers = [
        Number(f"{one.arm}: {label}", *interval)
        for name, label in COLUMNS.items()
        for one in found
        if (interval := getattr(one, name))
    ]
    return numbers + [
        Number(f"{one.arm}: overhead, share of an iteration", one.overhead, unit="share")
        for one in found
        if one.arm != BASELINE
    ]


def _trained_numbers(runs: Sequence[Trained]) -> list[Number]:
    numbers = []
    for one in runs:
        at = f"{one.arm}, lr {one.rate:g}"
        numbers.append(as_number(f"{at}: success after training", one.success))
        for name, mean in (("rollouts", one.rollouts), ("seconds", one.seconds)):
            if mean:
                numbers.append(as_number(f"{at}: less {BASELINE}, equal {name}", mean))
        if one.slower:
            numbers.append(as_number(f"{at}: longer iterations", one.slower))
        for name in ("cancellation", "residual", "entropy"):
            if (value := getattr(one, name)) is not None:
                numbers.append(Number(f"{at}: {name} in training", value))
    return numbers


def _notes(
    found: Sequence[Valued], runs: Sequence[Trained], tokens: Tokens, unfinished: Sequence[str]
) -> list[str]:
    prompts, N = len(set(tokens.prompts)), len(tokens.prompts)
    notes = [
        f"{N} open tokens of {prompts} prompts; by the agreement of two halves of their "
        f"continuations no credit could follow these values by more than {tokens.ceiling:.2f}.",
        "Cost: one iteration of each arm on the same batch, over an iteration with uniform "
        "weights; sampling is in it.",
    ]
    moved = sorted(
        (one for one in found if one.lift and not one.ones),
        key=lambda one: one.lift[0] if one.lift else 0.0,
        reverse=True,
    )
    if moved:
        ends = moved[:1] if len(moved) == 1 else [moved[0], moved[-1]]
        said = "; ".join(f"{one.arm} {told(one.lift)}" for one in ends)
        notes.append(
            f"What an iteration does to a token follows its value most and least with: {said}, "
            f"each less {BASELINE}."
        )
    if idle := [one.arm for one in found if one.ones and one.arm != BASELINE]:
        notes.append(
            f"Weights of 1 on this batch, so neither judged nor trained: {', '.join(idle)}."
        )
    if not runs and not unfinished:
        notes.append(
            "No arm was trained: --budget full does, on the embedded model only; others are an "
            "experiment (docs/experiment.md)."
        )
    compared = [one for one in runs if one.rollouts]
    if compared and max(one.success.n for one in compared) < FEWEST_SEEDS:
        notes.append(f"Training of fewer than {FEWEST_SEEDS} seeds says nothing about success.")
    for one in compared:
        if one.rollouts and one.rollouts.n >= FEWEST_SEEDS:
            notes.append(
                f"{one.arm} minus {BASELINE} at lr {one.rate:g}, {one.rollouts.n} seeds: "
                f"{format_points(one.rollouts)} at equal rollouts"
                + (f", {format_points(one.seconds)} at equal seconds." if one.seconds else ".")
            )
    return [*notes, *unfinished]


def _refused(records: Records) -> list[str]:
    return [f"Left out: {r['reason']}." for r in records if r["panel"] == "refused"]
