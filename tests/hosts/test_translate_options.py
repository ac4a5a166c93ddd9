"""No option is forgotten: every engine has thought about every one of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.translate_options import (
    ACCEPTED_VALUES,
    HANDLED_HERE,
    NO_EFFECT,
    NOT_WRITTEN,
    PASSED_ON,
    OptionSupport,
    accept_only,
    check_support,
    iterate_options,
    list_omissions,
    list_refusals,
    no_effect,
)
from counterpoise.hosts.trl import run_options as trl
from counterpoise.hosts.verl import command
from counterpoise.hosts.verl import run_options as verl
from counterpoise.model.templates import AUTO, TEMPLATES

TABLES = {"trl": trl.OPTIONS, "verl": verl.OPTIONS}
NAMES = [name for name, _, _ in iterate_options(RunConfig())]
OTHER: dict[str, Any] = {  # another value for what has no number or choice to change
    "model.name": "smollm2-folder", "task.path": "x.jsonl", "evaluate.settings": ["0.6/0.95"],
    "task.levels": [1], "task.benchmarks": ["b.jsonl"], "balance.tau": 0.5, "balance.target": 64,
    "batch.composer": "shuffled", "batch.steps": 2, "sample.prompts": 32, "sample.group_size": 4,
    "model.device": "cpu", "model.template": "boxed", "update.max_grad_norm": 0.0,
    "update.micro_tokens": 2000, "track.to": ["wandb"],
}  # fmt: skip

WITH_VLLM = [("sample.engine", "vllm")]
WITH_CORRECTION = [*WITH_VLLM, ("update.importance", "sequence")]
# Options of TRL that mean something only beside others.
NEEDED_BY: dict[tuple[str, str], list[tuple[str, Any]]] = {
    ("trl", "sample.engine_memory"): WITH_VLLM,
    ("trl", "update.importance"): WITH_VLLM,
    ("trl", "update.importance_cap"): WITH_CORRECTION,
    ("trl", "update.importance_mode"): WITH_CORRECTION,
}


def other(name: str, value: Any) -> Any:
    """A value that is not the default."""
    if name in OTHER:
        return OTHER[name]
    section, key = name.split(".")
    (field,) = (f for f in dataclasses.fields(getattr(RunConfig(), section)) if f.name == key)
    choices = [c for c in field.metadata["choices"] if c != value]
    if choices:
        return choices[0]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        most = field.metadata["at_most"]
        return value / 2 if most is not None and value + 1 > most else value + 1
    return "other"


def with_option(name: str, value: Any, config: RunConfig | None = None) -> RunConfig:
    config = config or RunConfig()
    section, key = name.split(".")
    changed = dataclasses.replace(getattr(config, section), **{key: value})
    return dataclasses.replace(config, **{section: changed})


def arguments(engine: str, config: RunConfig) -> dict[str, Any]:
    if engine == "verl":
        return command.verl_settings(config, Path("out"))
    cpu, half = config.model.device == "cpu", config.model.dtype == "bfloat16"
    return trl.trainer_arguments(config, longest_prompt=60, half=half, cpu=cpu)


@pytest.mark.parametrize("engine", TABLES)
def test_every_option_is_mapped_harmless_or_refused(engine: str) -> None:
    table = TABLES[engine]
    assert set(table) == set(NAMES)
    for name, option in table.items():
        assert option.kind in (
            PASSED_ON,
            HANDLED_HERE,
            NO_EFFECT,
            ACCEPTED_VALUES,
            NOT_WRITTEN,
        )
        assert bool(option.engine_options) == (option.kind == PASSED_ON), name
        assert option.kind == PASSED_ON or option.reason, name
        assert option.reason or not option.honoured_values, name


@pytest.mark.parametrize("engine", TABLES)
def test_a_run_of_defaults_is_honoured(engine: str) -> None:
    assert list_refusals(RunConfig(), TABLES[engine]) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", TABLES)
def test_another_value_reaches_the_engine_or_stops(engine: str, name: str) -> None:
    """What is mapped changes the keys it names and no others; what is refused is named."""
    option = TABLES[engine][name]
    values = {n: v for n, v, _ in iterate_options(RunConfig())}
    value = other(name, values[name])
    if name == "model.dtype":  # the one that 'auto' is not
        value = {"trl": "bfloat16", "verl": "float32"}[engine]
    if option.honours(value):
        base = RunConfig()
        for needed_name, needed_value in NEEDED_BY.get((engine, name), []):
            base = with_option(needed_name, needed_value, base)
        config = with_option(name, value, base)
        before, after = arguments(engine, base), arguments(engine, config)
        changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        if option.kind == PASSED_ON:
            assert set(option.engine_options) & changed, (name, value)
        else:
            logged = {"learning_rate"} if name == "update.lr" else set()
            assert changed <= logged, (name, changed)
    else:
        (fault,) = list_refusals(with_option(name, value), TABLES[engine])
        assert fault.startswith(f"{name}=")
        assert option.reason in fault


@pytest.mark.parametrize("engine", TABLES)
def test_choices_that_are_honoured_have_a_translation(engine: str) -> None:
    for surrogate in TABLES[engine]["update.surrogate"].honoured_values:
        for aggregate in TABLES[engine]["update.aggregate"].honoured_values:
            config = with_option("update.surrogate", surrogate)
            arguments(engine, with_option("update.aggregate", aggregate, config))


@pytest.mark.parametrize("engine", TABLES)
def test_a_template_with_ends_of_its_own_is_refused(engine: str) -> None:
    """By its name, so that a new template has to be thought of."""
    honoured = TABLES[engine]["model.template"].honoured_values
    ending = {name for name, template in TEMPLATES.items() if template.end_tokens}
    assert set(honoured) == {AUTO, *TEMPLATES} - ending
    (fault,) = list_refusals(with_option("model.template", "qwen-math"), TABLES[engine])
    assert "does not stop a response" in fault


def test_an_option_nobody_thought_of_is_refused_unless_at_its_default() -> None:
    table: dict[str, OptionSupport] = {
        name: no_effect("-") for name in NAMES if name != "update.lr"
    }
    assert list_refusals(RunConfig(), table) == []
    assert list_refusals(with_option("update.lr", 1.0), table) == [
        "update.lr=1.0 (unknown to this engine)"
    ]


def test_faults_are_one_line_that_names_all() -> None:
    table = {name: no_effect("-") for name in NAMES}
    table |= {
        "loop.seed": accept_only(0, reason="no seeds"),
        "loop.threads": accept_only(0, reason="no threads"),
    }
    config = with_option("loop.threads", 4, with_option("loop.seed", 7))
    with pytest.raises(PoiseError) as fault:
        check_support(config, table, "trl", ["a x b (odd)"])
    assert str(fault.value) == (
        "--engine trl cannot honour loop.seed=7 (no seeds); loop.threads=4 (no threads); "
        "a x b (odd): change them, or train with --engine native"
    )


def test_what_is_not_written_is_said_and_refused_when_asked_for() -> None:
    assert any("store.tokens" in note for note in list_omissions(RunConfig(), verl.OPTIONS))
    off = with_option("store.tokens", False)
    assert not any("store.tokens" in note for note in list_omissions(off, verl.OPTIONS))
    assert list_refusals(with_option("monitor.watch", 5), verl.OPTIONS) == [
        "monitor.watch=5 (no table of pushes)"
    ]


@pytest.mark.parametrize("engine", [trl, verl])
def test_a_composer_that_compares_tokens_is_refused(engine: Any) -> None:
    with pytest.raises(PoiseError, match=r"batch\.composer=coupled"):
        engine.check_options(with_option("batch.composer", "coupled"))


@pytest.mark.parametrize("preset", ["qwen3-1.7b-base", "qwen3-4b-base", "qwen2.5-math-7b"])
@pytest.mark.parametrize("engine", ["trl", "verl"])
def test_the_papers_presets_are_honoured(preset: str, engine: str) -> None:
    (trl if engine == "trl" else verl).check_options(load_config(preset))


def test_the_page_names_what_is_refused() -> None:
    for engine, table in TABLES.items():
        guide = Path(__file__).parents[2] / "docs" / "guide"
        page = (guide / f"{engine}.md").read_text(encoding="utf-8")
        for name, option in table.items():
            assert not option.honoured_values or f"`{name}`" in page, name
