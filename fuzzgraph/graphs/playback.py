"""Turns a recorded operation into the quickest call that rewrites its frozen results.

An in-place operation is called again. Any other is called in its `out` form, straight into the
frozen result, if that form gave the same bytes when tried at capture; else in its functional form,
followed by a copy. All arguments are frozen at capture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from fuzzgraph.memory.operator_facts import Facts
from fuzzgraph.memory.placement import extent
from fuzzgraph.relays import relay

Step = Callable[[], object]

_BUILTIN = type(torch.add)
_METHOD = type(torch.Tensor.add_)
# Operators that only copy, cast or lay out anew: `copy_` into the result does the same.
_COPIES = ("aten.clone", "aten._to_copy")


def frozen(value: Any) -> Any:
    """The argument as the graph keeps it."""
    # `detach` makes another tensor object on the same memory. The engine may rebind or resize its
    # own object later, which a captured graph would not see.
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, tuple):
        # A named tuple takes its parts one by one; it is kept as it is.
        return type(value)(map(frozen, value)) if type(value) is tuple else value
    if isinstance(value, list):
        return [frozen(item) for item in value]
    return value


def in_place(func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    """The call of an operation that writes its own arguments."""
    call = _IN_PLACE.get(func)
    if call is None:
        call = _IN_PLACE[func] = _in_place_call(func, facts)
    return partial(call, *args, **kwargs) if kwargs else partial(call, *args)


# The quickest call of an in-place operation, by operator.
_IN_PLACE: dict[Any, Any] = {}


def _in_place_call(func: Any, facts: Facts) -> Any:
    # A C binding of torch parses its arguments faster than the dispatcher does from Python.
    name = func.overloadpacket.__name__
    if facts.outs == ("out",):
        call = getattr(torch, name, None)
        if type(call) is _BUILTIN and facts.name == f"aten.{name}":
            return call
    elif facts.name in _METHODS:
        return getattr(torch.Tensor, name)
    return facts.call


# In-place methods whose Python binding takes exactly the operator's arguments.
_METHODS = {
    f"aten.{name}"
    for name in (
        "add_", "bitwise_and_", "bitwise_or_", "clamp_", "copy_", "div_", "fill_", "floor_divide_",
        "index_add_", "index_copy_", "index_fill_", "masked_fill_", "mul_", "remainder_",
        "scatter_", "scatter_add_", "sub_", "zero_",
    )
    if type(getattr(torch.Tensor, name, None)) is _METHOD
}  # fmt: skip


def copy_back(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor | None]
) -> Step:
    """Run the functional form and copy what is fresh into the frozen results."""
    if len(results) == 1 and results[0] is not None:
        copy = results[0].copy_
        return relay(lambda: copy(func(*args, **kwargs)))

    @relay
    def step() -> None:
        for result, new in zip(results, func(*args, **kwargs), strict=True):
            if result is not None:
                result.copy_(new)

    return step


def straight_into(
    func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
) -> Step | None:
    """The call that writes `result` itself; None if no `out` form gives the same bytes."""
    # Random results cannot be compared. An `out` form may resize or refuse a strided result.
    if facts.random or not result.is_contiguous() or not result.numel():
        return None
    if facts.name in _COPIES:  # `copy_` converts and lays out as they do
        return partial(result.copy_, args[0])
    # Torch refuses an `out` that overlaps an argument; the functional form has no such limit.
    start = result.data_ptr()
    end = start + result.nbytes
    for each in args:
        if isinstance(each, torch.Tensor) and _overlaps(each, start, end):
            return None
    key = (func, _signature(args), _signature(kwargs.items()) if kwargs else ())
    form = _PROVEN.get(key, key)
    if form is key:
        form = _PROVEN[key] = _prove(func, args, kwargs, result)
    return None if form is None else _out_call(form, args, kwargs, result)


def _overlaps(other: torch.Tensor, start: int, end: int) -> bool:
    """Whether `other` overlaps [start, end), so that an operation may refuse it as an input."""
    begin = other.data_ptr()
    if begin >= end:
        return False
    contiguous = other.is_contiguous()
    return start < begin + (other.nbytes if contiguous else extent(other) * other.itemsize)


# Which `out` form was seen to give the same bytes, by operator and kind of arguments.
_PROVEN: dict[Any, Any] = {}


def _signature(values: Any) -> tuple[Any, ...]:
    """The kinds of the arguments: all that decides whether an `out` form gives the same bytes."""
    # Sizes and values are left out, or every case would try its forms anew.
    kinds: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            kinds += value.dtype, value.dim(), value.is_contiguous()
        elif isinstance(value, (list, tuple)):
            kinds.append(_signature(value))
        else:
            kinds.append(value if isinstance(value, (str, torch.dtype)) else type(value))
    return tuple(kinds)


def _prove(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Any:
    # `result` holds what the functional form just gave. It is clobbered by each attempt.
    wanted = result.clone()
    for form in _out_forms(func):
        if _reproduces(_out_call(form, args, kwargs, result), result, wanted):
            return form
    result.copy_(wanted)
    return None


@cache
def _out_forms(func: Any) -> list[Any]:
    """Callables that take the same arguments and `out`, the fastest first."""
    forms = [_OUR_OWN[func]] if func in _OUR_OWN else []
    overload = _out_overload(func)
    if overload is None:
        return forms
    binding = getattr(torch, func.overloadpacket.__name__, None)
    return [*forms, binding, overload] if type(binding) is _BUILTIN else [*forms, overload]


@relay
def _masked_fill(
    source: torch.Tensor, mask: torch.Tensor, value: Any, *, out: torch.Tensor
) -> None:
    out.copy_(source)
    out.masked_fill_(mask, value)


# For operators whose own `out` form makes a tensor and copies it, which takes twice as long.
_OUR_OWN = {torch.ops.aten.masked_fill.Scalar: _masked_fill}


def _out_overload(func: Any) -> Any:
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        outs = [a for a in arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        if [a.name for a in outs] == ["out"] and _same_arguments(rest, wanted):
            return overload
    return None


_PLACEMENT = ("dtype", "layout", "device", "pin_memory")


def _same_arguments(rest: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> bool:
    """Whether these are the same arguments, without those that a given `out` decides."""
    return rest == wanted or rest == [each for each in wanted if each[0] not in _PLACEMENT]


def _out_call(
    call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
) -> Step:
    if not kwargs:
        return partial(call, *args, out=result)
    kept = {name: value for name, value in kwargs.items() if name not in _PLACEMENT}
    return partial(call, *args, **kept, out=result)


def _reproduces(step: Step, result: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether a form gives the result the bytes that it had."""
    # Every byte is changed first, so that a form which writes only a part is found out.
    raw = _raw(result)
    raw.bitwise_not_()
    shape = result.shape
    try:
        step()
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        same = False
    else:
        same = result.shape == shape and torch.equal(raw, _raw(wanted))
    if result.shape != shape:
        result.resize_(shape)
    return same


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    # Not by `view(-1)`: a dimension of one element may have any stride, even a misaligned one.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
