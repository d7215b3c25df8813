"""Source text of interpreted Triton kernels, with what they call and the constants they name."""

from __future__ import annotations

import dis
import inspect
import re
import textwrap
from typing import Any

from fuzzgraph.repro.literals import scalar_text
from fuzzgraph.repro.not_standalone import NotStandalone


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
            try:
                text = textwrap.dedent(inspect.getsource(plain))
            except (OSError, TypeError):
                raise NotStandalone(f"the source of kernel {name} cannot be read") from None
            text = "@triton.jit\ndef " + re.split(r"^def ", text, maxsplit=1, flags=re.M)[1]
            self._needs(plain)
            del self._sources[name]  # callees come first
            self._sources[name] = text
        return name

    def _needs(self, plain: Any) -> None:
        loads = (each for each in dis.get_instructions(plain) if each.opname == "LOAD_GLOBAL")
        for name in dict.fromkeys(str(each.argval) for each in loads):
            value = plain.__globals__.get(name)
            if value is None or _is_imported(name, value):
                continue  # a builtin, or there already
            if hasattr(value, "fn") and callable(value):
                self.name_of(value)
            elif type(value).__name__ == "constexpr":
                self._constants[name] = f"tl.constexpr({scalar_text(value.value)})"
            elif isinstance(value, (int, float, bool, str)):
                self._constants[name] = scalar_text(value)
            elif (module := inspect.getmodule(value)) is not None and _is_tritons(module.__name__):
                self._constants[name] = _place_in_triton(name, value, module)
            else:
                raise NotStandalone(
                    f"kernel {plain.__name__} uses {name}, a {type(value).__name__}"
                )

    def lines(self) -> list[str]:
        """Constants and kernels as module text."""
        found = [f"{name} = {value}" for name, value in self._constants.items()]
        for text in self._sources.values():
            found += ["", "", *text.rstrip().split("\n")]
        return found


def _is_imported(name: str, value: Any) -> bool:
    """Whether a script has the name: its head imports it, or the interpreter adds it."""
    modules = {"tl": "triton.language", "triton": "triton"}
    # The interpreter rewrites a kernel at its first launch; the rewritten code names its semantics.
    added = type(value).__module__.startswith("triton.") and name == "interpreter_semantic"
    return added or (inspect.ismodule(value) and value.__name__ == modules.get(name))


def _is_tritons(module: str) -> bool:
    return module == "triton" or module.startswith("triton.")


_LOADED_LATER = "triton.language.extra."
"""Modules that `import triton` alone does not load."""


def _place_in_triton(name: str, value: Any, module: Any) -> str:
    """Where Triton has a module, a type or a function of its own."""
    if inspect.ismodule(value):
        if not value.__name__.startswith(_LOADED_LATER):
            return value.__name__
        return f"sys.modules[__import__({value.__name__!r}) and {value.__name__!r}]"
    own = getattr(value, "__name__", name)
    if getattr(module, own, None) is not value:
        raise NotStandalone(f"a kernel uses {name} of Triton, which has no name there")
    return f"{module.__name__}.{own}"
