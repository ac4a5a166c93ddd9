"""What the user should know of an import: how often something was left out or guessed.

Every importer counts into the same ImportNotes, and `poise import` prints its sentences once, at
the end. A sentence stands where the thing that it counts happens; `{}` in it is the number:

    notes.count("left out because nothing scored them: {}", "rollout")
        -> left out because nothing scored them: 3 rollouts
    notes.name("left out because they are no complete dumps: {}", "run/7.pt")
        -> left out because they are no complete dumps: run/7.pt, run/9.pt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from counterpoise.errors import format_count

NUMBER = "{}"  # in a sentence: the place of its count, or of its names
LISTED_NAMES = 3  # further ones are an ellipsis


@dataclass(slots=True)
class _Note:
    """A sentence with what fills it: a count of `noun`, or names, or nothing."""

    sentence: str
    noun: str = ""
    number: int = 0
    names: list[str] = field(default_factory=list)

    def text(self) -> str:
        if self.noun:
            return self.sentence.replace(NUMBER, format_count(self.number, self.noun))
        ellipsis = ", ..." if len(self.names) > LISTED_NAMES else ""
        return self.sentence.replace(NUMBER, ", ".join(self.names[:LISTED_NAMES]) + ellipsis)


class ImportNotes:
    """Sentences in the order in which they first applied, each of them once."""

    def __init__(self) -> None:
        self._notes: dict[str, _Note] = {}

    def add(self, sentence: str) -> None:
        """Add a sentence that counts nothing."""
        self._notes.setdefault(sentence, _Note(sentence))

    def count(self, sentence: str, noun: str, number: int = 1) -> None:
        """Add to the number of a sentence; a number that stays 0 is not mentioned."""
        if number:
            self._notes.setdefault(sentence, _Note(sentence, noun)).number += number

    def name(self, sentence: str, name: object) -> None:
        """Add a name to those of a sentence, unless it is among them already."""
        names = self._notes.setdefault(sentence, _Note(sentence)).names
        if str(name) not in names:
            names.append(str(name))

    def merge(self, other: ImportNotes) -> None:
        """Add the notes of a part of the import, which has none of these sentences."""
        self._notes |= other._notes

    def name_torn_file(self, file: Path) -> None:
        """Name a file whose last line is incomplete, as in a run that is being trained."""
        self.name(f"left out because it is cut off: the last line of {NUMBER}", file)

    def name_unusual_file(
        self, files_of_size: Mapping[int, Sequence[str]], noun: str, remedy: str
    ) -> None:
        """Name a file whose size, a number of `noun`, is not that of most files.

        Nothing in a file may say how large it should be.
        """
        if len(files_of_size) < 2:
            return
        usual = max(files_of_size.values(), key=len)
        others = [name for names in files_of_size.values() if names is not usual for name in names]
        self.count(
            f"{NUMBER} with another number of {noun} than most, such as {others[0]}: {remedy}",
            "file",
            len(others),
        )

    def sentences(self) -> list[str]:
        return [note.text() for note in self._notes.values()]

    def reasons(self) -> list[str]:
        """Why an import gave no rollout: the sentences that count or name something."""
        return [note.text() for note in self._notes.values() if note.noun or note.names]
