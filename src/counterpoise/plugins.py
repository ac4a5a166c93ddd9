"""FILE.py:FUNCTION or MODULE:FUNCTION -> a function of the user's, the same throughout a run.

    my_rewards.py:score                                as it is asked for
    /home/ana/my_rewards.py:score@1f0c6a2b9d3e4f50     as a run keeps it
    my_rewards.py:score=0.5                            with a share, in lists of several

What stands behind the @ begins the file's sha256. A run is pinned to it when its options are read,
and whoever loads the function later (the run that is resumed, another process) gets the one that
the run began with or one line that says the file has changed. The very bytes that were hashed are
run, once a process: an edit while a run goes on does not reach it. Only the file itself is hashed,
not what it imports. MODULE is found as Python finds it, FILE needs to be in no package.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import Signature, iscoroutinefunction, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from counterpoise.errors import PoiseError, first_line, unknown

OWN = "FILE.py:FUNCTION"  # stands among the choices of an option that takes one
DIGITS = 16
_FORM = re.compile(rf"(.+):([^\W\d]\w*)(?:@([0-9a-f]{{{DIGITS}}}))?(?:\s*=\s*(.*))?")


class Asked(NamedTuple):
    """Example: str(read("my_rewards.py:score@1f0c6a2b9d3e4f50")) == "my_rewards.py:score" """

    source: str  # a path that ends in .py, or a module
    function: str
    digest: str  # "": not pinned
    share: str | None = None  # what stands behind an equals sign

    def __str__(self) -> str:
        return f"{self.source}:{self.function}"

    @property
    def name(self) -> str:
        """Without the share."""
        return f"{self}@{self.digest}" if self.digest else str(self)


class Function(NamedTuple):
    """One that is loaded. What `call` raises is one line with the file and the line of it."""

    path: Path
    name: str
    signature: Signature
    call: Callable[..., Any]

    def check(self, *takes: str, **named: str) -> None:
        """It must take so many arguments by place, and these by name."""
        try:
            self.signature.bind(*takes, **named)
        except TypeError as fault:
            called = f"{self.name}({', '.join((*takes, *named))})"
            raise PoiseError(f"{self.path}: it cannot be called as {called}: {fault}") from fault


def is_own(name: str) -> bool:
    """No name of ours has a colon."""
    return ":" in name


def read(name: str) -> Asked:
    found = _FORM.fullmatch(name)
    if found is None:
        raise _no_function(name)
    source, function, digest, share = found.groups()
    return Asked(source, function, digest or "", share)


def content(name: str) -> str | tuple[str | None, ...]:
    """What any name stands for: a function of the user's is what its file says, wherever it lies;
    ours as it is."""
    return read(name)[1:] if is_own(name) else name


def shown(name: str) -> str:
    """Any name where people read it: the file without its folder and its pin; ours as it is.

    Example:
        >>> shown("/home/ana/my_rewards.py:score@1f0c6a2b9d3e4f50=0.5"), shown("grouped")
        ('my_rewards.py:score=0.5', 'grouped')
    """
    if not is_own(name):
        return name
    asked = read(name)
    source = Path(asked.source).name if _is_file(asked.source) else asked.source
    return f"{asked._replace(source=source)}{_behind(asked)}"


def shown_all(value: Any) -> Any:
    """The same of an option that may be a list."""
    return [shown(name) for name in value] if isinstance(value, list) else shown(value)


def pinned(name: str, folder: Path) -> str:
    """The name as a run keeps it; a relative path is one from `folder`, or from here.

    One that is pinned stays as it is, whatever became of the file: reading a run asks for none.
    """
    asked = read(name)
    if asked.digest:
        return name
    source = asked.source
    if _is_file(source):
        places = [(place / source).absolute() for place in (folder, Path())]
        source = str(next((place for place in places if place.exists()), places[0]))
    return f"{source}:{asked.function}@{_digest(_text(_path(source)))}{_behind(asked)}"


def load(name: str, *takes: str) -> Callable[..., Any]:
    """The function, which must take arguments of these names (its own may be others)."""
    found = function(name)
    found.check(*takes)
    return found.call


def function(name: str) -> Function:
    """The function, whatever it takes."""
    asked = read(name)
    if asked.share is not None:
        raise _no_function(name)
    source = str(Path(asked.source).absolute()) if _is_file(asked.source) else asked.source
    return _function(asked._replace(source=source))


@cache
def _function(asked: Asked) -> Function:
    path, module = _path(asked.source), _module(asked.source, asked.digest)
    found = vars(module).get(asked.function)
    if not callable(found):
        mine = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__]
        there = [f.__name__ for f in mine if isfunction(f)]
        raise PoiseError(f"{path}: {unknown('function', asked.function, there)}")
    if iscoroutinefunction(found):
        raise PoiseError(f"{path}: {asked.function} is an `async def`: write a plain `def`")
    try:
        parameters = signature(found)
    except (TypeError, ValueError) as fault:
        raise PoiseError(f"{path}: what {asked.function} takes is not known: {fault}") from fault

    def call(*given: Any, **named: Any) -> Any:
        with blamed(path):
            return found(*given, **named)

    return Function(path, asked.function, parameters, call)


@cache
def _module(source: str, digest: str) -> ModuleType:
    path = _path(source)
    text = _text(path)
    now = _digest(text)
    if digest and digest != now:
        raise PoiseError(
            f"{path} has changed since the run began (its sha256 was {digest}..., it is {now}...): "
            f"put it back, start a new --out, or strike out @{digest} in the run's config.toml to "
            "go on with it as it is"
        )
    with blamed(path):
        if not _is_file(source):
            return import_module(source)
        module = ModuleType(f"{path.stem}@{now}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses look their module up by name
        exec(compile(text, str(path), "exec"), vars(module))
    return module


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """What the user's code raises, as one line; a PoiseError is one already."""
    try:
        yield
    except PoiseError:
        raise
    except (Exception, SystemExit) as fault:
        kind, said = type(fault).__name__, first_line(fault)
        told = said if said == kind else f"{kind}: {said}"
        raise PoiseError(f"{path}{_line(fault, path)}: {told}") from fault


def _line(fault: BaseException, path: Path) -> str:
    if isinstance(fault, SyntaxError) and fault.filename == str(path):
        return f":{fault.lineno}"
    frames = traceback.extract_tb(fault.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _no_function(name: str) -> PoiseError:
    return PoiseError(f"'{name}' names no function: write {OWN} or MODULE:FUNCTION")


def _behind(asked: Asked) -> str:
    return "" if asked.share is None else f"={asked.share}"


def _is_file(source: str) -> bool:
    return source.endswith(".py")


def _path(source: str) -> Path:
    """Of the file, or of the module's."""
    if _is_file(source):
        return Path(source)
    origin = ""
    if all(part.isidentifier() for part in source.split(".")):
        with blamed(Path(source)):  # looking for a module imports the packages around it
            origin = _origin(source)
    if not _is_file(origin):
        raise PoiseError(
            f"no module '{source}' where Python looks: install it or set PYTHONPATH, or name a "
            f"file, as {OWN}"
        )
    return Path(origin)


def _origin(module: str) -> str:
    try:
        found = find_spec(module)
    except ModuleNotFoundError as fault:
        if not f"{module}.".startswith(f"{fault.name}."):  # something that it imports
            raise
        return ""
    return (found and found.origin) or ""


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise PoiseError(f"{path} cannot be read: {fault.strerror}") from fault


def _digest(text: bytes) -> str:
    return sha256(text).hexdigest()[:DIGITS]


# Name -> the one function that carries it, imported when first asked for.
#
# A variant (a composer, an advantage, a surrogate, a panel) is one file and one line in its
# stage's table. Tables hold strings, so listing the names costs no heavy import. A table may also
# take functions that stand in no table: the user's own, by FILE.py:FUNCTION (plugins.py).


class Registry(Mapping[str, str]):
    """A read-only table of `"package.module:attribute"` strings.

    `own` names, in the same way, what makes an entry of a user's function: (its name) -> what
    `load` returns. Without it the table takes none.

    Example:
        >>> table = Registry("square root", {"real": "math:sqrt", "complex": "cmath:sqrt"})
        >>> table.load("real")(9.0)
        3.0
    """

    def __init__(self, kind: str, entries: Mapping[str, str], own: str = "") -> None:
        self.kind = kind
        self.own = own
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def choices(self) -> tuple[str, ...]:
        """What an option that names an entry may be."""
        return (*self._entries, OWN) if self.own else tuple(self._entries)

    def load(self, name: str) -> Callable[..., Any]:
        """The function registered under `name`; an unknown name says which one is nearest."""
        if name in self._entries:
            return _imported(self._entries[name])
        if self.own and is_own(name):
            made: Callable[..., Any] = _imported(self.own)(name)
            return made
        raise unknown(self.kind, name, self.choices)


def _imported(entry: str) -> Callable[..., Any]:
    module, _, attribute = entry.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    return loaded
