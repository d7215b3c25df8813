"""Puts the changed code of a function in place of the running one, in this process.

The functions that were compiled from the definition get the new `__code__`: whoever holds such a
function (a class, a decorator, a table) then calls the change. A module that the engine imports
later is compiled from the changed text, and who reads a function's source, as Triton's interpreter
does, reads the changed one.
"""

from __future__ import annotations

import gc
import linecache
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import Any

from fuzzgraph.mutants.drawing import Candidate
from fuzzgraph.mutants.source import Source


class NotPlanted(Exception):
    """The change cannot be put in place; the message says why."""


def live_functions(paths: Iterable[str] | None = None) -> dict[str, list[FunctionType]]:
    """File -> every function of this process that was compiled from it.

    Objects that were taken out of the collector's passes are looked at as well, and are back
    out of them afterwards.
    """
    wanted = None if paths is None else frozenset(paths)
    found: dict[str, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()
    for one in gc.get_objects():
        if type(one) is FunctionType:
            path = one.__code__.co_filename
            if wanted is None or path in wanted:
                found[path].append(one)
    gc.freeze()
    return found


def changed_code(source: Source, candidate: Candidate) -> list[tuple[CodeType, CodeType]]:
    """Each code object that the change reaches, the outermost first, with its new one.

    Raises:
        NotPlanted: it is no Python, changes nothing, or changes which variables a closure shares.
    """
    try:
        before = compile(source.bytes, candidate.path, "exec", dont_inherit=True)
        text = source.edited(candidate.edit)
        after = compile(text, candidate.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NotPlanted(f"is no Python: {error}") from None
    pairs = [(one, two) for one, two in _pairs(before, after) if one != two]
    if not pairs:
        raise NotPlanted("compiles to the same code")
    for one, two in pairs:
        if one.co_freevars != two.co_freevars:
            raise NotPlanted(f"changes the variables that {one.co_name} shares with its closure")
    return pairs


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code objects of two texts of one module, matched by name and line."""
    yield before, after
    inner = {(one.co_name, one.co_firstlineno): one for one in _inner(after)}
    for one in _inner(before):
        two = inner.get((one.co_name, one.co_firstlineno))
        if two is not None:
            yield from _pairs(one, two)


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType))


def plant(source: Source, candidate: Candidate, live: dict[str, list[FunctionType]]) -> int:
    """Put a change in place; how many functions now run it.

    Raises:
        NotPlanted: as `changed_code`.
    """
    pairs = changed_code(source, candidate)
    new = dict(pairs)
    planted = 0
    for function in live.get(candidate.path, ()):
        code = new.get(function.__code__)
        if code is not None:
            function.__code__ = code
            planted += 1
    text = source.edited(candidate.edit)
    _import_changed(candidate.path, text)
    _show_changed(candidate.path, text)
    return planted


def _import_changed(path: str, text: bytes) -> None:
    """A later import of the file compiles the changed text."""
    stock = SourceFileLoader.get_code

    def get_code(loader: Any, fullname: str) -> Any:
        if loader.get_filename(fullname) == path:
            return compile(text, path, "exec", dont_inherit=True)
        return stock(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def _show_changed(path: str, text: bytes) -> None:
    """`inspect.getsource` gives the changed text; without a time of its own it stays."""
    lines = text.decode().splitlines(keepends=True)
    linecache.cache[path] = (len(text), None, lines, path)
