"""Sentences about what an import left out: each once, with its number or its names."""

from pathlib import Path

from counterpoise.hosts.importing.notes import ImportNotes


def test_sentences_stand_once_in_the_order_in_which_they_first_applied() -> None:
    notes = ImportNotes()
    notes.count("left out: {} of evaluations", "rollout", 0)
    notes.add("groups are not in the files")
    notes.count("left out: {} of evaluations", "rollout")
    notes.count("in no plan: {}", "rollout")
    notes.add("groups are not in the files")
    notes.count("left out: {} of evaluations", "rollout", 1_999)
    assert notes.sentences() == [
        "groups are not in the files",
        "left out: 2,000 rollouts of evaluations",
        "in no plan: 1 rollout",
    ]
    assert notes.reasons() == notes.sentences()[1:]


def test_three_names_and_an_ellipsis() -> None:
    notes = ImportNotes()
    for name in ("a", "b", "a", "c"):
        notes.name_torn_file(Path(name))
    assert notes.sentences() == ["left out because it is cut off: the last line of a, b, c"]
    notes.name_torn_file(Path("d"))
    assert notes.reasons() == ["left out because it is cut off: the last line of a, b, c, ..."]


def test_a_name_with_braces_stays_as_it_is() -> None:
    notes = ImportNotes()
    notes.name("no dumps: {}", "{}.pt")
    assert notes.sentences() == ["no dumps: {}.pt"]


def test_the_notes_of_a_part_follow() -> None:
    notes, part = ImportNotes(), ImportNotes()
    notes.add("reward = correct")
    part.count("left out: {}", "table", 2)
    notes.merge(part)
    assert notes.sentences() == ["reward = correct", "left out: 2 tables"]


def test_an_unusual_file_is_named_where_sizes_differ() -> None:
    notes = ImportNotes()
    notes.name_unusual_file({8: ["1", "2"]}, "rows", remedy="copy it again")
    assert not notes.sentences()
    notes.name_unusual_file({8: ["1", "2"], 5: ["3"]}, "rows", remedy="copy it again")
    assert notes.sentences() == [
        "1 file with another number of rows than most, such as 3: copy it again"
    ]
