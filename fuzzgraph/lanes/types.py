"""Makes Triton's types and tensors quickly: each shape is worked out once, not at every operation.

Half of the time of an interpreted launch goes into objects for shapes. The constructors here set
the same attributes to equal values; block types of one shape share the shape object.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import builtins
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_block_init = tl.block_type.__init__
_stock_np_dtype = interpreter._get_np_dtype
_stock_unwrap = tl.core._unwrap_if_constexpr

_Known = builtins.tuple[Any, int, str, Any, Any]
# Sizes -> (a block type's shape, its number of elements, its text, a tensor's shape, a tensor's
# number of elements).
_SHAPES: dict[builtins.tuple[int, ...], _Known] = {}
# The same by the `id` of a block type's shape; `_SHAPES` keeps the shape alive, so the id is safe.
_BY_IDENTITY: dict[int, _Known] = {}
_NUMPY: dict[str, Any] = {}
_MOST_SIZES = 10_000
_SCALAR = tl.core.tuple([]), tl.core.constexpr(1)


def _sizes(shape: Any) -> builtins.tuple[int, ...] | None:
    """The sizes as plain integers, None if one of them is anything else."""
    found = []
    for size in shape.values if type(shape) is tl.core.tuple else shape:
        if type(size) is not int:
            size = getattr(size, "value", None)
            if type(size) is not int:
                return None
        found.append(size)
    return builtins.tuple(found)


# The `id` of a shape -> the shape, which keeps the id safe, and its sizes.
_PLAIN_SIZES: dict[int, builtins.tuple[Any, builtins.tuple[int, ...]]] = {}


def plain_sizes(shape: Any) -> builtins.tuple[int, ...]:
    """The sizes of a shape as plain integers."""
    if type(shape) is builtins.tuple:
        return builtins.tuple([int(size) for size in shape])
    known = _PLAIN_SIZES.get(id(shape))
    if known is None:
        sizes = builtins.tuple([int(size) for size in shape])
        # A list may be changed; shapes of types are not.
        if type(shape) is list or len(_PLAIN_SIZES) >= _MOST_SIZES:
            return sizes
        known = _PLAIN_SIZES[id(shape)] = shape, sizes
    return known[1]


def make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """Replaces `block_type.__init__`."""
    known = _BY_IDENTITY.get(id(shape))
    if known is None and type(shape) in (list, tl.core.tuple):
        sizes = _sizes(shape)
        known = None if sizes is None else _SHAPES.get(sizes)
    if known is None:
        _block_init(self, element_ty, shape)
        _learn(self)
        return
    self.element_ty = element_ty
    self.shape, self.numel, text = known[:3]
    self.name = f"<{text}, {element_ty}>"


def _learn(kind: Any) -> None:
    sides = tl.core.tuple([tl.core.constexpr(size) for size in kind.shape])
    known = kind.shape, kind.numel, str(kind.shape), sides, tl.core.constexpr(kind.numel)
    _SHAPES[builtins.tuple(kind.shape.values)] = known
    _BY_IDENTITY[id(kind.shape)] = known


def make_tensor(self: Any, handle: Any, type: Any) -> None:
    """Replaces `tensor.__init__`."""
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    if not type.is_block():
        self.shape, self.numel = _SCALAR
        return
    known = _BY_IDENTITY.get(id(type.shape))
    if known is not None:
        self.shape, self.numel = known[3:]
    else:
        self.shape = tl.core.tuple([tl.core.constexpr(size) for size in type.shape])
        self.numel = tl.core.constexpr(type.numel)


def tensor_of(handle: Any, kind: Any) -> Any:
    """A tensor, made quickly whether the stock language is in place or ours."""
    made = tl.tensor.__new__(tl.tensor)
    make_tensor(made, handle, kind)
    return made


def block_of(element_ty: Any, shape: builtins.tuple[int, ...]) -> Any:
    """A block type, made quickly likewise."""
    made = tl.block_type.__new__(tl.block_type)
    make_block_type(made, element_ty, builtins.list(shape))
    return made


# The ids of two shapes -> the shape that both are broadcast to; None if they cannot be. Only shapes
# of `_BY_IDENTITY` get in, whose ids are safe.
_WIDER: dict[builtins.tuple[int, int], Any] = {}


def wider(one: Any, two: Any) -> Any:
    """The shape that two shapes of equal rank are broadcast to; None where it takes more."""
    key = id(one), id(two)
    if key not in _WIDER:
        known = [_BY_IDENTITY.get(each) for each in key]
        if None in known or len(one) != len(two):
            return None
        pairs = builtins.list(zip(one.values, two.values, strict=True))
        fits = all(a == b or a == 1 or b == 1 for a, b in pairs)
        shape = None
        if fits:
            shape = tl.block_type(tl.int1, [max(a, b) for a, b in pairs]).shape
        _WIDER[key] = shape
    return _WIDER[key]


def unwrap(value: Any) -> Any:
    """Replaces `core._unwrap_if_constexpr`; fast for values that are not a constexpr."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tl.core.constexpr:
        return value.value
    return _stock_unwrap(value)


_PLAIN = frozenset((int, float, bool, type(None), tl.tensor, tl.dtype, tl.block_type, str))


def np_dtype(kind: Any) -> Any:
    """Replaces `interpreter._get_np_dtype`; looks the dtype up by name."""
    name = kind.name
    found = _NUMPY.get(name)
    if found is None:
        found = _stock_np_dtype(kind)
        # Pointer types nest and name block shapes, so there is no end of names.
        if len(_NUMPY) < 10_000:
            _NUMPY[name] = found
    return found


FAST_PATHS: builtins.tuple[builtins.tuple[Any, str, Any], ...] = (
    (tl.block_type, "__init__", make_block_type),
    (tl.tensor, "__init__", make_tensor),
    (tl.core, "_unwrap_if_constexpr", unwrap),
    (interpreter, "_get_np_dtype", np_dtype),
)
"""Attributes of Triton that are replaced during a launch: (object, name, value)."""
