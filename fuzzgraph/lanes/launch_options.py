"""Refuses what Triton's compilers refuse of a launch beside its arguments.

The interpreter drops every keyword that is no parameter of the kernel. Compiled, such a keyword is
an option of the compiler, or the launch fails.

Source: Triton 3.7.1, JITFunction._pack_args, CUDAOptions and HIPOptions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

_WARPS = "num_warps"


def check_options(kernel: str, options: Mapping[str, Any]) -> None:
    """Raise as a compiler would for options that it does not take.

    Args:
        kernel: its name, for a message.
        options: keywords of a launch that are no parameters of the kernel.

    Raises:
        KeyError: no compiler of this Triton knows a name.
        AssertionError: a launch cannot have so many warps.
    """
    known = _known()
    for name in options:
        if known and name not in known:
            raise KeyError(f"{kernel}: keyword argument {name} is unrecognised")
    warps = options.get(_WARPS, 1)
    if not _is_power_of_two(warps):
        raise AssertionError(f"{kernel}: {_WARPS} must be a power of 2; got {warps!r}")


def _is_power_of_two(number: Any) -> bool:
    return isinstance(number, int) and number > 0 and number & (number - 1) == 0


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Options of all compilers that this Triton has; empty where it has none.

    Which of them an engine runs on is not known here: one of another compiler's passes.
    """
    from triton.backends import backends

    modules = (sys.modules[backend.compiler.__module__] for backend in backends.values())
    return frozenset(
        field.name
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__name__.endswith("Options")
        for field in fields(kind)
    )
