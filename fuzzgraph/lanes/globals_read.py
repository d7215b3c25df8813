"""The globals that a kernel reads: a trace of it holds only while these are what they were."""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from fuzzgraph.lanes.aliases import outside_launches


class GlobalsRead:
    """Names that some functions read from their modules, with what they stood for.

    Attributes:
        refused: why a trace cannot rely on them; "" if it can.
    """

    def __init__(self) -> None:
        self.refused = ""
        self._seen: set[Any] = set()
        self._read: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}

    def add(self, function: Any) -> str:
        """Take a function's globals in; why a trace cannot rely on them, "" if it can."""
        if function not in self._seen:
            self._seen.add(function)
            for name in _names(function.__code__):
                if name in function.__globals__ and name != "range":
                    self._add(function.__globals__, name)
        return self.refused

    def _add(self, module: dict[str, Any], name: str) -> None:
        value = outside_launches(module, name)
        if not _is_fixed(value):
            self.refused = f"the global {name} may change"
        self._read[id(module), name] = (module, name, value)

    def hold(self) -> bool:
        """Whether every name still stands for the same object."""
        return all(
            outside_launches(module, name) is value for module, name, value in self._read.values()
        )


def is_device_function(function: Any) -> bool:
    """Whether all that a function reads besides its arguments are globals."""
    return isinstance(function, FunctionType) and not function.__closure__


@lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names that code, and functions defined in it, read from its module."""
    found = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    ]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _names(constant)
    return tuple(found)


def _is_fixed(value: Any) -> bool:
    """Whether an object cannot change what a kernel does without being replaced."""
    if isinstance(value, ModuleType):
        # Triton itself forbids other globals in compiled kernels. A kernel that reads attributes
        # of any other module runs in an interpreter alone.
        return value.__name__.partition(".")[0] in ("triton", "math", "builtins")
    if isinstance(
        value, (interpreter.InterpretedFunction, tl.dtype, tl.constexpr, type, int, float, str)
    ):
        return True
    if value is None or value is interpreter.interpreter_semantic:
        return True
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("triton", "builtins")
