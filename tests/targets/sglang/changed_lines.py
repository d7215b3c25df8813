"""Methods of the engine with one line changed, for planted bugs."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module


def change_line(holder: Any, name: str, line: str, other: str = "pass") -> None:
    """Give this object, and no other of its class, the method with another line.

    Args:
        holder: of the engine; its class may be a subclass of the engine's.
        line: as it stands in the source, without what is around it; it comes once.
        other: takes its place.
    """
    owner = next(
        kind
        for kind in type(holder).__mro__
        if name in vars(kind) and kind.__module__.startswith("sglang.") and _has_source(kind, name)
    )
    setattr(holder, name, types.MethodType(changed_method(owner, name, line, other), holder))


def replace_while_running(
    session: Any, holder: Any, name: str, other: Callable[[Any], Any]
) -> None:
    """Have the engine find something else in a module or class while this session runs it, and what
    was there before as soon as it does not: a worker runs other targets after it.

    Args:
        other: what is there -> what takes its place.
    """
    inside = session.engine_runs

    @contextlib.contextmanager
    def runs(*given: Any) -> Iterator[None]:
        with replaced_names([holder], {name: other(getattr(holder, name))}), inside(*given):
            yield

    session.engine_runs = runs


def change_line_elsewhere(session: Any, holder: str, name: str, line: str, other: str) -> None:
    """Change a line of a function of a module, or of a method of a class in it, while this session
    runs.

    Args:
        holder: the module where the engine looks it up, or module:class.
    """
    module, _, kind = holder.partition(":")
    owner = engine_module(module)
    owner = getattr(owner, kind) if kind else owner
    made: dict[Any, Any] = {}  # an engine may keep a function that it has found

    def changed(real: Any) -> Any:
        if real in made.values():  # the engine runs inside a run of the engine
            return real
        return made.setdefault(real, changed_function(real, line, other))

    replace_while_running(session, owner, name, changed)


def changed_method(owner: type, name: str, line: str, other: str = "pass") -> Any:
    """The method that this class of the engine has, with another line as `change_line` says it."""
    return changed_function(vars(owner)[name], line, other)


def changed_function(function: Any, line: str, other: str = "pass") -> Any:
    """The same of a function of the engine."""
    source = textwrap.dedent(inspect.getsource(function))
    name = function.__qualname__
    assert source.count(line) == 1, f"{name} has {source.count(line)} times {line}"
    changed = f"from __future__ import annotations\n{source.replace(line, other)}"
    made: dict[str, Any] = {}
    within = vars(sys.modules[function.__module__])
    exec(compile(changed, function.__code__.co_filename, "exec"), within, made)
    return made[function.__name__]


def _module(owner: type) -> types.ModuleType:
    return sys.modules[owner.__module__]


def _has_source(owner: type, name: str) -> bool:
    """Whether the method is the engine's own, and not put around it by a target."""
    return bool(vars(owner)[name].__code__.co_filename == _module(owner).__file__)
