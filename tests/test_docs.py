"""What the documents name is there: pages, commands, options, files, functions, defaults."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from counterpoise import __version__, seeds
from counterpoise.cli import app
from counterpoise.config.load import find_run_file, list_options, load_config
from counterpoise.hosts.translate_options import NOT_WRITTEN, OptionSupport
from counterpoise.hosts.trl import run_options as trl
from counterpoise.hosts.verl import run_options as verl
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.studies.selection import parse_sizes
from counterpoise.plugins import is_plugin
from counterpoise.store.resume import CHANGEABLE_OPTIONS
from counterpoise.variants import ADVANTAGES, COMPOSERS, STUDIES, TOKEN_WEIGHTS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "REPORT.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = pytest.mark.parametrize("page", DOCS, ids=lambda page: f"{page.parent.name}/{page.name}")
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
OPTIONS = {name for name, _, _ in list_options()}
SUFFIXES = {"py", "md", "json", "parquet", "safetensors"}
VARIABLE = "TASK"  # stands for options that are said below the command


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> Iterator[str]:
    """Whole commands of code blocks, without remarks beside them."""
    text = re.sub(r" *\\\n +", " ", text_of(page))
    for line in re.findall(r"^(?:    )?(?:[\w-]*\$ +)?(?:[A-Z_]+=\S+ )*(poise .+)$", text, re.M):
        yield re.split(r"   +|\s#\s", line)[0]


def places(page: Path) -> set[str]:
    """The names by which a page's headings are linked to."""
    heads = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@PAGES
def test_links(page: Path) -> None:
    for link, place in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(page)):
        if not link.startswith("http"):
            target = page.parent / link if link else page
            assert target.exists(), link
            assert not place or place in places(target), f"{link}#{place}"


def pages_linked_from(index: Path) -> set[Path]:
    return {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", text_of(index))}


def test_every_page_is_one_step_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= pages_linked_from(index)


def test_every_page_of_the_guide_is_one_step_from_the_readme() -> None:
    linked = pages_linked_from(ROOT / "README.md")
    assert {ROOT / "docs" / "README.md", *(ROOT / "docs" / "guide").glob("*.md")} <= linked


@pytest.mark.parametrize("page", [*DOCS, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_flags_of_commands(page: Path) -> None:
    """Also where a command is only mentioned."""
    for name, words in re.findall(r"\bpoise ([a-z][a-z-]*)\b([^`#|\n]*)", text_of(page)):
        if name in COMMANDS:
            known = {option for one in COMMANDS[name].params for option in one.opts}
            asked = set(re.findall(r"(?<!\S)\[?(--[a-z-]+)", words))
            assert asked <= known | {"--help"}, f"poise {name}{words}"


@PAGES
def test_commands_are_taken_as_they_stand(page: Path) -> None:
    for line in command_lines(page):
        _, name, *words = shlex.split(line)
        if any(word.startswith("[") for word in words):  # a synopsis
            continue
        given = COMMANDS[name].make_context(name, [w for w in words if w != VARIABLE]).params
        added = re.findall(r'^"(\w+)": "counterpoise', text_of(page), re.MULTILINE)
        sets = [
            one
            for one in given.get("sets") or ()
            if not is_plugin(one.partition("=")[2]) and not any(name in one for name in added)
        ]
        file = str(given.get("config") or given.get("file") or "demo")
        mine = file.endswith(".toml") and not (ROOT / file).exists()
        if name == "experiment":
            assert mine or find_run_file(file).exists(), line
        else:
            load_config("demo" if mine or file.isupper() else find_run_file(file), sets)
        check_names(name, given)


def check_names(command: str, given: dict[str, Any]) -> None:
    if command == "study" and given["name"] not in (None, "all", "NAME"):
        studies = [STUDIES.load(name) for name in given["name"].split(",")]
        parse_sizes(given["sizes"] or (), [one.budgets[given["budget"]] for one in studies])
    if command == "plan" and not is_plugin(given["composer"]):
        assert given["composer"] in COMPOSERS
        assert given["credit"] in ADVANTAGES
    if command == "credit" and given["names"] != "NAME":
        assert {one.partition(":")[0] for one in given["names"].split(",")} <= {*TOKEN_WEIGHTS}


@PAGES
def test_scripts_take_what_they_are_given(page: Path) -> None:
    text = text_of(page)
    for script, words in re.findall(r"python (examples/\w+\.py)([^\n`#]*)", text):
        for flag in re.findall(r"--[a-z-]+", words):
            assert f'"{flag}"' in text_of(ROOT / script), f"{script} {flag}"
    for module, words in re.findall(r"python\s+-m\s+(counterpoise[\w.]*)([^\n`#]*)", text):
        path = SOURCE.joinpath(*module.split(".")[1:])
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
        for flag in re.findall(r"--[a-z-]+", words) if path.with_suffix(".py").exists() else ():
            assert f'"{flag}"' in text_of(path.with_suffix(".py")), f"{module} {flag}"


@PAGES
def test_options_files_and_settings_exist(page: Path) -> None:
    text = text_of(page)
    sections = "|".join({name.partition(".")[0] for name in OPTIONS})
    named = set(re.findall(rf"`(?:\w+ )?((?:{sections})\.[a-z_]+)(?=[`= ])", text))
    files = {name for name in named if name.partition(".")[2] in SUFFIXES}
    assert named - files - {"loop.iterate"} <= OPTIONS  # which is a function
    assert set(re.findall(rf"(?<![\w.-])((?:{sections})\.[a-z_]+)=", text)) <= OPTIONS

    announced = re.findall(r"`?(?:# )?(src/\S+\.py|tests/\S+\.py)", "".join(blocks(page, "python")))
    announced += re.findall(r"The file, `(\S+)`", text)
    there = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("[a-z]*/**/*.*"))]
    for name in set(re.findall(r"`((?:[\w-]+/)*\w+\.(?:py|md|css|js))`", text)) - {*announced}:
        assert any(f"/{path}".endswith(f"/{name}") for path in [*there, *announced]), name
    for name in set(re.findall(r"\b((?:docs/data|runs|constraints)/[\w.-]+\w)", text)):
        assert (ROOT / name).exists(), name

    source = "".join(map(text_of, SOURCE.rglob("*.py")))
    for name in set(re.findall(r"POISE_[A-Z0-9_]+", text)):
        assert name in source, name
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    assert set(re.findall(r"counterpoise\[([\w-]+)\]", text)) <= set(extras)
    targets = set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= targets


@PAGES
def test_python_of_the_documents_imports_what_is_there(page: Path) -> None:
    written = "".join(blocks(page, "python")) + text_of(page)
    for block in blocks(page, "python"):
        if block.startswith(("# src/counterpoise", '"')) and "import" not in block:
            continue  # a line of a table
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("counter"):
                continue
            module = str(node.module)
            if f"src/{module.replace('.', '/')}.py" in written:  # the page adds this file
                continue
            for alias in node.names:
                assert hasattr(importlib.import_module(module), alias.name), (module, alias.name)


@PAGES
def test_run_files_of_the_documents_are_taken(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "toml"):
        (tmp_path / "mine.toml").write_text(block, encoding="utf-8")
        if "experiment" in tomllib.loads(block):
            read_experiment(tmp_path / "mine.toml")
        else:
            load_config(tmp_path / "mine.toml")


@pytest.mark.parametrize(("engine", "table"), [("trl", trl.OPTIONS), ("verl", verl.OPTIONS)])
def test_the_guide_names_every_option_that_an_engine_refuses(
    engine: str, table: Mapping[str, OptionSupport]
) -> None:
    _, _, section = text_of(ROOT / "docs" / "guide" / f"{engine}.md").partition(
        f"### What `--engine {engine}` refuses\n"
    )
    refused = {
        name
        for name, option in table.items()
        if option.honoured_values or option.kind == NOT_WRITTEN
    }
    assert len(refused) > 10
    assert refused <= set(re.findall(r"`([a-z]+\.\w+)`", section.partition("\n## ")[0]))


def test_the_present_version_is_not_spoken_of_as_past() -> None:
    """Sources name a release in full ("in release 0.2.0"): code after it has its version still."""
    present = __version__.rpartition(".")[0]
    as_past = re.compile(rf"version {re.escape(present)}(?!\.?\d)")
    sources = (ROOT / "src").rglob("*.py")
    assert [path for path in sources if as_past.search(path.read_text(encoding="utf-8"))] == []


def test_every_random_choice_of_a_run_is_listed_where_seeds_are_made() -> None:
    called = r'(?:seed_for|rng_for|step\.rng)\([^"()]*f?"([\w ]+)'
    # Studies and measurements of speed draw from their own seeds, not from a run's.
    files = [p for p in SOURCE.rglob("*.py") if not {"studies", "speed"} & set(p.parts)]
    stages = set().union(*(re.findall(called, text_of(path)) for path in files))
    assert {"sample", "compose", "monitor", "oar_g", "trl", "warmup"} <= stages
    listed_stages = re.findall(r"^    (\w+(?: \w+)?)[/ ]", seeds.__doc__ or "", re.MULTILINE)
    assert stages - {"coverage"} <= set(listed_stages)


def test_design_md_lists_what_a_resumed_run_may_change() -> None:
    text = text_of(ROOT / "docs" / "reference" / "design.md")
    resuming = text[text.index("## Resuming") : text.index("## What a change costs")]
    assert set(re.findall(r"`(\w+\.\w+)`", resuming)) & OPTIONS == CHANGEABLE_OPTIONS


def test_the_guide_says_how_a_variant_of_every_table_is_added() -> None:
    text = text_of(ROOT / "docs" / "guide" / "extending.md")
    tables = re.findall(r"^([A-Z_]+) = Registry\(", text_of(SOURCE / "variants.py"), re.MULTILINE)
    assert len(tables) > 20
    assert [table for table in tables if f"|`{table}`|" not in text] == []


@PAGES
def test_scripts_that_a_page_runs_exist(page: Path) -> None:
    scripts = re.findall(r"python ((?:[a-z_]+/)+[a-z_]+\.py)", text_of(page))
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
