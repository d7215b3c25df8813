"""Source text of interpreted Triton kernels, with what they call and the constants they name."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from fuzzgraph.repro.literals import scalar_text

__all__ = ["Kernels"]


class Kernels:
    """Collects kernels by name; prints each once, callees first."""

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._constants: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._sources)

    def name_of(self, function: Any) -> str:
        """The kernel's name; its source will be printed."""
        plain = getattr(function, "fn", function)
        name: str = plain.__name__
        if name not in self._sources:
            self._sources[name] = ""
            text = textwrap.dedent(inspect.getsource(plain))
            text = "@triton.jit\ndef " + re.split(r"^def ", text, maxsplit=1, flags=re.M)[1]
            self._needs(plain)
            del self._sources[name]  # callees come first
            self._sources[name] = text
        return name

    def _needs(self, plain: Any) -> None:
        code = plain.__code__
        for name in code.co_names:
            value = plain.__globals__.get(name)
            if value is None:
                continue
            if hasattr(value, "fn") and callable(value):
                self.name_of(value)
            elif type(value).__name__ == "constexpr":
                self._constants[name] = f"tl.constexpr({scalar_text(value.value)})"
            elif isinstance(value, (int, float, bool, str)):
                self._constants[name] = scalar_text(value)

    def lines(self) -> list[str]:
        """Constants and kernels as module text."""
        found = [f"{name} = {value}" for name, value in self._constants.items()]
        for text in self._sources.values():
            found += ["", "", *text.rstrip().split("\n")]
        return found
