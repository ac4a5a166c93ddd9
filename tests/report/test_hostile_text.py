"""Model output is foreign text: none of it may become markup, script, or a broken page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report.synthetic import Page, write_run
from serve.served import line as served_line
from serve.served import write_rollouts

from counterpoise.lab.choose_page import write_report
from counterpoise.report.audit.run_files import RunFiles
from counterpoise.report.texts import MAX_CHARACTERS, make_visible, read_rollout_texts
from counterpoise.store.stored_rollouts import iterate_rollouts

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='hacked()'>"
    '<!-- </pre></textarea> " onmouseover="hacked()" {{ 7 * 7 }} {% raw %} &lt; \x00\x1b[31m\x7f'
    "\u202egnp.exe\u202c שלום عالم " + "A" * 20_000
)


def test_hostile_text_adds_no_element_and_no_attribute(tmp_path: Path):
    clean = Page(write_report(write_run(tmp_path / "clean", model="other")))
    run = write_run(tmp_path / "hostile", response=HOSTILE, prompt=HOSTILE, model="<b>x</b>")
    page = Page(write_report(run))
    assert page.tags == clean.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in clean.attributes]
    assert "window.hacked = 1" in page.text  # shown, as text
    assert "{{ 7 * 7 }}" in page.text
    assert "The model <b>x</b>" in page.text
    assert "A" * (MAX_CHARACTERS + 1) not in page.source


def test_hostile_tokens_add_nothing_either(tmp_path: Path):
    clean = Page(write_report(write_run(tmp_path / "clean")))
    page = Page(write_report(write_run(tmp_path / "hostile", pieces=[HOSTILE] * 9)))
    assert page.tags == clean.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in clean.attributes]
    assert "window.hacked = 1" in page.text  # in the table of token types, as text


def test_group_names_are_data_too(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", prompt_id="</script><script>x()")))
    assert "</script><script>x()" not in page.source


def test_control_characters_and_overrides_are_spelled_out():
    shown = make_visible(HOSTILE)
    assert "␀␛[31m␡⟨U+202E⟩gnp.exe⟨U+202C⟩ שלום عالم" in shown
    assert len(shown) < MAX_CHARACTERS + 50
    assert make_visible("a\r\nb\tc\rd") == "a\nb\tc␍d"
    make_visible("\ud800 \udfff").encode("utf-8")
    marks = "\u061c\u200b\u200e\u200f\u2066\ufeff"
    assert make_visible(marks) == "".join(f"⟨U+{ord(mark):04X}⟩" for mark in marks)


@pytest.mark.parametrize("line", [b"\xff\xfe{", b"{}", b"[1]", b'"x"', b"{broken", b""])
def test_a_damaged_line_hides_only_itself(tmp_path: Path, line: bytes):
    good = {"group": "g", "response": "fine \ud800", "reward": 1}
    bad_bytes = b'{"group": "g", "response": "\xff\xfe", "reward": 0}'
    file = tmp_path / "step_00001.jsonl"
    file.write_bytes(b"\n".join([json.dumps(good).encode(), line, bad_bytes, b""]))
    first, second = read_rollout_texts(file)
    assert (first.index, first.response, first.reward) == (0, "fine \ufffd", 1.0)
    assert (second.index, second.response, second.reward) == (1, "\ufffd\ufffd", 0.0)


def test_damaged_and_unscored_lines_keep_the_numbers_of_the_others(tmp_path: Path):
    lines = [served_line("1:a", name, reward) for name, reward in (("x", 1), ("y", None), ("z", 0))]
    lines[0] = lines[0][:60] + "\n"  # torn in its prompt
    file = write_rollouts(tmp_path / "run", 1, *lines)
    texts = [(text.index, text.response, text.reward) for text in read_rollout_texts(file)]
    assert texts == [(1, "y", pytest.approx(math.nan, nan_ok=True)), (2, "z", 0.0)]
    assert [(each.index, each.response) for each in iterate_rollouts(file)] == [
        (1, "y"),
        (2, "z"),
    ]
    run = RunFiles(tmp_path / "run", "test", None, [], [])
    for _ in range(2):  # however often a file is read, its lines are counted once
        assert [each.index for each in run.iterate_rollouts(1)] == [1, 2]
    assert run.unreadable_lines == 1
    assert write_report(tmp_path / "run").is_file()


def test_a_missing_file_is_no_text(tmp_path: Path):
    assert list(read_rollout_texts(tmp_path / "none.jsonl")) == []
