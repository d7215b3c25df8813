"""Triton's language as the lanes need it: a set of attributes that are replaced for one launch.

The stock interpreter looks up and replaces a few hundred attributes before each launch and again
at each call of a device function, and does not restore all of them. Here they are collected once,
from the stock interpreter itself, and set and restored together.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from fuzzgraph.lanes.aliases import Attribute, use_aliases
from fuzzgraph.lanes.compat import unpatched
from fuzzgraph.lanes.constants import beside_tensors
from fuzzgraph.lanes.device_library import device_library
from fuzzgraph.lanes.divergence import NotVectorizable, uniform
from fuzzgraph.lanes.handles import Handle, tag_of
from fuzzgraph.lanes.lane_range import index_range, lane_range, number_of, per_lane, use_range
from fuzzgraph.lanes.reductions import lane_reduce, lane_scan, with_brain_floats
from fuzzgraph.lanes.traced import recorder, traced
from fuzzgraph.lanes.types import FAST_PATHS, unwrap

_MISSING = object()
Patches = tuple[tuple[Any, str, Any], ...]


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Inside, these attributes are set; afterwards they are as before."""
    # From `__dict__`, because `getattr` would also find what a base class or a module's
    # `__getattr__` provides. An attribute that was not there is deleted again.
    saved = [(target, name, target.__dict__.get(name, _MISSING)) for target, name, _ in patches]
    try:
        for target, name, value in patches:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in reversed(saved):
            if value is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, value)


@cache
def stock_language() -> Patches:
    """The attributes that the stock interpreter replaces, with faster versions of some."""
    # Ask the interpreter itself: let it patch for a pretended kernel and note what it changed.
    kernel = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(kernel)
    found = {
        (id(target), name): (target, name, vars(target)[name]) for target, name, _ in scope._changes
    }
    scope.restore()
    for target in {id(target): target for target, _, _ in found.values()}.values():
        for name, value in vars(target).items():
            # An earlier stock launch left its replacement behind, so this call did not replace it.
            if unpatched(value) is not value:
                found.setdefault((id(target), name), (target, name, value))
    for target, name, value in FAST_PATHS:
        found[id(target), name] = (target, name, value)
    for key, (target, name, value) in list(found.items()):
        if getattr(value, "__qualname__", "").startswith("_patch_attr."):
            found[key] = (target, name, _bound(vars(target)[name]))
        elif name == "reduce":
            found[key] = (target, name, with_brain_floats(value))
    for name, operation, reflected in _SUMS:
        found[id(tl.tensor), name] = (tl.tensor, name, _direct(operation, reflected))
    for name, function in beside_tensors():
        found[id(tl.constexpr), name] = (tl.constexpr, name, function)
    for target, name in _launch_order():
        found[id(target), name] = (target, name, _no_wait)
    for target, name, function in device_library():
        found[id(target), name] = (target, name, function)
    for target in (tl, tl.core):
        for name in ("range", "static_range"):
            found[id(target), name] = (target, name, index_range)
    found[id(tl.tensor), "__index__"] = (tl.tensor, "__index__", _whole_number)
    found[0, "call"] = (interpreter.InterpretedFunction, "__call__", _device_call)
    return tuple(found.values())


@cache
def defined() -> dict[int, Attribute]:
    """Id of each function that is replaced, as Triton defines it -> where the language has it."""
    found = {}
    for target, name, _ in stock_language():
        if isinstance(target, ModuleType) and name in vars(target):
            found[id(unpatched(vars(target)[name]))] = target, name
    return found


def _launch_order() -> Iterator[tuple[Any, str]]:
    """(module, name) of what orders a launch after the one before it, on the same stream."""
    cuda = getattr(getattr(tl, "extra", None), "cuda", None)
    for name in ("gdc_wait", "gdc_launch_dependents"):
        if hasattr(cuda, name):
            yield cuda, name


def _no_wait(*_: Any, **__: Any) -> None:
    """Here a launch ends before the next one begins."""


def _whole_number(tensor: Any) -> int:
    """The integer of a tensor with one element."""
    # As Triton does from 3.7.0 on. What 3.6.0 does instead fails with numpy 2.4.
    return int(tensor.handle.data.squeeze())


_SUMS = (
    ("__add__", "add", False),
    ("__radd__", "add", True),
    ("__sub__", "sub", False),
    ("__rsub__", "sub", True),
    ("__mul__", "mul", False),
    ("__rmul__", "mul", True),
)


def _direct(operation: str, reflected: bool) -> Any:
    """An operator that calls the semantics directly and saves three calls in between."""
    semantic = interpreter.interpreter_semantic

    def call(self: Any, other: Any) -> Any:
        other = unwrap(other)
        one, two = (other, self) if reflected else (self, other)
        return getattr(semantic, operation)(one, two, False)

    return call


def _bound(member: Any) -> Any:
    """A function of the language that always gets the interpreter's semantics."""
    member = unpatched(member)
    function = getattr(member, "__wrapped__", member)
    semantic = interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    return call


@cache
def lane_language() -> Patches:
    """The same for lanes."""
    found = {(id(target), name): (target, name, value) for target, name, value in stock_language()}
    for target in (tl, tl.core):
        for name, value in _FREE.items():
            if (id(target), name) in found or hasattr(target, name):
                found[id(target), name] = (target, name, value)
    for name, value in _MEMBERS.items():
        found[id(tl.tensor), name] = (tl.tensor, name, value)
    found[0, "call"] = (interpreter.InterpretedFunction, "__call__", _lane_device_call)
    return tuple(found.values())


def _device_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a device function without patching the language again."""
    use_aliases(function.fn.__globals__, defined())
    use_range(function.fn.__globals__, index_range)
    rewritten = function.rewrite()
    try:
        return rewritten(*args, **kwargs)
    except Exception as error:
        raise InterpreterError(repr(error)) from error


def _lane_device_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    use_range(function.fn.__globals__, lane_range)
    if (recording := recorder()) is not None:
        recording.enter(function.rewrite())
    return _device_call(function, *args, **kwargs)


# ---- how Python sees a tensor: as a bool, an int, a string


@traced
def _truth(tensor: Any) -> bool:
    values = per_lane(tensor)
    return True if values is None else bool(uniform(values.astype(np.bool_)))


@traced
def _number(tensor: Any) -> int:
    return number_of(tensor)


def _shown(tensor: Any) -> str:
    raise NotVectorizable("text of a tensor")


@traced
def _transposed(tensor: Any) -> Any:
    handle = tensor.handle
    assert tensor.type.is_block()
    # All axes reversed, as numpy's `.T` in the stock interpreter, but for the lane axis.
    axes = (0, *range(handle.data.ndim - 1, 0, -1))
    shape = list(tensor.type.shape)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    made = Handle(np.transpose(handle.data, axes), handle.dtype, tag_of(handle))
    return tl.core.tensor(made, tl.core.block_type(tensor.dtype, shape))


def _static_print(*values: Any, **kwargs: Any) -> None:
    raise NotVectorizable("static_print")


_FREE: Mapping[str, Callable[..., Any]] = {
    "range": lane_range,
    "static_range": lane_range,
    "reduce": lane_reduce,
    "associative_scan": lane_scan,
    "static_print": _static_print,
}
_MEMBERS: Mapping[str, Any] = {
    "__bool__": _truth,
    "__index__": _number,
    "__repr__": _shown,
    "__str__": _shown,
    "T": property(_transposed),
}
