"""One rollout as text: the strip of tokens, its scale, the strongest movers or who pushed one.

The same numbers, names and scale as the page's token view. Without colour, or with only sixteen,
a mark stands before a token instead: ▲ ▼ from half the scale on, △ ▽ from a fifth.

Model output is foreign text: it has gone through `visible`, so it cannot move the cursor or ring
the bell, and it goes into `Text`, where brackets are no markup.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.cli.token_view import TokenView
from counterpoise.errors import ranges
from counterpoise.report.charts.quantities import (
    RELATIONS,
    SIGNS,
    available_quantities,
    colour_strength,
    quantity_values,
)
from counterpoise.report.charts.render import show_blanks
from counterpoise.report.texts import RolloutText
from counterpoise.report.traces import tokens_without_gradient

FAINT_SHARE, STRONG_SHARE = 0.2, 0.5  # parts of the scale from which a token is marked
STRIP_CHARACTERS, CONTEXT_CHARACTERS = (
    24,
    12,
)  # characters of a token in the strip, and beside another
NUM_STRONGEST, NUM_NEIGHBOURS = 10, 6
# weak and strong; white text is readable on all of them, on dark and on light terminals
RAMPS = {
    "up": ((0x5F, 0x6F, 0x80), (0x14, 0x5F, 0xC0)),
    "down": ((0x80, 0x6E, 0x5E), (0xB4, 0x4D, 0x08)),
    "size": ((0x70, 0x70, 0x78), (0x5B, 0x3F, 0x9E)),
}
INK = {"up": "#3b82d6", "down": "#c8621a"}  # for text without a background
MARKS = {"up": "△▲", "down": "▽▼", "size": "△▲"}


def print_token_view(seen: TokenView, console: Console) -> None:
    coloured = console.color_system in ("256", "truecolor") and not console.no_color
    styled = console.color_system is not None
    parts: list[RenderableType] = [_heading(seen), _token_strip(seen, coloured, styled)]
    parts.append(_legend(seen, coloured))
    if seen.token is None:
        parts.append(_strongest_tokens(seen))
    else:
        parts += [_token_details(seen, seen.token), _pushing_tokens(seen, seen.token, styled)]
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, highlight=False)


def _heading(seen: TokenView) -> Text:
    row, plan, found = seen.row, seen.plan, seen.texts[seen.row]
    step = next(s for s, rows in enumerate(plan["steps"]) if row in rows)
    reward = f"{_outcome_mark(found)} reward {found.reward:g}  " if found else ""
    advantage = plan["advantage"][row]
    about = Text.assemble(
        (f"iteration {plan['iteration']}  row {row}  step {step + 1}  ", "dim"),
        (f"{reward}advantage {advantage:+.3f}", f"bold {INK['down' if advantage < 0 else 'up']}"),
        (f"  {len(seen.values)} tokens", "dim"),
    )
    return about.append(f"\n\n{found.prompt}", style="italic") if found else about


def _token_strip(seen: TokenView, coloured: bool, styled: bool) -> Text:
    strip = Text()
    values, found = seen.values, seen.texts[seen.row]
    said = (
        dict(found.environment_tokens) if found else {}
    )  # an environment's words: read, not trained
    for place, (value, share) in enumerate(
        zip(values.tolist(), colour_strength(values, seen.full_colour).tolist(), strict=True)
    ):
        if place in said:
            words = "".join(_token_text(seen, token) for token in said[place])
            strip.append(words if styled else f"[{words}]", style="dim italic")
        token = int(seen.columns["token"][place])
        text, style = _token_text(seen, token), ""
        kind = _direction(seen, value)
        if coloured and share >= FAINT_SHARE / 2:
            style = f"#ffffff on {_blend_colours(kind, share)}"
        if not coloured and share >= FAINT_SHARE:
            strip.append(MARKS[kind][share >= STRONG_SHARE])
        if place == seen.token:
            text, style = _point_at(text, styled), f"{style} bold underline"
        strip.append(text, style=style)
        if "\n" in seen.vocabulary[token]:
            strip.append("\n")
    return strip


def _legend(seen: TokenView, coloured: bool) -> Text:
    """The scale as a bar, or the marks with what they stand for."""
    quantity, full = seen.quantity, seen.full_colour
    legend = Text(f"{quantity.title}  ")
    if coloured:
        legend.append(f"{-full:.3g} " if quantity.signed else "0 ")
        for place in range(-4 if quantity.signed else 0, 5):
            colour = _blend_colours(_direction(seen, place), abs(place) / 4)
            legend.append("  ", style=f"on {colour}" if place else "")
        legend.append(f" {full:+.3g}" if quantity.signed else f" {full:.3g}")
    else:
        for kind in ("down", "up") if quantity.signed else ("size",):
            sign = {"up": "+", "down": "-", "size": ""}[kind]
            weak, strong = (f"{sign}{share**2 * full:.2g}" for share in (FAINT_SHARE, STRONG_SHARE))
            legend.append(f"{MARKS[kind][0]} {weak}  {MARKS[kind][1]} {strong}  ")
    return legend.append(f"\n{quantity.meaning}", style="dim")


def _strongest_tokens(seen: TokenView) -> Table:
    """The tokens with the largest values of the quantity, in either direction."""
    entropy = next(q for q in available_quantities(seen.columns) if q.name == "entropy")
    shown = list(dict.fromkeys((seen.quantity, entropy)))
    table = _plain_table("token", "text", *(q.title for q in shown), "probability")
    strongest = np.argsort(-np.abs(np.nan_to_num(seen.values)), kind="stable")[:NUM_STRONGEST]
    for place in strongest.tolist():
        table.add_row(
            str(place),
            Text(_token_text(seen, int(seen.columns["token"][place]), alone=True)),
            *(_format_value(quantity_values(q, seen.columns)[place], q.signed) for q in shown),
            _format_probability(seen.columns["logprob"][place]),
        )
    return table


def _token_details(seen: TokenView, place: int) -> RenderableType:
    """Every number there is of one token; its pushes as a table of who and from where."""
    known = {
        q.name: float(quantity_values(q, seen.columns)[place])
        for q in available_quantities(seen.columns)
    }
    token = int(seen.columns["token"][place])
    told = Text.assemble(
        (f"token {place}  ", "dim"), (_token_text(seen, token, 200, alone=True), "bold")
    )
    told.append(f"  id {token}\n", style="dim")
    told.append(f"probability {_format_probability(known['logprob'])}")
    if math.isfinite(known.get("displacement", math.nan)):
        told.append(
            f" -> {_format_probability(min(0.0, known['logprob'] + known['displacement']))}"
        )
        told.append("  displacement ").append(_format_value(known["displacement"], signed=True))
    told.append(f"  entropy {known['entropy']:.3g}  advantage {known['advantage']:+.3g}")
    if "value" in known:
        told.append(f"  value {known['value']:+.3g}")
    if tokens_without_gradient(seen.columns)[place]:
        told.append("\nno gradient of its own: clipped, or left out by a rule")
    if "push" not in known:
        return told
    table = _plain_table("pushes from", "+ rollouts", "- rollouts", right=True)
    for same, query in product(RELATIONS, RELATIONS):
        parts = (known[f"{same}_token_{query}_query_{sign}"] for sign in SIGNS)
        prompts = "same prompt" if query == "same" else "other prompts"
        table.add_row(f"{same} token, {prompts}", *map(_format_push, parts))
    table.add_row("own", _format_push(known["own"]))
    table.add_row(Text("all pushes", style="bold"), _format_push(known["push"]))
    unit = Text("Through the output layer, to first order and per unit of learning rate.", "dim")
    return Group(told, Text(), table, unit)


def _pushing_tokens(seen: TokenView, place: int, styled: bool) -> RenderableType:
    if seen.pushes is None:
        return Text("This run did not store who pushed whom.", style="dim")
    if seen.row not in seen.pushes.rows:
        rows = ranges(sorted(seen.pushes.rows))
        return Text(f"Who pushed whom is stored for rows {rows} only.", style="dim")
    found = sorted(seen.pushes.on_token(seen.row, place), key=lambda push: -push[2])
    group, mine = seen.plan["group"], seen.columns["token"][place]
    table = _plain_table("push", "by", "row:token", "advantage", "prompt", "token")
    contexts = _tokens_in_context(seen, [(row, position) for row, position, _ in found], styled)
    for (row, position, push), context in zip(found, contexts, strict=True):
        table.add_row(
            _format_push(push),
            context,
            f"{row}:{position}",
            f"{_outcome_mark(seen.texts[row])} {seen.plan['advantage'][row]:+.2f}".strip(),
            "same" if group[row] == group[seen.row] else "other",
            "same" if seen.trace.row_columns(row)["token"][position] == mine else "other",
        )
    return table


def _tokens_in_context(seen: TokenView, places: list[tuple[int, int]], styled: bool) -> list[Text]:
    """Tokens between their neighbours, one below the other."""
    around = []
    for row, position in places:
        ids = seen.trace.row_columns(row)["token"].tolist()
        before = ids[max(0, position - NUM_NEIGHBOURS) : position]
        after = ids[position + 1 : position + 1 + NUM_NEIGHBOURS]
        words = [
            "".join(_token_text(seen, id, CONTEXT_CHARACTERS) for id in side)
            for side in (before, after)
        ]
        around.append(
            (
                words[0],
                _point_at(_token_text(seen, ids[position], CONTEXT_CHARACTERS), styled),
                words[1],
            )
        )
    width = max((cell_len(before) for before, _, _ in around), default=0)
    made = []
    for before, token, after in around:
        text = Text(" " * (width - cell_len(before)), no_wrap=True, overflow="ellipsis")
        made.append(text.append(before, "dim").append(token, "reverse").append(after, "dim"))
    return made


# -- small things -------------------------------------------------------------------------------


def _token_text(
    seen: TokenView, token: int, longest: int = STRIP_CHARACTERS, *, alone: bool = False
) -> str:
    shown = show_blanks(seen.vocabulary[token], alone=alone)
    return shown[:longest] + "…" if len(shown) > longest else shown


def _point_at(text: str, styled: bool) -> str:
    """Where nothing can be underlined or reversed, brackets point at a token."""
    return text if styled else f"‹{text}›"


def _direction(seen: TokenView, value: float) -> str:
    return "size" if not seen.quantity.signed else "down" if value < 0 else "up"


def _plain_table(*names: str, right: bool = False) -> Table:
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:] if right else ():
        column.justify = "right"
    return table


def _format_value(value: float, signed: bool) -> Text:
    if not signed:
        return Text(f"{value:.3g}")
    if value == 0:
        return Text("0")
    kind = "down" if value < 0 else "up"
    return Text(f"{MARKS[kind][1]} {value:+.3g}", style=INK[kind])


def _format_push(value: float) -> Text:
    """In one notation, so that a column can be compared; exactly nothing is 0."""
    text = "nan" if math.isnan(value) else f"{value:+.2e}" if value else "0"
    return Text(text, style=INK["down" if value < 0 else "up"])


def _format_probability(logprob: float) -> str:
    return f"{100 * np.exp(logprob):.1f} %"


def _outcome_mark(text: RolloutText | None) -> str:
    return "" if text is None else "✓" if text.reward > 0 else "✗"


def _blend_colours(kind: str, share: float) -> str:
    weak, strong = RAMPS[kind]
    mixed = (round(a + share * (b - a)) for a, b in zip(weak, strong, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
