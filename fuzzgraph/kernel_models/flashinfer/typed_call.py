"""Binds a call of a compiled function to its parameters, by position, as TVM's FFI does.

The functions that FlashInfer compiles have no default values and take no names: a call of another
length, or with another kind of value at a place, ends before any of their code runs.

Source: TVM FFI, TypedFunction and TypeTraits; FlashInfer csrc, TVM_FFI_DLL_EXPORT_TYPED_FUNC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import torch

from fuzzgraph.kernel_models.checks import Call

__all__ = ["Kind", "Parameter", "named", "parameters"]

Kind = Literal["tensor", "tensor?", "int", "bool", "float", "float?", "ints", "any"]
"""What a parameter takes; `?` takes None as well."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a compiled function."""

    name: str
    kind: Kind


_CALLED: dict[Kind, str] = {
    "tensor": "a tensor",
    "tensor?": "a tensor or None",
    "int": "a whole number",
    "bool": "a truth value",
    "float": "a number",
    "float?": "a number, a tensor or None",
    "ints": "a list of whole numbers",
}


def parameters(said: str) -> tuple[Parameter, ...]:
    """Parameters that are written as `name:kind`, separated by spaces; a bare name is a tensor."""
    pairs = (each.partition(":") for each in said.split())
    return tuple(Parameter(name, kind or "tensor") for name, _, kind in pairs)  # type: ignore[arg-type]


def named(
    call: Call, known: Sequence[Parameter], args: Sequence[Any], fewest: int | None = None
) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters.

    Args:
        fewest: of arguments, where releases differ in how many the function has.

    Raises:
        KernelRefused: the function takes no such call; names the first argument that it refuses.
    """
    least = len(known) if fewest is None else fewest
    counts = f"{least}" if least == len(known) else f"{least} to {len(known)}"
    fits = least <= len(args) <= len(known)
    call.needs(fits, f"the compiled function takes {counts} arguments", len(args))
    for parameter, value in zip(known, args, strict=False):
        rule = f"{parameter.name} must be {_CALLED.get(parameter.kind, '')}"
        if not _TAKES[parameter.kind](value):
            call.needs(False, rule, _shown(value))
    return {each.name: value for each, value in zip(known, args, strict=False)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, torch.Tensor)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, torch.Tensor)


def _are_whole(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_whole, value))


_TAKES: dict[Kind, Callable[[Any], bool]] = {
    "tensor": _is_tensor,
    "tensor?": lambda value: value is None or _is_tensor(value),
    "int": _is_whole,
    "bool": _is_whole,  # a truth value is one
    "float": _is_number,
    "float?": lambda value: value is None or _is_number(value) or _is_tensor(value),
    "ints": _are_whole,
    "any": lambda _: True,
}


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value is None:
        return "None"
    return (
        f"{value!r}" if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"
    )
