"""Write the pages of docs/reference/ that say what the code says: `make docs`.

    options.md       every option of a run file
    variants.md      every variant that an option or a command can name
    commands.md      every `poise` command
    run-folder.md    the files of a run folder and their fields
    api.md           what `import counterpoise` offers, with an example
    tree.md          every folder with one sentence
    papers.md        what of each paper is here (docs/papers.toml)

A page is a function in PAGES. `tests/test_generated_docs.py` fails when a stored page is no longer
what its function returns.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from typer.main import get_command

import counterpoise
from counterpoise import variants
from counterpoise.cli import app
from counterpoise.config import RunConfig
from counterpoise.lab.papers import papers_lines
from counterpoise.plugins import PLUGIN_CHOICE, Registry
from counterpoise.store import schema

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "counterpoise"
REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Written by docs/generate.py (make docs): edit the code, not this page. -->"


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


# -- what pages share ----------------------------------------------------------------------------


def page_text(title: str, introduction: str, lines: Iterable[str]) -> str:
    text = "\n".join([f"# {title}", "", NOTICE, "", introduction, "", *lines])
    return text.rstrip() + "\n"


def aligned(fields: Mapping[str, str]) -> list[str]:
    """Names and meanings as two columns of a code block; long names leave no gap."""
    width = min(28, max(map(len, fields)))
    lines = [f"{name:<{width}}  {meaning}".rstrip() for name, meaning in fields.items()]
    return [*(f"    {line}" for line in lines), ""]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def summary_line(path: Path) -> str:
    """The first sentence-like line of a module's docstring."""
    return first_paragraph(ast.get_docstring(parse(path)))


# -- options.md ----------------------------------------------------------------------------------


def options_page() -> str:
    lines = []
    for section, kind in get_type_hints(RunConfig).items():
        lines += [f"## {section}", ""]
        for field in dataclasses.fields(kind):
            default = f"`{json.dumps(getattr(kind(), field.name))}`"
            beside = "; ".join(filter(None, [default, allowed_values(field)]))
            lines.append(f"- `{field.name}` ({beside}): {field.metadata['doc']}")
        lines += [""]
    introduction = (
        "A run file is TOML with these sections; `--set section.option=value` overrides it. In "
        "brackets: the default, then the values that are allowed; `FILE.py:FUNCTION` is a function "
        "[of your own](../guide/extending.md). `poise options` prints this list."
    )
    return page_text("Options of a run file", introduction, lines)


def allowed_values(field: dataclasses.Field[Any]) -> str:
    """The names an option takes, or its bounds; empty where only the type bounds it."""
    choices, low, high = (field.metadata[key] for key in ("choices", "at_least", "at_most"))
    if choices:
        return ", ".join(choices)
    if low is None:
        return ""
    return f">= {low:g}" if high is None else f"{low:g} to {high:g}"


# -- variants.md ---------------------------------------------------------------------------------

# Tables that name no choice of the user's.
INTERNAL_TABLES = ("COMPOSER_PROMISES", "STAGE_CHECKS", "PANELS", "FINDINGS")
DESCRIBED_BY_THEIR_OBJECT = ("ENVIRONMENTS",)  # their modules are about more
TABLES_WITH_SETTINGS = ("TOKEN_WEIGHTS", "STEP_RULES")
# Tables whose variants have a page: only names, settings and papers are listed.
DESCRIBED_ON_A_PAGE = {
    "ADVANTAGES": "credit-methods.md#advantages",
    "TOKEN_WEIGHTS": "credit-methods.md#token-weights",
    "STEP_RULES": "credit-methods.md#step-rules",
    "COMPOSERS": "batching.md#composers",
    "STUDIES": "../results/replication.md",
    "IMPORTERS": "../guide/any-run.md",
    "SPEED_MEASUREMENTS": "../results/speed.md",
    "TASKS": "../guide/your-data-and-reward.md#prompts",
    "VERIFIERS": "../guide/your-data-and-reward.md#the-built-in-verifiers",
    "TRACKERS": "../guide/any-run.md#tensorboard-weights--biases-and-trackio",
}


def variants_page() -> str:
    registries = all_registries()
    entries = {entry for registry in registries.values() for entry in registry.values()}
    variants_in_module = Counter(entry.partition(":")[0] for entry in entries)
    comments = table_comments()
    lines = []
    for name, registry in registries.items():
        if name in INTERNAL_TABLES:
            continue
        option = option_that_names(registry)
        text = f"Option `{option}`" if option else comments[name]
        plugin = f", or `{PLUGIN_CHOICE}`" if registry.plugin_loader else ""
        page = DESCRIBED_ON_A_PAGE.get(name)
        formulas = f" [What they do]({page})." if page else ""
        lines += [f"## {name}", "", f"{text}{plugin}{'.' if option else ''}{formulas}", ""]
        table_lines = []
        for variant, entry in registry.items():
            alone = variants_in_module[entry.partition(":")[0]] == 1
            text, paper = describe_variant(entry, alone and name not in DESCRIBED_BY_THEIR_OBJECT)
            settings = shown_settings(registry, variant) if name in TABLES_WITH_SETTINGS else ""
            details = "".join(f" {detail}." for detail in (settings, paper) if detail)
            shown = details if page else f" {text}{details}"
            table_lines.append(f"`{variant}`{':' if shown else ''}{shown}")
        # Bare names read better in one line.
        if any(":" in line for line in table_lines):
            lines += [f"- {line}" for line in table_lines] + [""]
        else:
            lines += [", ".join(table_lines), ""]
    introduction = (
        "Every name that an option or a command takes, by its table in `variants.py`. What you "
        "write to add one: [extending.md](../guide/extending.md)."
    )
    return page_text("Variants", introduction, lines)


def all_registries() -> dict[str, Registry]:
    return {name: table for name, table in vars(variants).items() if isinstance(table, Registry)}


def table_comments() -> dict[str, str]:
    """Table -> the comment above it in variants.py, as one paragraph."""
    comments, block = {}, []
    for line in (SOURCE / "variants.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# --"):
            block.append(line.removeprefix("# "))
            continue
        if match := re.match(r"([A-Z_]+) = ", line):
            text = " ".join(block).strip()
            comments[match[1]] = f"{text}."
        block = []
    return comments


def option_that_names(registry: Registry) -> str:
    for section, kind in get_type_hints(RunConfig).items():
        for field in dataclasses.fields(kind):
            if set(field.metadata["choices"]) - {PLUGIN_CHOICE, "none"} == set(registry):
                return f"{section}.{field.name}"
    return ""


def describe_variant(entry: str, alone: bool) -> tuple[str, str]:
    """One sentence of the docstring, and the first paper that it names.

    `alone`: the module holds no other variant, so its docstring is about this one.
    """
    module, _, attribute = entry.partition(":")
    tree = parse(SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py"))
    definitions = [node for node in tree.body if getattr(node, "name", "") == attribute]
    # An object without a docstring of its own is described by its module.
    docstrings = [ast.get_docstring(node) for node in [*[tree] * alone, *definitions, tree]]
    text = next(filter(None, docstrings))
    papers = re.findall(r"arXiv:\d{4}\.\d{5}", text)
    sentence = re.sub(r"\s*(?:arXiv:|docs/)\S+", "", drop_label(first_paragraph(text)))
    if sentence[-1] not in ".?":  # a formula follows
        sentence = sentence.rpartition(",")[0] + "."
    # The first sentence, but "Dr. GRPO" and "Fig. 7" do not end one.
    return re.split(r"(?<=[\w()`]{4}\.) (?=[A-Z])", sentence)[0], papers[0] if papers else ""


def drop_label(summary: str) -> str:
    """A docstring's summary without the name it begins with.

    Example:
        >>> drop_label("GTPO: tokens that rollouts share."), drop_label("Panel of the monitor.")
        ('Tokens that rollouts share.', 'The monitor.')
    """
    label = r"`[^`]*`|[A-Z][\w-]*|THR \([\w ]+\)|The `?\w+`? (?:task|sampler)|Composer `\w+`"
    text = re.sub(f"^(?:(?:{label}): |Panel of )", "", summary)
    return text if text == summary else text[:1].upper() + text[1:]


def shown_settings(registry: Registry, variant: str) -> str:
    """Keyword-only arguments, which are a variant's settings: `beta=1.0`, `by_rate=True`."""
    parameters = inspect.signature(registry.load(variant)).parameters.values()
    return ", ".join(f"`{p.name}={p.default}`" for p in parameters if p.kind is p.KEYWORD_ONLY)


# -- commands.md ---------------------------------------------------------------------------------


SHARED_BY = 3  # commands: a flag that so many describe alike is described once


def commands_page() -> str:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown_parameters = {
        name: [parameter for parameter in command.params if not parameter.hidden]
        for name, command in commands.items()
    }
    counts = Counter(
        describe_parameter(parameter)
        for parameters in shown_parameters.values()
        for parameter in parameters
    )
    shared = [description for description, count in counts.items() if count >= SHARED_BY]
    lines = ["## Shared by several commands", "", *(f"- {text}" for text in shared), ""]
    for name, command in commands.items():
        parameters = shown_parameters[name]
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        options = [p for p in parameters if p.param_type_name == "option"]
        required = [f"{p.opts[0]} {p.name.upper()}" for p in options if p.required]
        optional = ["[options]"] if any(not p.required for p in options) else []
        synopsis = ["poise", name, *map(argument_place, arguments), *required, *optional]
        lines += [
            f"## {name}",
            "",
            f"`{' '.join(synopsis)}`",
            "",
            first_paragraph(command.help),
            "",
        ]
        shared_flags = []
        for parameter in parameters:
            if describe_parameter(parameter) in shared:
                shared_flags.append(f"`{parameter.opts[0]}`")
            else:
                lines.append(f"- {describe_parameter(parameter)}")
        lines += [f"- {', '.join(shared_flags)}", ""] if shared_flags else [""]
    introduction = (
        "Exit codes: 0; 1 for a failed self-check of `poise doctor`; 2 for an error that the user "
        "can fix, in one line on standard error; 130 after Ctrl-C or SIGTERM."
    )
    return page_text("Commands", introduction, lines)


def argument_place(argument: Any) -> str:
    place = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return place if argument.required else f"[{place}]"


def describe_parameter(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if is_argument else "`, `".join(parameter.opts)
    default = parameter.default
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    shown = "" if default is None or default is False or default == "" else f" ({default})"
    return f"`{name}`{shown}: {re.sub(r'(?<![.])[.]$', '', parameter.help or '')}"


# -- run-folder.md -------------------------------------------------------------------------------


def run_folder_page() -> str:
    metrics = {
        "sampling": schema.SAMPLING_METRICS,
        "batch and plan": {**schema.BATCH_METRICS, **schema.PLAN_METRICS},
        "update": {**schema.STEP_METRICS, **schema.UPDATE_METRICS, **schema.SAMPLER_METRICS},
        "monitor": schema.MONITOR_METRICS,
        "held-out answers, with monitor.probe": schema.PROBE_METRICS,
        "time": schema.TIME_METRICS,
    }
    lines = [*aligned(schema.FILES), "## metrics.jsonl", ""]
    lines += ["Fields are null where nothing was updated. All but times repeat on the CPU.", ""]
    for part, fields in metrics.items():
        lines += [f"### {part}", "", *aligned(fields)]
    for log, fields in schema.LOGS.items():
        if log != "metrics":
            lines += [f"## {log}.jsonl", "", *aligned(fields)]
        if log == "plans":
            lines += ["### describe", "", *aligned(schema.DESCRIPTION)]
            lines += ["### imported plans", "", *aligned(schema.SCHEDULE)]
    for kind, fields in schema.STEP_FILES.items():
        lines += [f"## {kind}/", "", *aligned(fields)]
    lines += ["## checkpoints/", "", *aligned(schema.CHECKPOINT)]
    introduction = (
        'Every reader of a run reads this folder. Records carry `"schema": 1`. Whole files are '
        "replaced atomically; logs are appended line by line, and a cut last line is ignored. "
        "Seeds and resuming: [design.md](design.md)."
    )
    return page_text("The run folder", introduction, lines)


# -- tree.md -------------------------------------------------------------------------------------


def tree_page() -> str:
    """docs/reference/tree.md: what each folder holds, and the names of its subfolders."""
    packages = sorted(path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py"))
    lines = []
    for folder in [package for package in packages if len(package.parts) == 1]:
        subfolders = [
            f"`{package.relative_to(folder).as_posix()}/`"
            for package in packages
            if folder in package.parents
        ]
        inside = f" Inside: {', '.join(subfolders)}." if subfolders else ""
        lines.append(f"- `{folder}/` {summary_line(SOURCE / folder / '__init__.py')}{inside}")
    introduction = (
        "The folders of `src/counterpoise/`. The first line of a module, and of a subfolder's "
        "`__init__.py`, says what it is for. [Import order](design.md#import-order)."
    )
    return page_text("Every folder", introduction, lines)


# -- api.md --------------------------------------------------------------------------------------

API_EXAMPLE = "plain_loop_token_weights.py"  # stands on the page; the others are linked
API_SECTIONS = {  # title -> (example, names that have an entry of their own)
    "Batches": (
        "plain_loop_batches.py",
        ("Row", "compose", "BatchPlan", "describe", "RewardBalancedBuffer"),
    ),
    "Advantages": ("plain_loop_advantages.py", ("advantages",)),
    "Token weights": ("plain_loop_token_weights.py", ("weights",)),
    "What a step did": ("plain_loop_decompose.py", ("decompose", "Coupling")),
}
API_METHODS = {  # class -> methods and properties that its entry lists
    "RewardBalancedBuffer": ("add", "take", "state"),
    "Coupling": ("from_others", "cancellation"),
}
API_INTRODUCTION = """For a training loop of your own:

    import counterpoise as poise

Arrays are lists, numpy arrays or torch tensors. Axes: R rollouts, G rollouts of a prompt, T tokens
of a rollout, N tokens of a step, V vocabulary, D hidden size. A wrong argument raises
`poise.PoiseError`, whose one line names it; `help(poise.compose)` shows a small example of each."""

Definition = ast.FunctionDef | ast.ClassDef


def api_page() -> str:
    """docs/reference/api.md: the public names by topic, each with its example or a link to it."""
    lines = ["# Python API", "", NOTICE, "", API_INTRODUCTION, ""]
    for title, (example, names) in API_SECTIONS.items():
        lines += [f"## {title}", "", *example_lines(example), ""]
        for name in names:
            lines += api_entry(name, find_public(name))
        if title == "Advantages":
            methods = [f"`{name}`" for name in public_names() if name in variants.ADVANTAGES]
            text = "Each method is also a function of the rewards [G] of one group; formulas are in"
            lines += [f"{text} [variants.md](variants.md#advantages): {', '.join(methods)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def example_lines(example: str) -> list[str]:
    """A link to an example and what it shows; the one that stands on the page follows whole."""
    path = ROOT / "examples" / example
    link = f"[`examples/{example}`](../../examples/{example})"
    if example != API_EXAMPLE:
        return [f"Example: {link}: {summary_line(path)}"]
    source = path.read_text(encoding="utf-8").rstrip()
    return [f"{link}:", "", "```python", source, "```"]


def public_names() -> dict[str, str]:
    return counterpoise.PUBLIC_NAMES


def find_public(name: str) -> Definition:
    """The definition of a public name; of an overloaded function the one that is documented."""
    module, _, attribute = public_names()[name].partition(":")
    path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, Definition) and n.name == attribute]
    return found[-1]


def api_entry(name: str, definition: Definition) -> list[str]:
    """Heading, signature, and the docstring; of a class also its fields and methods."""
    lines = [f"### `{name}`", ""]
    members = definition.body if isinstance(definition, ast.ClassDef) else []
    methods = [m for m in members if isinstance(m, ast.FunctionDef)]
    initialisers = [m for m in methods if m.name == "__init__"]
    signatures = [definition] if isinstance(definition, ast.FunctionDef) else initialisers
    lines += [f"    {name}({arguments_without_types(f)})" for f in signatures]
    fields = [member for member in members if isinstance(member, ast.AnnAssign)]
    if fields:
        lines += [f"    {line.strip()}" for line in source_lines(public_names()[name], fields)]
    lines += ["", *docstring_lines(ast.get_docstring(definition) or ""), ""]
    listed = [method for method in methods if method.name in API_METHODS.get(name, ())]
    for method in listed:
        summary = (ast.get_docstring(method) or "").splitlines()[0]
        lines.append(f"- `.{method.name}{method_arguments(method)}`: {summary}")
    return [*lines, ""] if listed else lines


def arguments_without_types(function: ast.FunctionDef) -> str:
    arguments = copy.deepcopy(function.args)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.kwarg]
    for argument in every:
        if argument:
            argument.annotation = None
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    return ast.unparse(arguments)


def method_arguments(method: ast.FunctionDef) -> str:
    is_property = any(ast.unparse(d) == "property" for d in method.decorator_list)
    return "" if is_property else f"({arguments_without_types(method)})"


def source_lines(entry: str, nodes: Sequence[ast.stmt]) -> list[str]:
    """The lines of these nodes as they stand in the source, with the comments beside them."""
    module = entry.partition(":")[0]
    path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = path.read_text(encoding="utf-8").splitlines()
    lines = []
    for node in nodes:
        code, comment = "\n".join(text[node.lineno - 1 : node.end_lineno]), ""
        if "\n" in code:  # the formatter broke it to keep its comment
            code, comment = ast.unparse(node), code.partition("#")[2].partition("\n")[0]
        lines.append(f"{code}  #{comment}" if comment else code)
    return lines


def docstring_lines(docstring: str) -> list[str]:
    """A docstring as Markdown: what is indented below a label becomes a code block.

    Its example, which comes last, is left out: the page links to larger ones.
    """
    lines = []
    for line in docstring.partition("\nExample:\n")[0].rstrip().splitlines():
        lines += [line, ""] if re.fullmatch(r"[A-Z]\w+:", line) else [line]
    return lines


# -- papers.md -----------------------------------------------------------------------------------


def papers_page() -> str:
    introduction = (
        "Every algorithm, equation, figure, table and claim of the papers behind this package. "
        "Engines: those that honour the options; commands are the native engine's. Agreement: the "
        "tolerance of the test against a literal sum, a closed form or autograd, or the verdict "
        "[on up to three models](../results/replication.md), in that page's order if they differ."
    )
    lines = papers_lines(ROOT / "docs" / "papers.toml", ROOT / "docs" / "data" / "claims.csv")
    return page_text("The papers", introduction, lines)


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "variants.md": variants_page,
    "commands.md": commands_page,
    "run-folder.md": run_folder_page,
    "api.md": api_page,
    "tree.md": tree_page,
    "papers.md": papers_page,
}


if __name__ == "__main__":
    main()
