"""Print one rollout: its coloured tokens, the scale, and its strongest tokens or a selected one.

Numbers, names and scale are those of the report's token view. A terminal with no colours, or with
only sixteen, gets a mark before a token instead: ▲ ▼ where the colour would have at least half of
its full strength, △ ▽ where it would have a fifth.

Model output is untrusted text. It went through `make_visible`, so it cannot move the cursor or ring
the bell, and it is put into `Text`, which does not interpret brackets as markup.
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
from counterpoise.errors import format_ranges
from counterpoise.report.charts.quantities import (
    RELATIONS,
    SIGNS,
    available_quantities,
    colour_strength,
    quantity_values,
)
from counterpoise.report.charts.render import show_blanks
from counterpoise.report.traces import tokens_without_gradient
from counterpoise.store.stored_rollouts import RolloutLine

FAINT, STRONG = 0.2, 0.5  # colour strengths (0 to 1) from which a token gets △ ▽ and ▲ ▼
# Longer tokens are shortened: in the strip, and in the contexts of the pushing tokens.
STRIP_CHARACTERS, CONTEXT_CHARACTERS = 24, 12
NUM_STRONGEST, NUM_NEIGHBOURS = 10, 6
# (weakest, strongest) background. White text is readable on all, on dark and light terminals.
RAMPS = {
    "up": ((0x5F, 0x6F, 0x80), (0x14, 0x5F, 0xC0)),
    "down": ((0x80, 0x6E, 0x5E), (0xB4, 0x4D, 0x08)),
    "size": ((0x70, 0x70, 0x78), (0x5B, 0x3F, 0x9E)),
}
INK = {"up": "#3b82d6", "down": "#c8621a"}  # for text without a background
MARKS = {"up": "△▲", "down": "▽▼", "size": "△▲"}


def print_token_view(view: TokenView, console: Console) -> None:
    """Print all sections, with an empty line between them."""
    coloured = console.color_system in ("256", "truecolor") and not console.no_color
    styled = console.color_system is not None
    sections: list[RenderableType] = [
        _heading(view),
        _token_strip(view, coloured, styled),
        _legend(view, coloured),
    ]
    if view.token is None:
        sections.append(_strongest_tokens(view))
    else:
        sections += [_token_details(view, view.token), _pushing_tokens(view, view.token, styled)]
    for number, section in enumerate(sections):
        if number:
            console.print()
        console.print(section, highlight=False)


def _heading(view: TokenView) -> Text:
    """Where the rollout stands in the run, its reward and advantage, and its prompt."""
    row, plan, rollout = view.row, view.plan, view.texts[view.row]
    step = next(step_index for step_index, rows in enumerate(plan["steps"]) if row in rows)
    reward = f"{_outcome_mark(rollout)} reward {rollout.reward:g}  " if rollout else ""
    advantage = plan["advantage"][row]
    heading = Text.assemble(
        (f"iteration {plan['iteration']}  row {row}  step {step + 1}  ", "dim"),
        (f"{reward}advantage {advantage:+.3f}", f"bold {INK['down' if advantage < 0 else 'up']}"),
        (f"  {len(view.values)} tokens", "dim"),
    )
    return heading.append(f"\n\n{rollout.prompt}", style="italic") if rollout else heading


def _token_strip(view: TokenView, coloured: bool, styled: bool) -> Text:
    """The tokens of the rollout, coloured or marked by the quantity."""
    strip = Text()
    values, rollout = view.values, view.texts[view.row]
    # Tokens that an environment wrote between those of the policy: shown, but never trained on.
    environment_tokens = dict(rollout.environment_tokens) if rollout else {}
    for position, (value, strength) in enumerate(
        zip(values.tolist(), colour_strength(values, view.full_colour).tolist(), strict=True)
    ):
        if position in environment_tokens:
            environment_text = "".join(
                _token_text(view, token) for token in environment_tokens[position]
            )
            strip.append(
                environment_text if styled else f"[{environment_text}]", style="dim italic"
            )
        token = int(view.columns["token"][position])
        text, style = _token_text(view, token), ""
        direction = _direction(view, value)
        if coloured and strength >= FAINT / 2:
            style = f"#ffffff on {_blend_colours(direction, strength)}"
        if not coloured and strength >= FAINT:
            strip.append(MARKS[direction][strength >= STRONG])
        if position == view.token:
            text, style = _point_at(text, styled), f"{style} bold underline"
        strip.append(text, style=style)
        if "\n" in view.vocabulary[token]:
            strip.append("\n")
    return strip


def _legend(view: TokenView, coloured: bool) -> Text:
    """The scale as a bar of colours, or the marks and the values they stand for."""
    quantity, full_colour = view.quantity, view.full_colour
    legend = Text(f"{quantity.title}  ")
    if coloured:
        legend.append(f"{-full_colour:.3g} " if quantity.signed else "0 ")
        for level in range(-4 if quantity.signed else 0, 5):
            colour = _blend_colours(_direction(view, level), abs(level) / 4)
            legend.append("  ", style=f"on {colour}" if level else "")
        legend.append(f" {full_colour:+.3g}" if quantity.signed else f" {full_colour:.3g}")
    else:
        for direction in ("down", "up") if quantity.signed else ("size",):
            sign = {"up": "+", "down": "-", "size": ""}[direction]
            # strength = sqrt(|value| / full_colour), so the value is strength^2 * full_colour.
            weak, strong = (
                f"{sign}{strength**2 * full_colour:.2g}" for strength in (FAINT, STRONG)
            )
            legend.append(f"{MARKS[direction][0]} {weak}  {MARKS[direction][1]} {strong}  ")
    return legend.append(f"\n{quantity.meaning}", style="dim")


def _strongest_tokens(view: TokenView) -> Table:
    """The tokens with the largest values of the quantity, in either direction."""
    entropy = next(
        quantity for quantity in available_quantities(view.columns) if quantity.name == "entropy"
    )
    # Other trainers' files may lack the entropy.
    has_entropy = np.isfinite(view.columns["entropy"]).any()
    quantities = list(dict.fromkeys((view.quantity, entropy) if has_entropy else (view.quantity,)))
    table = _plain_table(
        "token", "text", *(quantity.title for quantity in quantities), "probability"
    )
    strongest = np.argsort(-np.abs(np.nan_to_num(view.values)), kind="stable")[:NUM_STRONGEST]
    for position in strongest.tolist():
        table.add_row(
            str(position),
            Text(_token_text(view, int(view.columns["token"][position]), alone=True)),
            *(
                _format_value(quantity_values(quantity, view.columns)[position], quantity.signed)
                for quantity in quantities
            ),
            _format_probability(view.columns["logprob"][position]),
        )
    return table


def _token_details(view: TokenView, position: int) -> RenderableType:
    """All stored numbers of one token, and a table of its pushes by origin."""
    values = {
        quantity.name: float(quantity_values(quantity, view.columns)[position])
        for quantity in available_quantities(view.columns)
    }
    token = int(view.columns["token"][position])
    details = Text.assemble(
        (f"token {position}  ", "dim"), (_token_text(view, token, 200, alone=True), "bold")
    )
    details.append(f"  id {token}\n", style="dim")
    details.append(f"probability {_format_probability(values['logprob'])}")
    if math.isfinite(values.get("displacement", math.nan)):
        # The two numbers were rounded separately: their sum may slightly exceed probability 1.
        logprob_after = min(0.0, values["logprob"] + values["displacement"])
        details.append(f" -> {_format_probability(logprob_after)}")
        details.append("  displacement ").append(_format_value(values["displacement"], signed=True))
    if math.isfinite(values["entropy"]):
        details.append(f"  entropy {values['entropy']:.3g}")
    details.append(f"  advantage {values['advantage']:+.3g}")
    if "value" in values:
        details.append(f"  value {values['value']:+.3g}")
    if tokens_without_gradient(view.columns)[position]:
        details.append("\nno gradient of its own: clipped, or masked by a rule such as credit.rule")
    if "push" not in values:
        return details
    table = _plain_table("pushes from", "+ rollouts", "- rollouts", "together", right=True)
    for token_relation, query_relation in product(RELATIONS, RELATIONS):
        pushes = [values[f"{token_relation}_token_{query_relation}_query_{sign}"] for sign in SIGNS]
        prompts = "same prompt" if query_relation == "same" else "other prompts"
        pushes_and_sum = map(_format_push, [*pushes, sum(pushes)])
        table.add_row(f"{token_relation} token, {prompts}", *pushes_and_sum)
    table.add_row("itself", "", "", _format_push(values["own"]))
    table.add_row(Text("all pushes", style="bold"), "", "", _format_push(values["push"]))
    unit = Text("Through the output layer, to first order and per unit of learning rate.", "dim")
    return Group(details, Text(), table, unit)


def _pushing_tokens(view: TokenView, position: int, styled: bool) -> RenderableType:
    """The tokens that pushed the token at `position`: upward pushes first, the largest on top."""
    if view.pushes is None:
        return Text(f"This update's pushes were not stored. {view.replay}", style="dim")
    if view.row not in view.pushes.rows:
        rows = format_ranges(sorted(view.pushes.rows))
        return Text(
            f"Which tokens pushed which is stored for rows {rows} only. {view.replay}", style="dim"
        )
    pushes = sorted(view.pushes.on_token(view.row, position), key=lambda push: -push[2])
    group_of_row, pushed_token = view.plan["group"], view.columns["token"][position]
    table = _plain_table("push", "by", "row:token", "advantage", "prompt", "token")
    contexts = _tokens_in_context(view, [(row, source) for row, source, _ in pushes], styled)
    for (row, source, push), context in zip(pushes, contexts, strict=True):
        same_prompt = group_of_row[row] == group_of_row[view.row]
        same_token = view.trace.row_columns(row)["token"][source] == pushed_token
        table.add_row(
            _format_push(push),
            context,
            f"{row}:{source}",
            f"{_outcome_mark(view.texts[row])} {view.plan['advantage'][row]:+.2f}".strip(),
            "same" if same_prompt else "other",
            "same" if same_token else "other",
        )
    return table


def _tokens_in_context(
    view: TokenView, row_positions: list[tuple[int, int]], styled: bool
) -> list[Text]:
    """Tokens between their neighbours, aligned so that the tokens stand below one another."""
    contexts = []
    for row, position in row_positions:
        texts = [
            _token_text(view, token, CONTEXT_CHARACTERS)
            for token in view.trace.row_columns(row)["token"].tolist()
        ]
        preceding = "".join(texts[max(0, position - NUM_NEIGHBOURS) : position])
        following = "".join(texts[position + 1 : position + 1 + NUM_NEIGHBOURS])
        contexts.append((preceding, _point_at(texts[position], styled), following))
    # cell_len, not len: an East Asian character takes two cells.
    width = max((cell_len(preceding) for preceding, _, _ in contexts), default=0)
    lines = []
    for preceding, token, following in contexts:
        line = Text(" " * (width - cell_len(preceding)), no_wrap=True, overflow="ellipsis")
        lines.append(
            line.append(preceding, "dim").append(token, "reverse").append(following, "dim")
        )
    return lines


# -- texts, numbers and colours -------------------------------------------------------------------


def _token_text(
    view: TokenView, token: int, max_characters: int = STRIP_CHARACTERS, *, alone: bool = False
) -> str:
    text = show_blanks(view.vocabulary[token], alone=alone)
    return text[:max_characters] + "…" if len(text) > max_characters else text


def _point_at(text: str, styled: bool) -> str:
    """The text, in brackets if the terminal can neither underline nor reverse it."""
    return text if styled else f"‹{text}›"


def _direction(view: TokenView, value: float) -> str:
    """The name of a value's colour ramp: "size" for a quantity without a sign."""
    return "size" if not view.quantity.signed else "down" if value < 0 else "up"


def _plain_table(*names: str, right: bool = False) -> Table:
    table = Table(*names, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:] if right else ():
        column.justify = "right"
    return table


def _format_value(value: float, signed: bool) -> Text:
    if math.isnan(value):  # the token was not measured
        return Text("-")
    if not signed:
        return Text(f"{value:.3g}")
    if value == 0:
        return Text("0")
    direction = "down" if value < 0 else "up"
    return Text(f"{MARKS[direction][1]} {value:+.3g}", style=INK[direction])


def _format_push(value: float) -> Text:
    """Always in exponent notation, so that a column can be compared; an exact zero is "0"."""
    text = "nan" if math.isnan(value) else f"{value:+.2e}" if value else "0"
    return Text(text, style=INK["down" if value < 0 else "up"])


def _format_probability(logprob: float) -> str:
    return f"{100 * np.exp(logprob):.1f} %"


def _outcome_mark(rollout: RolloutLine | None) -> str:
    return "" if rollout is None else "✓" if rollout.reward > 0 else "✗"


def _blend_colours(direction: str, strength: float) -> str:
    """The colour from the weakest (strength 0) to the strongest (1), as #rrggbb."""
    weakest, strongest = RAMPS[direction]
    channels = (
        round(low + strength * (high - low)) for low, high in zip(weakest, strongest, strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)
