"""Triton kernels of the engine with one line changed, for planted bugs."""

from __future__ import annotations

import inspect
import linecache
import sys
import textwrap
from typing import Any

from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_lines import replace_while_running


def change_kernel(session: Any, module: str, name: str, line: str, other: str) -> None:
    """Have the engine launch a kernel with another line while this session runs.

    Args:
        module: where the engine looks the kernel up.
        line: as it stands in the kernel's source, which has it once.
    """
    made: dict[str, Any] = {}

    def changed(real: Any) -> Any:
        if name not in made:  # the engine may run inside a run of the engine
            made[name] = _changed(real, line, other)
        return made[name]

    replace_while_running(session, engine_module(module), name, changed)


def change_own_kernel(holder: Any, name: str, line: str, other: str) -> None:
    """The same of a kernel that an object of the engine keeps, for this object alone."""
    setattr(holder, name, _changed(getattr(holder, name), line, other))


def change_held_kernel(session: Any, module: str, name: str, line: str, other: str) -> None:
    """The same of a kernel that heuristics and a tuner hold, as `name` of the module."""
    place = engine_module(module)
    holder = getattr(place, name)
    while hasattr(holder.fn, "fn") and not inspect.isfunction(holder.fn.fn):
        holder = holder.fn
    # Decorators stand in the source, and are changed with it; other holders keep their kernel.
    decorated = holder.fn.fn.__name__ == name
    made: list[Any] = []

    def changed(real: Any) -> Any:
        if not made:
            made.append(_changed(holder.fn if decorated else real, line, other))
        return made[0]

    replaced = (place, name) if decorated else (holder, "fn")
    replace_while_running(session, *replaced, changed)


def _changed(kernel: Any, line: str, other: str) -> Any:
    source = textwrap.dedent(inspect.getsource(kernel.fn))
    assert source.count(line) == 1, f"{kernel.fn.__name__} has {source.count(line)} times {line}"
    text = source.replace(line, other)
    place = f"<{kernel.fn.__name__} with {other}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    made: dict[str, Any] = {}
    exec(compile(text, place, "exec"), vars(sys.modules[kernel.fn.__module__]), made)
    return made[kernel.fn.__name__]
