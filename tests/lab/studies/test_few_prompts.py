"""Studies of very few prompts: the values are told, and that there is no interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.lab.studies.records import read_records
from counterpoise.lab.studies.study import load_study

DATA = Path(__file__).parents[3] / "docs" / "data"


@pytest.mark.parametrize(
    ("table", "study_name", "column"),
    [
        ("embedded-plants", "plants", "seed"),
        ("embedded-flipping", "flipping", "prompt"),
        ("embedded-shared-quick", "shared", "prompt"),
        ("credit-smollm2", "credit", "prompt"),
    ],
)
def test_no_sentence_says_nan(table: str, study_name: str, column: str) -> None:
    stored = read_records(DATA / f"{table}.parquet")
    assert stored is not None
    prompts = list(dict.fromkeys(record[column] for record in stored[0] if record.get(column)))
    records = [record for record in stored[0] if record.get(column) in (None, *prompts[:3])]
    finding = load_study(study_name).judge(records)
    sentences = " ".join((finding.because, *finding.notes))
    assert finding.verdict == "inconclusive"
    assert " [no interval]" in finding.because
    assert "nan" not in sentences
