"""The error that a record has nothing in a needed field: how many have that, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from counterpoise.errors import PoiseError, format_count
from counterpoise.task.read_files import Record, look_up

MAX_NAMED = 4  # records that a message names


class EmptyFieldError(PoiseError):
    """A record has nothing in a field that is needed."""

    def __init__(self, record: Record, name: str) -> None:
        super().__init__(f"{record.where}: field '{name}' is empty")
        self.record, self.name = record, name


@contextmanager
def counting_empty_fields(records: Sequence[Record]) -> Iterator[None]:
    """Add to the error of an empty field how many of the records have it, and what to do."""
    try:
        yield
    except EmptyFieldError as fault:
        others = [
            record.where
            for record in records
            if record is not fault.record
            and isinstance(value := look_up(record.values, fault.name), str)
            and not value.strip()
        ]
        more = ", ..." if len(others) > MAX_NAMED else ""
        as_in = (
            f", as in {format_count(len(others), 'other record')} "
            f"({', '.join(others[:MAX_NAMED])}{more})"
        )
        raise PoiseError(
            f"{fault}{as_in if others else ''}: fill in the field, or remove "
            f"{'these records' if others else 'this record'}"
        ) from None
