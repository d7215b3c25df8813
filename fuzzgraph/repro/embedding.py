"""The source of functions, with everything of FuzzGraph that they call, as text of a script.

A rule is embedded as it is written, so that a script measures by the very code that the oracles
judge by. What a function needs is read from its syntax tree: other functions, classes and constants
of FuzzGraph are embedded as well, torch and the standard library are imported. Annotations count: a
script never evaluates them, and tools that read it should know every name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

from fuzzgraph import accesses, kernel_models
from fuzzgraph.kernel_models.launch import ModelKernel
from fuzzgraph.lanes import bfloat16_bits, small_floats
from fuzzgraph.repro import script_graphs, script_kernels, script_memory
from fuzzgraph.rules import comparison, handover, metadata, writes
from fuzzgraph.text import numbers

_RULES = (
    numbers,
    comparison,
    handover,
    metadata,
    writes,
    script_memory,
    script_graphs,
    script_kernels,
    accesses,
    bfloat16_bits,
    small_floats,
)

_KERNEL_MODELS = tuple(
    import_module(each.name)
    for each in walk_packages(kernel_models.__path__, f"{kernel_models.__name__}.")
)

EMBEDDED_MODULES: tuple[ModuleType, ...] = (*_RULES, *_KERNEL_MODELS)


class Embedded:
    """Collects what a script needs; each function once, behind what it is built from.

    Args:
        names: of functions that may be embedded.
        beside: what the script contains already.
    """

    def __init__(self, names: Iterable[str], beside: Embedded | None = None) -> None:
        self.imports: set[str] = set()
        """Whole lines."""
        self._sources: dict[str, str] = {}
        self._there = set(beside._sources) if beside is not None else set()
        for name in sorted(names):
            self._add(name, EMBEDDABLE[name])

    def text(self) -> str:
        """All of it: constants first, then functions and classes, two blank lines between."""
        constants = [text for text in self._sources.values() if not _is_definition(text)]
        definitions = [text for text in self._sources.values() if _is_definition(text)]
        return "\n\n\n".join([*(["\n".join(constants)] if constants else []), *definitions])

    def _add(self, name: str, module: ModuleType) -> None:
        if name in self._sources or name in self._there:
            return
        self._sources[name] = ""  # a function that calls itself
        source = _defined(module)[name]
        for used in sorted(_names_in(source)):
            self._need(used, module)
        del self._sources[name]  # what it is built from comes first
        self._sources[name] = source

    def _need(self, name: str, module: ModuleType) -> None:
        if name in _defined(module):
            return self._add(name, module)
        value = vars(module).get(name)  # None: a local variable, or a builtin
        if isinstance(value, ModuleType):
            alias = "" if value.__name__ == name else f" as {name}"
            self.imports.add(f"import {value.__name__}{alias}")
        elif value is not None and (home := _home(name, value)) is not None:
            self._add(name, home)
        elif value is not None:
            self.imports.add(f"from {value.__module__} import {name}")


def _home(name: str, value: Any) -> ModuleType | None:
    """The module to embed a value from; None if it is of another package.

    A constant does not know its module: it is the one that defines the name.
    """
    defining = (module for module in EMBEDDED_MODULES if name in _defined(module))
    return next((module for module in defining if vars(module)[name] is value), None)


def _is_definition(text: str) -> bool:
    return bool(re.match(r"(#.*\n)*(def|class|@)", text))


def embeddable_in(text: str) -> set[str]:
    """Functions that a piece of Python calls and that may be embedded."""
    return _names_in(text) & EMBEDDABLE.keys()


def _names_in(source: str) -> set[str]:
    """Names that a piece of Python uses."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


@cache
def _defined(module: ModuleType) -> dict[str, str]:
    """Name -> source of the functions, classes and constants of a module."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("__"):
                first = node.lineno
            case _:
                continue
        while lines[first - 2].startswith("#"):
            first -= 1
        found[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


EMBEDDABLE: dict[str, ModuleType] = {
    **{name: module for module in _RULES for name in _defined(module)},
    # of a model only its body, which a recorded launch calls
    **{
        kernel.fn.__name__: module
        for module in _KERNEL_MODELS
        for kernel in vars(module).values()
        if isinstance(kernel, ModelKernel) and kernel.fn.__module__ == module.__name__
    },
}
"""Name of each function, class or constant that a script may ask for -> its module."""
