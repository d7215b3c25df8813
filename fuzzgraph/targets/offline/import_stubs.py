"""Import stubs: modules that an engine imports and that a machine without a GPU lacks.

The list is explicit and each entry has its reason: a missing module that is not on it is an error
that names it. A module that is installed is used, whether it is on the list or not, unless it is
left out: parts of the engine itself, and of what they need, that have nothing to do with what is
driven, and whose import takes seconds or companions of exact versions. What a stubbed
module hands out can be named, called and subclassed, and does nothing; code that would compute with
it belongs to a kernel.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["allow_absent", "leave_out"]

Fill = Callable[[types.ModuleType], None]
"""Puts into a stubbed module what the engine reads of it at import."""


class _Meta(type):
    """Classes answer for any attribute, so that decorators and bases made of them work."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # protocols ask for these, and must hear that there are none
            raise AttributeError(name)
        value = _Nothing()
        setattr(cls, name, value)
        return value

    def __or__(cls, other: object) -> Any:  # `Absent | None` in an annotation
        return object

    def __ror__(cls, other: object) -> Any:
        return object

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _Nothing(metaclass=_Meta):
    """An object that can be named, called and subclassed, and does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __init_subclass__(cls, **kwargs: object) -> None: ...

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """As the type of a field of the engine's HTTP models: anything goes."""
        return {"type": "any"}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it returns what it decorates."""
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if callable(decorated) else _Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __getitem__(self, key: object) -> Any:
        return _Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: object) -> Any:
        return object

    def __ror__(self, other: object) -> Any:
        return object

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Capitalised names are mostly subclassed or stand in annotations, the others are called.
        value = _Meta(name, (_Nothing,), {}) if name[:1].isupper() else _Nothing()
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for listed modules, and what lies below them, that nobody else found."""

    def __init__(self, absent: Mapping[str, str], contents: Mapping[str, Fill]) -> None:
        self.absent = absent
        self.contents = contents

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        if not any(".".join(parts[:end]) in self.absent for end in range(1, len(parts) + 1)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__dict__["__version__"] = "99.0"  # passes every "at least" check
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if (fill := self.contents.get(module.__name__)) is not None:
            fill(module)


def allow_absent(absent: Mapping[str, str], contents: Mapping[str, Fill] | None = None) -> None:
    """Let the listed modules be imported where they are missing; once per process and list.

    Args:
        absent: dotted name of a module or package -> why nothing is lost without it.
        contents: module -> fills it, where an object that does nothing is not enough.
    """
    listed = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    if not any(finder.absent is absent for finder in listed):
        sys.meta_path.append(_Finder(absent, contents or {}))  # last: what is installed wins


def leave_out(modules: Mapping[str, str]) -> None:
    """Stub the listed modules, whether they are there or not; once per process and list.

    Args:
        modules: dotted name of a module or package -> why nothing is lost without it.
    """
    listed = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    if not any(finder.absent is modules for finder in listed):
        sys.meta_path.insert(0, _Finder(modules, {}))
