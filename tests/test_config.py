"""Run files: what is read is what was written, and every limit says its option."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest

from counterpoise.config import RunConfig
from counterpoise.config.load import (
    config_from_tables,
    find_run_file,
    list_options,
    load_config,
    parse_override,
    to_toml,
)
from counterpoise.errors import PoiseError
from counterpoise.store.resume import CHANGEABLE_OPTIONS, config_differences

RUNS = sorted(p.stem for p in (Path(__file__).parents[1] / "runs").glob("*.toml"))
SECTIONS = {f.name for f in dataclasses.fields(RunConfig)}


# -- reading and writing ------------------------------------------------------------------------


def test_no_table_is_the_default_run() -> None:
    assert config_from_tables({}) == RunConfig()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = config_from_tables(
        {
            "loop": {"seed": 2**40},
            "model": {"name": 'a "quoted"\\path\twith\nlines and ½ é \x01'},
            "task": {"levels": [4, 1, 2]},
            "update": {"lr": 3.3e-07, "clip_high": 1 / 3, "weight_decay": 1e22},
            "store": {"tokens": False},
        }
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(path) == config
    assert config_differences(load_config(path), config) == []


@pytest.mark.parametrize(
    "name",
    [
        "models/😀",
        "\x7f",
    ],
    ids=["beyond 16 bits", "delete"],
)
def test_any_string_is_read_back(tmp_path: Path, name: str) -> None:
    config = config_from_tables({"model": {"name": name}})
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(path) == config


def test_every_option_is_spelled_out() -> None:
    tables = tomllib.loads(to_toml(RunConfig()))
    assert tables.pop("schema") == 1
    assert tables.pop("option_count") == len(list_options())
    assert set(tables) == SECTIONS
    for section in dataclasses.fields(RunConfig):
        names = {f.name for f in dataclasses.fields(get_type_hints(RunConfig)[section.name])}
        assert set(tables[section.name]) == names


@pytest.mark.parametrize("name", RUNS)
def test_presets_are_whole_and_survive_a_round_trip(name: str) -> None:
    config = load_config(name)
    assert config_from_tables(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("name", "model", "tau"),
    [
        ("qwen2.5-math-7b", "Qwen/Qwen2.5-Math-7B", 0.5),
        ("qwen3-1.7b-base", "Qwen/Qwen3-1.7B-Base", 0.25),
        ("qwen3-4b-base", "Qwen/Qwen3-4B-Base", 0.5),
    ],
)
def test_the_papers_runs(name: str, model: str, tau: float) -> None:
    config = load_config(name)
    assert (config.model.name, config.balance.tau) == (model, tau)
    assert (config.sample.prompts, config.sample.group_size, config.batch.steps) == (128, 8, 4)
    assert (config.update.clip_low, config.update.clip_high) == (0.2, 0.28)
    assert (config.batch.composer, config.credit.name) == ("grouped", "grpo")
    assert (config.update.lr, config.sample.temperature) == (1e-6, 1.0)
    assert config.balance_target == 1024


def test_a_file_goes_before_a_preset_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_run_file("demo").name == "demo.toml"
    (tmp_path / "demo").write_text("[loop]\nseed = 5\n")
    monkeypatch.chdir(tmp_path)
    assert load_config("demo").loop.seed == 5


def test_the_target_follows_the_iteration_unless_it_is_given() -> None:
    assert config_from_tables({"sample": {"prompts": 6, "group_size": 3}}).balance_target == 18
    assert config_from_tables({"balance": {"target": 10}}).balance_target == 10


# -- overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loop.seed=3", 3),
        ("loop.seed = 3 ", 3),
        ("loop.seed=1_000", 1000),
        ("loop.seed=3e-4", 0.0003),
        ("loop.seed=true", True),
        ("loop.seed=[1, 2]", [1, 2]),
        ("loop.seed=word", "word"),
        ("loop.seed=Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("loop.seed='3'", "3"),
        ("loop.seed=a=b", "a=b"),
        ("loop.seed=", ""),
        ("loop.seed=2024-01-31", "2024-01-31"),
        ("loop.seed=3\nlr = 1", "3\nlr = 1"),  # one line, one option
        (f"loop.seed={'9' * 5000}", "9" * 5000),  # more digits than Python reads
    ],
)
def test_override_values(text: str, value: object) -> None:
    assert parse_override(text, SECTIONS) == ("loop", "seed", value)
    assert type(parse_override(text, SECTIONS)[2]) is type(value)


def test_gspo_clips_at_its_own_range_unless_told_otherwise() -> None:
    def clip_range(*overrides: str) -> tuple[float, float]:
        update = config_from_tables({}, overrides).update
        return update.clip_low, update.clip_high

    assert clip_range() == (0.2, 0.28)
    assert clip_range("update.surrogate=gspo") == (3e-4, 4e-4)
    assert clip_range("update.surrogate=gspo", "update.clip_low=0.1") == (0.1, 4e-4)
    assert clip_range("update.surrogate=gspo", "update.surrogate=grpo") == (0.2, 0.28)


def test_overrides_win_and_the_last_one_most() -> None:
    config = config_from_tables(
        {"loop": {"seed": 1, "iterations": 7}}, ["loop.seed=2", "loop.seed=3", "update.lr=1"]
    )
    assert (config.loop.seed, config.loop.iterations) == (3, 7)
    assert config.update.lr == 1.0
    assert type(config.update.lr) is float  # a whole number is a number


# -- limits -------------------------------------------------------------------------------------


def limited() -> list[tuple[str, str, object, bool]]:
    """(section, option, value, whether it is allowed) around every declared limit."""
    cases: list[tuple[str, str, object, bool]] = []
    for section in dataclasses.fields(RunConfig):
        kind = get_type_hints(RunConfig)[section.name]
        hints = get_type_hints(kind)
        for f in dataclasses.fields(kind):
            for side, sign in (("at_least", -1), ("at_most", 1)):
                bound = f.metadata[side]
                if bound is not None:
                    bound = hints[f.name](bound)
                    cases.append((section.name, f.name, bound, True))
                    beyond = sign if hints[f.name] is int else sign * 1e-9
                    cases.append((section.name, f.name, bound + beyond, False))
    return cases


@pytest.mark.parametrize(("section", "option", "value", "allowed"), limited())
def test_limits_hold_to_the_last_step(
    section: str, option: str, value: object, allowed: bool
) -> None:
    tables = {section: {option: value}, "batch": {"steps": 1}}
    if section == "batch":
        tables = {section: {option: value}}
    if allowed:
        assert getattr(getattr(config_from_tables(tables), section), option) == value
    else:
        with pytest.raises(PoiseError, match=rf"^config: {section}\.{option} must be"):
            config_from_tables(tables)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
    ],
)
@pytest.mark.parametrize("option", ["update.lr", "sample.temperature", "verify.timeout_seconds"])
def test_numbers_are_finite(option: str, value: float) -> None:
    section, _, name = option.partition(".")
    with pytest.raises(PoiseError, match=option):
        config_from_tables({section: {name: value}})


@pytest.mark.parametrize("option", ["loop.seed", "update.lr", "model.name"])
def test_a_number_of_any_length_is_one_line(option: str) -> None:
    """Python does not print an integer of more than 4,300 digits."""
    with pytest.raises(PoiseError, match=f"{option} is too large a number"):
        load_config("demo", [f"{option}=0x{'f' * 5000}"])
    assert load_config("demo", [f"loop.seed={2**63 - 1}"]).loop.seed == 2**63 - 1


def test_choices_are_checked_for_every_option_that_has_them() -> None:
    checked = 0
    for section in dataclasses.fields(RunConfig):
        for f in dataclasses.fields(get_type_hints(RunConfig)[section.name]):
            if f.metadata["choices"]:
                checked += 1
                listed = isinstance(getattr(getattr(RunConfig(), section.name), f.name), list)
                given = ["no such choice"] if listed else "no such choice"
                said = rf"{section.name}\.{f.name}: unknown \w+ 'no such choice'"
                with pytest.raises(PoiseError, match=said):
                    config_from_tables({section.name: {f.name: given}})
    assert checked >= 12


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"task": {"levels": [0]}}, "0 is not a level"),
        ({"task": {"levels": [True]}}, "list of int"),
        ({"task": {"levels": 3}}, r"list of int, not 3: write \[3\]"),
        ({"evaluate": {"settings": []}}, "evaluate.settings must not be empty"),
        ({"evaluate": {"settings": "training"}}, r'list of str, .*: write \["training"\]'),
        ({"task": {"levels": [1.0]}}, "list of int"),
        ({"batch": {"composer": "whole"}}, "set batch.steps=1"),
        ({"batch": {"steps": 17}}, "16 groups cannot fill 17 steps"),
        ({"sample": {"prompts": 1}, "batch": {"steps": 2}}, "^1 group cannot fill 2 steps"),
        (
            {"balance": {"tau": 0.5, "target": 1}, "batch": {"steps": 2}},
            "^1 row cannot fill 2 steps: lower",
        ),
        (
            {"balance": {"tau": 0.5, "target": 8}, "batch": {"steps": 2}},
            "^balance.target=8 may be 1 group, which cannot fill 2 steps",
        ),
        (
            {"sample": {"anchors": 7}},
            "sample.anchors=7 leaves fewer than two of",
        ),
        (
            {"sample": {"anchors": 1}, "update": {"old_logprobs": "sampler"}},
            "set update.old_logprobs=trainer",
        ),
        (
            {"sample": {"anchors": 1}, "update": {"importance": "token"}},
            "set update.importance=off",
        ),
        ({"sample": {"anchors": 1}, "batch": {"composer": "coupled"}}, "batch.composer=grouped"),
        ({"sample": {"anchors": 1}, "task": {"environment": "tries"}}, "task.environment=none"),
        ({"sample": {"refills": 1}, "credit": {"name": "w_reinforce"}}, "set sample.refills=0"),
        (
            {
                "update": {"surrogate": "reinforce", "trajectory": "min_replace"},
                "batch": {"composer": "shuffled"},
            },
            "needs whole groups, and shuffled cuts them",
        ),
        (
            {
                "update": {"surrogate": "reinforce", "trajectory": "min_replace"},
                "batch": {"composer": "shuffled", "steps": 1, "rows_per_step": 8},
            },
            "needs whole groups, and shuffled cuts them",
        ),
        (
            {
                "update": {"surrogate": "reinforce", "trajectory": "min_replace"},
                "credit": {"name": "w_reinforce"},
            },
            "sum to 0 in a group, and those of credit.name=w_reinforce do not",
        ),
        (
            {"batch": {"composer": "by_sign", "rows_per_step": 48}},
            "batch.rows_per_step changes the number of steps",
        ),
        ({"verify": {"also": ["wit"]}}, "verify.also: unknown reward 'wit'"),
        ({"verify": {"also": ["overlong"], "overlong_tokens": 129}}, "is longer than a response"),
        ({"credit": {"mixture": "decoupled"}}, "one reward to combine: set verify.also"),
        ({"update": {"lr": 1e38}}, r"^update.lr=1e\+38: an update of that size overflows float32"),
        (
            {"warmup": {"lr": 1e300}},
            r"^warmup.lr=1e\+300: an update of that size overflows",
        ),
        ({"warmup": {"hidden": 150, "heads": 4}}, "warmup.hidden"),
        ({"warmup": {"heads": 5}}, "warmup.heads"),
    ],
)
def test_options_that_do_not_fit_together(tables: dict, message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables(tables)


def test_rows_per_step_replaces_the_number_of_steps() -> None:
    tables = {"sample": {"prompts": 2}, "batch": {"steps": 4, "rows_per_step": 16}}
    assert config_from_tables(tables).batch.rows_per_step == 16


def test_the_source_is_named() -> None:
    with pytest.raises(PoiseError, match=r"^a/run\.toml: in \[sample\]: unknown option 'promts'"):
        config_from_tables({"sample": {"promts": 1}}, where="a/run.toml")
    with pytest.raises(PoiseError, match=r"^--set sample\.promts=1: in \[sample\]: unknown"):
        config_from_tables({}, ["sample.promts=1"], where="a/run.toml")


# -- documentation ------------------------------------------------------------------------------


def test_every_option_is_documented_once() -> None:
    rows = list_options()
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names))
    assert {name.partition(".")[0] for name in names} == SECTIONS
    assert all(len(doc) > 5 for _, _, doc in rows)
    assert {name: default for name, default, _ in rows}["update.lr"] == "1e-06"
    composer = next(doc for name, _, doc in rows if name == "batch.composer")
    assert "grouped" in composer
    assert "by_sign" in composer


def test_names_that_people_script_against() -> None:
    names = {name for name, _, _ in list_options()}
    assert names >= {
        "loop.iterations", "loop.seed", "model.name", "task.name", "sample.prompts",
        "sample.group_size", "credit.name", "balance.tau", "balance.unit", "batch.composer",
        "batch.steps", "update.lr",
    }  # fmt: skip
    assert names >= CHANGEABLE_OPTIONS
