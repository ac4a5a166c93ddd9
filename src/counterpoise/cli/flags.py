"""Commands that take one record of flags instead of a parameter for each.

typer reads a command's flags from its parameters. A command with many flags declares them as the
fields of a dataclass, which is easier to read and to pass on; `takes_flags` shows typer the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Flags = TypeVar("Flags")


def takes_flags(command: Callable[[Flags], None]) -> Callable[..., None]:
    """Turn a function that takes one dataclass into a command whose flags are its fields.

    Example:
        @dataclass(frozen=True)
        class CountFlags:
            file: Annotated[Path, typer.Argument(help="The file to count.")]
            as_json: Annotated[bool, typer.Option("--json")] = False

        @takes_flags
        def count(flags: CountFlags) -> None: ...
    """
    (parameter_name,) = inspect.signature(command).parameters
    flags_class = get_type_hints(command)[parameter_name]
    annotations = get_type_hints(flags_class, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING
            else field.default,
            annotation=annotations[field.name],
        )
        for field in dataclasses.fields(flags_class)
    ]

    @functools.wraps(command)
    def run_command(**flags: Any) -> None:
        command(flags_class(**flags))

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = annotations
    return run_command
