"""Import stubs: modules that an engine imports and that a machine without a GPU lacks.

The list is explicit and each entry has its reason: a missing module that is not on it is an error
that names it. A module that is installed is used, whether it is on the list or not, unless it is
left out: parts of the engine itself, and of what they need, that have nothing to do with what is
driven, and whose import takes seconds or companions of exact versions. What a stubbed module hands
out can be named, subclassed and, while a module is imported, called: engines decorate with it. A
later call is one of code that is not there, and is refused.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuzzgraph.errors import EngineError, KernelNotModelled

__all__ = ["allow_absent", "leave_out", "server_lacks"]

Fill = Callable[[types.ModuleType], None]
"""Puts into a stubbed module what the engine reads of it at import."""


class _Meta(type):
    """Classes answer for any attribute, so that decorators and bases made of them work."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # protocols ask for these, and must hear that there are none
            raise AttributeError(name)
        value = _Nothing(called=f"{_called(cls)}.{name}")
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
    """An object that can be named and subclassed, and does nothing."""

    _called = ""

    def __init__(self, *args: object, called: str = "", **kwargs: object) -> None:
        if called:
            self._called = called

    def __init_subclass__(cls, **kwargs: object) -> None: ...

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """As the type of a field of the engine's HTTP models: anything goes."""
        return {"type": "any"}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it returns what it decorates.

        Raises:
            EngineError: nothing is being imported, and the server's device has no such package.
            KernelNotModelled: likewise, and it may have.
        """
        if not _importing():
            raise _refusal(_called(self))
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if callable(decorated) else _Nothing(called=f"{_called(self)}()")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(called=f"{_called(self)}.{name}")

    def __getitem__(self, key: object) -> Any:
        return _Nothing(called=_called(self))

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
        called = f"{self.__name__}.{name}"
        value: Any = _Nothing(called=called)
        if name[:1].isupper():
            value = _Meta(name, (_Nothing,), {"_called": called})
        setattr(self, name, value)
        return value


def _called(nothing: Any) -> str:
    """What a message calls it: the dotted name by which the engine reached it."""
    return str(nothing._called) or "an object of an absent module"


def _importing() -> bool:
    """Whether a module is being imported."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_LACKING: list[Mapping[str, str]] = []


@contextlib.contextmanager
def server_lacks(packages: Mapping[str, str]) -> Iterator[None]:
    """Around code of an engine: a server with this device cannot import these packages.

    Args:
        packages: top-level name -> which device has it.
    """
    _LACKING.append(packages)
    try:
        yield
    finally:
        _LACKING.pop()


def _refusal(called: str) -> Exception:
    package = called.partition(".")[0]
    device = next((found[package] for found in _LACKING if package in found), "")
    if device:
        return EngineError(
            f"{called} is called, which a server lacks here: {package} is there on {device} alone"
        )
    return KernelNotModelled(f"{called} is called; the package is absent, and no model is there")


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
