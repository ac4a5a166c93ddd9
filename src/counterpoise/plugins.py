"""Plugins: the user's own functions, named FILE.py:FUNCTION or MODULE:FUNCTION.

    my_rewards.py:score                                as the user writes it
    /home/ana/my_rewards.py:score@1f0c6a2b9d3e4f50     as a run stores it
    my_rewards.py:score=0.5                            with a weight, in lists of several

After the @ come the first digits of the file's SHA-256. A run is pinned to it when its options are
read. A later load (by a resumed run or another process) gets the same function, or one line that
says the file has changed. The bytes that were hashed are the ones executed, once per process, so
editing the file does not affect a running run. Only the file itself is hashed, not its imports.
MODULE is looked up as Python does; FILE need not belong to a package.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import Signature, iscoroutinefunction, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from counterpoise.errors import PoiseError, first_line, unknown_name

PLUGIN_CHOICE = "FILE.py:FUNCTION"  # the choice that stands for any plugin
DIGEST_DIGITS = 16
_PLUGIN_NAME = re.compile(rf"(.+):([^\W\d]\w*)(?:@([0-9a-f]{{{DIGEST_DIGITS}}}))?(?:\s*=\s*(.*))?")


class PluginName(NamedTuple):
    """
    Example:
        str(parse_plugin_name("my_rewards.py:score@1f0c6a2b9d3e4f50")) == "my_rewards.py:score"
    """

    source: str  # a path that ends in .py, or a module
    function: str
    digest: str  # "": not pinned
    weight: str | None = None  # what stands behind an equals sign

    def __str__(self) -> str:
        return f"{self.source}:{self.function}"

    @property
    def name(self) -> str:
        """Without the weight."""
        return f"{self}@{self.digest}" if self.digest else str(self)


class PluginFunction(NamedTuple):
    """A loaded plugin. Its exceptions become one line with the file and line number."""

    path: Path
    name: str
    signature: Signature
    call: Callable[..., Any]  # of an `async def`: runs it to its end
    # One call for each mapping of keyword arguments, in order; those of an `async def` overlap.
    call_each: Callable[[Sequence[Mapping[str, Any]]], list[Any]]
    is_async: bool = False
    graded: bool = False  # its attribute `graded`: rewards are not to be read as right or wrong

    def check_arguments(self, *takes: str, **named: str) -> None:
        """Check that it accepts these positional and keyword arguments."""
        try:
            self.signature.bind(*takes, **named)
        except TypeError as fault:
            call_form = f"{self.name}({', '.join((*takes, *named))})"
            raise PoiseError(f"{self.path}: it cannot be called as {call_form}: {fault}") from fault


def is_plugin(name: str) -> bool:
    """Whether a name is a plugin: built-in names have no colon."""
    return ":" in name


def parse_plugin_name(name: str) -> PluginName:
    """Split a plugin's name into its source, function, digest and weight."""
    match = _PLUGIN_NAME.fullmatch(name)
    if match is None:
        raise _malformed_name(name)
    source, function, digest, weight = match.groups()
    return PluginName(source, function, digest or "", weight)


def name_without_location(name: str) -> str | tuple[str | None, ...]:
    """A name to compare runs by: a plugin without its path, a built-in name unchanged.

    Equal digests mean equal files, wherever these are.
    """
    return parse_plugin_name(name)[1:] if is_plugin(name) else name


def display_name(name: str) -> str:
    """A name for people to read: a plugin without folder and digest, a built-in name unchanged.

    Example:
        >>> display_name("/home/ana/my_rewards.py:score@1f0c6a2b9d3e4f50=0.5")
        'my_rewards.py:score=0.5'
        >>> display_name("grouped")
        'grouped'
    """
    if not is_plugin(name):
        return name
    plugin = parse_plugin_name(name)
    source = Path(plugin.source).name if _is_file(plugin.source) else plugin.source
    return f"{plugin._replace(source=source)}{_weight_suffix(plugin)}"


def display_names(value: Any) -> Any:
    """`display_name` for the value of an option, which may be a list."""
    return (
        [display_name(name) for name in value] if isinstance(value, list) else display_name(value)
    )


def pin_plugin(name: str, folder: Path) -> str:
    """The name as a run stores it, with the file's digest.

    A relative path is looked up in `folder`, then in the working directory. A name that is already
    pinned is returned unchanged even if its file is gone: a stored run must remain readable.
    """
    plugin = parse_plugin_name(name)
    if plugin.digest:
        return name
    source = plugin.source
    if _is_file(source):
        candidates = [(candidate / source).absolute() for candidate in (folder, Path())]
        source = str(
            next((candidate for candidate in candidates if candidate.exists()), candidates[0])
        )
    digest = _hash_source(_read_source(_source_path(source)))
    return f"{source}:{plugin.function}@{digest}{_weight_suffix(plugin)}"


def load_plugin_function(name: str, *takes: str) -> Callable[..., Any]:
    """Load the function and check that it accepts as many arguments as `takes` names."""
    plugin = load_plugin(name)
    if plugin.is_async:
        raise PoiseError(f"{plugin.path}: {plugin.name} is an `async def`: write a plain `def`")
    plugin.check_arguments(*takes)
    return plugin.call


def load_plugin(name: str) -> PluginFunction:
    """Load a plugin without checking its arguments."""
    plugin = parse_plugin_name(name)
    if plugin.weight is not None:
        raise _malformed_name(name)
    return _load_plugin(_with_absolute_path(plugin))


def load_object(name: str) -> Any:
    """What a plugin's name stands for, such as a class, without a wrapper around its exceptions."""
    return _find_object(_with_absolute_path(parse_plugin_name(name)))


def _with_absolute_path(plugin: PluginName) -> PluginName:
    is_file = _is_file(plugin.source)
    return plugin._replace(source=str(Path(plugin.source).absolute())) if is_file else plugin


def _find_object(plugin: PluginName) -> Any:
    """The attribute of the module; None if it has none of that name."""
    path, module = _source_path(plugin.source), _load_module(plugin.source, plugin.digest)
    with explain_plugin_errors(path):
        # Not `vars`: packages such as trl.rewards import a name when it is first used.
        return getattr(module, plugin.function, None)


@cache
def _load_plugin(plugin: PluginName) -> PluginFunction:
    path, module = _source_path(plugin.source), _load_module(plugin.source, plugin.digest)
    function = _find_object(plugin)
    if not callable(function):
        defined_here = [
            f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__
        ]
        known_functions = [f.__name__ for f in defined_here if isfunction(f)]
        raise PoiseError(f"{path}: {unknown_name('function', plugin.function, known_functions)}")
    # An object may be callable through an `async def __call__`.
    is_async = iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
    try:
        parameters = signature(function)
    except (TypeError, ValueError) as fault:
        raise PoiseError(
            f"{path}: the arguments of {plugin.function} cannot be determined: {fault}"
        ) from fault

    def call(*given: Any, **named: Any) -> Any:
        with explain_plugin_errors(path):
            returned = function(*given, **named)
            return _run_to_end(returned) if is_async else returned

    def call_each(calls: Sequence[Mapping[str, Any]]) -> list[Any]:
        with explain_plugin_errors(path):
            returned = [function(**named) for named in calls]
            return _run_to_end(_gather(returned)) if is_async else returned

    graded = bool(getattr(function, "graded", False))
    return PluginFunction(path, plugin.function, parameters, call, call_each, is_async, graded)


async def _gather(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    from asyncio import gather

    return await gather(*coroutines)


def _run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, also where this thread has an event loop, as in a notebook."""
    import asyncio  # takes a tenth of a second, and few plugins need it
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


@cache
def _load_module(source: str, digest: str) -> ModuleType:
    path = _source_path(source)
    source_code = _read_source(path)
    current_digest = _hash_source(source_code)
    if digest and digest != current_digest:
        raise PoiseError(
            f"{path} has changed since the run began (its sha256 was {digest}..., now it is "
            f"{current_digest}...): restore the file, start a new --out, discard the run with its "
            "run file and --resume --from-start, or remove "
            f"@{digest} from the run's config.toml to continue with the new version"
        )
    with explain_plugin_errors(path):
        if not _is_file(source):
            return import_module(source)
        module = ModuleType(f"{path.stem}@{current_digest}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses look their module up by name
        exec(compile(source_code, str(path), "exec"), vars(module))
    return module


@contextmanager
def explain_plugin_errors(path: Path) -> Iterator[None]:
    """Turn an exception of the user's code into one line; a PoiseError passes unchanged."""
    try:
        yield
    except PoiseError:
        raise
    except (Exception, SystemExit) as fault:
        kind, message = type(fault).__name__, first_line(fault)
        description = message if message == kind else f"{kind}: {message}"
        raise PoiseError(f"{path}{_line_suffix(fault, path)}: {description}") from fault


def _line_suffix(fault: BaseException, path: Path) -> str:
    if isinstance(fault, SyntaxError) and fault.filename == str(path):
        return f":{fault.lineno}"
    frames = traceback.extract_tb(fault.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _malformed_name(name: str) -> PoiseError:
    return PoiseError(f"'{name}' names no function: write {PLUGIN_CHOICE} or MODULE:FUNCTION")


def _weight_suffix(plugin: PluginName) -> str:
    return "" if plugin.weight is None else f"={plugin.weight}"


def _is_file(source: str) -> bool:
    return source.endswith(".py")


def _source_path(source: str) -> Path:
    """The path of the source file."""
    if _is_file(source):
        return Path(source)
    origin = ""
    if all(component.isidentifier() for component in source.split(".")):
        with explain_plugin_errors(
            Path(source)
        ):  # looking for a module imports the packages around it
            origin = _find_module_file(source)
    if not _is_file(origin):
        raise PoiseError(
            f"Python finds no module '{source}': install it, set PYTHONPATH, or name a file as "
            f"{PLUGIN_CHOICE}"
        )
    return Path(origin)


def _find_module_file(module: str) -> str:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError as fault:
        if not f"{module}.".startswith(f"{fault.name}."):  # one of its imports is missing
            raise
        return ""
    return (spec and spec.origin) or ""


def _read_source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise PoiseError(f"{path} cannot be read: {fault.strerror}") from fault


def _hash_source(text: bytes) -> str:
    return sha256(text).hexdigest()[:DIGEST_DIGITS]


# Tables of variants, each imported when it is first used.
#
# A variant (a composer, an advantage, a surrogate, a panel) is one file and one line of its table
# in variants.py. Tables hold strings, so listing the names imports nothing heavy. A table may also
# accept plugins, FILE.py:FUNCTION.


class Registry(Mapping[str, str]):
    """A read-only table of `"package.module:attribute"` strings.

    `plugin_loader` names, in the same way, a function that turns the name of a user's function into
    an entry, (name) -> what `load` returns. Without it the table takes no plugins.

    Example:
        >>> table = Registry("square root", {"real": "math:sqrt", "complex": "cmath:sqrt"})
        >>> table.load("real")(9.0)
        3.0
    """

    def __init__(self, kind: str, entries: Mapping[str, str], plugin_loader: str = "") -> None:
        self.kind = kind
        self.plugin_loader = plugin_loader
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an option that names an entry."""
        return (*self._entries, PLUGIN_CHOICE) if self.plugin_loader else tuple(self._entries)

    def load(self, name: str) -> Callable[..., Any]:
        """The function registered under `name`; an unknown name says which one is nearest."""
        if name in self._entries:
            return _import_entry(self._entries[name])
        if self.plugin_loader and is_plugin(name):
            entry: Callable[..., Any] = _import_entry(self.plugin_loader)(name)
            return entry
        raise unknown_name(self.kind, name, self.choices)


def _import_entry(entry: str) -> Callable[..., Any]:
    module, _, attribute = entry.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    return loaded
