"""State for every option of a run whether an engine honours it, ignores it or refuses it.

    pass_as("learning_rate")          the engine's own option carries it
    pass_except("weights", refused)   as pass_as, but some values are refused, each with a reason
    handle_here("the reward")         our code around the engine honours it
    no_effect("memory only")          whatever its value, the run computes the same
    accept_only("grpo", reason="...") these values and no others; any other stops the run
    not_written(True, reason="...")   output that the engine does not write: the default (here True)
                                      is accepted with a note to the user, other values are refused

An engine has a table with one entry for each option of `config/`. `check_support` stops a run that
needs what the engine cannot do and names the options. An option that is missing from the table is
refused unless it has its default, and a test fails until the table has an entry for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.plugins import PLUGIN_CHOICE, is_plugin

PASSED_ON, HANDLED_HERE, NO_EFFECT = "passed_on", "handled_here", "no_effect"
ACCEPTED_VALUES, NOT_WRITTEN = "accepted_values", "not_written"


@dataclass(frozen=True, slots=True)
class OptionSupport:
    """How one engine treats one option.

    Example:
        OptionSupport(PASSED_ON, engine_options=("loss_type",),
                      honoured_values=("token_mean", "sequence_mean"), reason="...")
    """

    kind: str  # PASSED_ON | HANDLED_HERE | NO_EFFECT | ACCEPTED_VALUES | NOT_WRITTEN
    engine_options: tuple[str, ...] = ()  # the engine's options that carry it
    honoured_values: tuple[Any, ...] = ()  # () is any value
    reason: str = ""  # why other values are refused; where none are, what happens to the option
    refused_values: Mapping[Any, str] = dataclasses.field(default_factory=dict)  # with reasons

    def honours(self, value: Any) -> bool:
        if PLUGIN_CHOICE in self.honoured_values and isinstance(value, str) and is_plugin(value):
            return True
        if isinstance(value, str) and value in self.refused_values:
            return False
        return not self.honoured_values or value in self.honoured_values

    def refusal_reason(self, value: Any) -> str:
        """Why a value is refused that the engine does not honour."""
        return self.reason or self.refused_values[value]


OptionTable = Mapping[str, OptionSupport]


def pass_as(*engine_options: str, values: Sequence[Any] = (), reason: str = "") -> OptionSupport:
    return OptionSupport(PASSED_ON, engine_options, tuple(values), reason)


def pass_except(engine_option: str, refused: Mapping[str, str]) -> OptionSupport:
    return OptionSupport(PASSED_ON, (engine_option,), refused_values=refused)


def handle_here(
    what_happens: str = "", *, values: Sequence[Any] = (), refused_because: str = ""
) -> OptionSupport:
    """`refused_because` is for values other than `values`, if these are given."""
    return OptionSupport(
        HANDLED_HERE, honoured_values=tuple(values), reason=refused_because or what_happens
    )


def no_effect(reason: str) -> OptionSupport:
    return OptionSupport(NO_EFFECT, reason=reason)


def accept_only(*values: Any, reason: str) -> OptionSupport:
    return OptionSupport(ACCEPTED_VALUES, honoured_values=values, reason=reason)


def not_written(default: Any, reason: str) -> OptionSupport:
    """For options that only decide what is stored or shown: training must not depend on them."""
    return OptionSupport(NOT_WRITTEN, honoured_values=(default,), reason=reason)


def whole_section(name: str, support: OptionSupport) -> dict[str, OptionSupport]:
    """The same entry for all options of a section: for what an engine does not do at all."""
    fields = dataclasses.fields(getattr(RunConfig(), name))
    return {f"{name}.{field.name}": support for field in fields}


def iterate_options(config: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """(section.option, value, default) for every option of a run."""
    defaults = RunConfig()
    for section in dataclasses.fields(config):
        values, default_values = getattr(config, section.name), getattr(defaults, section.name)
        for field in dataclasses.fields(values):
            name = field.name
            yield f"{section.name}.{name}", getattr(values, name), getattr(default_values, name)


def list_refusals(config: RunConfig, table: OptionTable) -> list[str]:
    """The options that the engine cannot honour, each with the reason."""
    refusals = []
    for name, value, default in iterate_options(config):
        support = table.get(name)
        if support is None:
            # A new option that the table does not have yet: safe only at its default.
            if value != default:
                refusals.append(f"{name}={format_value(value)} (unknown to this engine)")
        elif not support.honours(value):
            refusals.append(f"{name}={format_value(value)} ({support.refusal_reason(value)})")
    return refusals


def list_omissions(config: RunConfig, table: OptionTable) -> list[str]:
    """The output that the engine does not write although the run's options ask for it."""
    enabled = [
        (name, table[name]) for name, value, _ in iterate_options(config) if value and name in table
    ]
    return [
        f"{support.reason} ({name})" for name, support in enabled if support.kind == NOT_WRITTEN
    ]


def check_support(
    config: RunConfig, table: OptionTable, engine: str, further_faults: Sequence[str] = ()
) -> None:
    """Stop unless every option is honoured; `further_faults` concern several options together."""
    if faults := [*list_refusals(config, table), *further_faults]:
        raise PoiseError(
            f"--engine {engine} cannot honour {'; '.join(faults)}: "
            "change them, or train with --engine native"
        )


def format_value(value: Any) -> str:
    """The value as a run file spells it, without quotation marks."""
    return str(value).lower() if isinstance(value, bool) else str(value)
