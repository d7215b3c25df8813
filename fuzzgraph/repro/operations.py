"""One recorded operation as Python text: an operator, a torch function, a method, or the overload.

What has no readable form here is printed as `torch.ops.aten.<name>.<overload>(...)`, which is
always exact. Arguments come as text already; names and places are `printing`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.repro.literals import scalar_text
from fuzzgraph.repro.not_standalone import NotStandalone

Text = Callable[[torch.Tensor], str]
"""Says how a tensor is called where the operation stands."""

_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "ge": ">=", "gt": ">", "le": "<=", "lt": "<",
    "eq": "==", "ne": "!=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_FUNCTIONS = {
    "abs", "add", "amax", "amin", "arange", "bitwise_and", "bitwise_not", "bitwise_or", "bmm",
    "cat", "clamp", "cumsum", "div", "empty", "empty_like", "eq", "exp", "floor_divide", "full",
    "full_like", "gather", "ge", "gt", "index_select", "isin", "le", "log", "logical_not", "lt",
    "masked_fill", "matmul", "maximum", "minimum", "mm", "mul", "ne", "neg", "ones", "ones_like",
    "remainder", "scatter", "searchsorted", "stack", "sub", "take", "topk", "where",
    "zeros", "zeros_like",
}  # fmt: skip
_OF_TORCH = ("aten", "prims")
_SKIPPED_KEYWORDS = ("layout", "pin_memory", "device")


def argument_text(value: Any, text: Text) -> str:
    """One argument: tensors by name, everything else by value."""
    if isinstance(value, torch.Tensor):
        return text(value)
    if isinstance(value, (list, tuple)):
        items = [argument_text(item, text) for item in value]
        if isinstance(value, tuple):
            return f"({', '.join(items)}{',' * (len(items) == 1)})"
        return f"[{', '.join(items)}]"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    return scalar_text(value)


def _keywords(kwargs: dict[str, Any], text: Text) -> list[str]:
    return [
        f"{name}={argument_text(value, text)}"
        for name, value in kwargs.items()
        if name not in _SKIPPED_KEYWORDS and value is not None
    ]


def expression(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], text: Text) -> str:
    """The call as an expression that gives the same bytes."""
    base, overload = func.overloadpacket.__name__, func._overloadname
    keywords = _keywords(kwargs, text)
    values = [argument_text(value, text) for value in args]
    if func.namespace != "aten":
        return _exact(func, values, kwargs, text)
    if (special := _SPECIAL.get(base)) is not None:
        found = special(args, kwargs, values, keywords)
        if found is not None:
            return found
    if base in _OPERATORS and len(args) == 2 and not kwargs and isinstance(args[0], torch.Tensor):
        return f"{_operand(values[0])} {_OPERATORS[base]} {_operand(values[1])}"
    if base in _FUNCTIONS:
        return f"torch.{base}({', '.join([*values, *keywords])})"
    is_method = base.endswith("_") and not base.startswith("_") and hasattr(torch.Tensor, base)
    if is_method and overload != "out" and isinstance(args[0], torch.Tensor):
        return f"{_operand(values[0])}.{base}({', '.join([*values[1:], *keywords])})"
    return _exact(func, values, kwargs, text)


def _exact(func: Any, values: list[str], kwargs: dict[str, Any], text: Text) -> str:
    if func.namespace not in _OF_TORCH:
        raise NotStandalone(
            f"it calls torch.ops.{func.namespace}.{func.overloadpacket.__name__}, an operator of"
            " the engine's own library"
        )
    full = [f"{name}={argument_text(value, text)}" for name, value in kwargs.items()]
    packet = f"torch.ops.{func.namespace}.{func.overloadpacket.__name__}"
    return f"{packet}.{func._overloadname or 'default'}({', '.join([*values, *full])})"


def _operand(value: str) -> str:
    """Brackets where an operator would otherwise bind differently."""
    depth = 0
    for character in value:
        depth += character in "([{"
        depth -= character in ")]}"
        if character == " " and depth == 0:
            return f"({value})"
    return f"({value})" if value.startswith("-") else value


Special = Callable[[tuple[Any, ...], dict[str, Any], list[str], list[str]], "str | None"]


def _method(name: str) -> Special:
    """`x.name(rest)`."""

    def write(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str:
        return f"{_operand(values[0])}.{name}({', '.join([*values[1:], *keywords])})"

    return write


def _unpacked(name: str) -> Special:
    """`x.name(2, 3)` for a list of sizes."""

    def write(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
        if len(args) != 2 or not isinstance(args[1], (list, tuple)):
            return None
        return f"{_operand(values[0])}.{name}({', '.join(map(str, args[1]))})"

    return write


def _view(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
    if isinstance(args[1], torch.dtype):
        return f"{_operand(values[0])}.view({args[1]})"
    return f"{_operand(values[0])}.view({', '.join(map(str, args[1]))})"


def _at(dim: int, part: str) -> str:
    return "[" + ":, " * dim + part + "]"


def _slice(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
    given: list[Any] = [*args[1:], *(0, None, None, 1)[len(args) - 1 :]]
    dim, start, end, step = given
    if step != 1 or dim < 0:
        return None
    size = args[0].shape[dim]
    stop = "" if end is None or end >= size else str(end)
    return f"{_operand(values[0])}{_at(dim, f'{start or str()}:{stop}')}"


def _select(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
    return None if args[1] < 0 else f"{_operand(values[0])}{_at(args[1], str(args[2]))}"


def _unsqueeze(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str:
    return f"{_operand(values[0])}.unsqueeze({args[1]})"


def _to_copy(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
    dtype = kwargs.get("dtype")
    others = [name for name, value in kwargs.items() if value is not None]
    if dtype is None or set(others) - {"dtype", "device", "layout", "pin_memory"}:
        return None
    if dtype == args[0].dtype and values[0].startswith("torch.tensor("):
        return values[0]  # written out just for this
    copy = ", copy=True" if dtype == args[0].dtype else ""
    return f"{_operand(values[0])}.to({dtype}{copy})"


def _softmax(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str | None:
    return None if args[2] else f"torch.softmax({values[0]}, {args[1]})"


def _sum(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str:
    dims = [", ".join(map(str, args[1]))] if len(args) > 1 and len(args[1] or ()) == 1 else None
    rest = dims + values[2:] if dims else values[1:]
    return f"{_operand(values[0])}.sum({', '.join([*rest, *keywords])})"


def _lift(args: Any, kwargs: Any, values: list[str], keywords: list[str]) -> str:
    return values[0]


_SPECIAL: dict[str, Special] = {
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "expand": _unpacked("expand"),
    "permute": _unpacked("permute"),
    "transpose": _method("transpose"),
    "t": _method("t"),
    "squeeze": _method("squeeze"),
    "clone": _method("clone"),
    "as_strided": _method("as_strided"),
    "unsqueeze": _unsqueeze,
    "slice": _slice,
    "select": _select,
    "_to_copy": _to_copy,
    "_softmax": _softmax,
    "sum": _sum,
    "detach": _lift,
    "alias": _lift,
    "lift_fresh": _lift,
}
