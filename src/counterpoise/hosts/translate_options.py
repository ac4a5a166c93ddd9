"""What an engine says of every option of a run: honoured, without effect, or refused.

    to("learning_rate")       the engine's own option carries it
    ours("the reward")        our code around the engine honours it
    idle("memory only")       whatever its value, the run computes the same
    only("grpo", why="...")   these values and no others; any other stops the run
    lacks(True, why="...")    what it does not write; at its default that is said, else refused

An engine is a table with one entry for each option of `config/`. `check` stops a run that asks
for what the engine cannot do, naming the options; one that is in no table is refused as soon as it
is not at its default, and a test fails until someone has thought about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError

TO, OURS, IDLE, LACKS = "to", "ours", "idle", "lacks"


@dataclass(frozen=True, slots=True)
class Option:
    """What one engine makes of one option.

    Example:
        Option("to", keys=("loss_type",), values=("token_mean", "sequence_mean"), why="...")
    """

    how: str  # TO | OURS | IDLE | LACKS
    keys: tuple[str, ...] = ()  # the engine's options that carry it
    values: tuple[Any, ...] = ()  # those that are honoured; () is any
    why: str = ""

    def honours(self, value: Any) -> bool:
        return not self.values or value in self.values


def to(*keys: str, values: Sequence[Any] = (), why: str = "") -> Option:
    return Option(TO, keys, tuple(values), why)


def ours(why: str, values: Sequence[Any] = ()) -> Option:
    return Option(OURS, values=tuple(values), why=why)


def idle(why: str) -> Option:
    return Option(IDLE, why=why)


def only(*values: Any, why: str) -> Option:
    return Option(IDLE, values=values, why=why)


def lacks(default: Any, why: str) -> Option:
    """For what is stored and shown only: nothing that is learned may depend on it."""
    return Option(LACKS, values=(default,), why=why)


Table = Mapping[str, Option]


def section(name: str, option: Option) -> dict[str, Option]:
    """One word for all options of a section: for what an engine does not do at all."""
    fields = dataclasses.fields(getattr(RunConfig(), name))
    return {f"{name}.{field.name}": option for field in fields}


def given(config: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """(section.option, value, default) for every option of a run."""
    default = RunConfig()
    for section in dataclasses.fields(config):
        values, usual = getattr(config, section.name), getattr(default, section.name)
        for field in dataclasses.fields(values):
            name = field.name
            yield f"{section.name}.{name}", getattr(values, name), getattr(usual, name)


def refused(config: RunConfig, table: Table) -> list[str]:
    """What the engine cannot honour, each with its reason."""
    found = []
    for name, value, default in given(config):
        option = table.get(name)
        if option is None:
            if value != default:
                found.append(f"{name}={shown(value)} (not known to it)")
        elif not option.honours(value):
            found.append(f"{name}={shown(value)} ({option.why})")
    return found


def notes(config: RunConfig, table: Table) -> list[str]:
    """What the engine does not write although the run, by default, asks for it."""
    named = [(name, table[name]) for name, value, _ in given(config) if value and name in table]
    return [f"{option.why} ({name})" for name, option in named if option.how == LACKS]


def check(config: RunConfig, table: Table, engine: str, more: Sequence[str] = ()) -> None:
    """Stop unless every option is honoured; `more` are faults of several options together."""
    if faults := [*refused(config, table), *more]:
        raise PoiseError(
            f"--engine {engine} cannot honour {'; '.join(faults)}: "
            "change them, or train with --engine native"
        )


def shown(value: Any) -> str:
    """As in a run file, without quotation marks."""
    return str(value).lower() if isinstance(value, bool) else str(value)
