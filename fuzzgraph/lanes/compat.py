"""Differences between the tested versions of Triton; no other module depends on the version.

Most differences need no code here, because methods that override Triton's take the hints of a load
(caches, eviction) as `*hints`.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

Array = npt.NDArray[Any]


class _NoBlockPointer:
    """A base class where the interpreter has no such class; no kernel reaches it then."""


BlockPointerHandle: Any = getattr(interpreter, "BlockPointerHandle", _NoBlockPointer)
"""The interpreter's block pointer. 3.8 makes block pointers of ordinary ones, 3.9 has none."""

# From 3.9 on one argument holds all hints on caches.
_ONE_POLICY = hasattr(interpreter.InterpreterBuilder, "get_cache_policy")

DESCRIPTOR_HINTS = (None,) if _ONE_POLICY else (None, None)
"""The arguments of `create_descriptor_load` behind the indices."""

POSITION_OF_EXTREME = (np.argmin, np.argmax, np.nanargmin, np.nanargmax)
"""The operations that find positions; from 3.8 on the interpreter uses those that skip NaN."""


def is_plain_load(semantic: Any, hints: tuple[Any, ...]) -> bool:
    """Whether a load asks for no boundary check.

    Args:
        hints: the arguments of `TritonSemantic.load` behind pointer, mask and default.
    """
    # The conversions are called for their errors: a wrong hint fails as it does in Triton.
    if _ONE_POLICY:
        hints[0]._to_ir(semantic.builder)
        return True
    boundary_check, padding, cache, eviction, _ = hints
    semantic._str_to_load_cache_modifier(cache)
    semantic._str_to_eviction_policy(eviction)
    return not boundary_check and not semantic._str_to_padding_option(padding)


def is_plain_store(semantic: Any, hints: tuple[Any, ...]) -> bool:
    """The same for a store; `hints` come behind pointer, value and mask."""
    if _ONE_POLICY:
        hints[0]._to_ir(semantic.builder)
        return True
    boundary_check, cache, eviction = hints
    semantic._str_to_store_cache_modifier(cache)
    semantic._str_to_eviction_policy(eviction)
    return not boundary_check


def unpatched(member: Any) -> Any:
    """A function of the language as Triton defines it."""
    # A launch of the stock interpreter may leave its replacement behind. That of 3.6.0 is bound to
    # a builder of its own; later ones use the present builder.
    while getattr(member, "__qualname__", "").startswith("_patch_attr."):
        member = member.__kwdefaults__["member"]
    return member


def accepted_names(kernel: Any) -> frozenset[str]:
    """Keywords that a launch passes to the kernel; all others are launch options."""
    spec = inspect.getfullargspec(kernel)
    return frozenset(spec.args + spec.kwonlyargs if _ONE_POLICY else spec.args)


def round_as_described(descriptor: Any, described: Any) -> None:
    """Let loads round as the host's descriptor says; earlier interpreters ignore that."""
    if hasattr(descriptor.handle, "round_f32_to_tf32"):
        descriptor.handle.round_f32_to_tf32 = described.round_f32_to_tf32


def flipped(data: Array, axis: int) -> Array:
    """The array backwards, in the memory layout that a reversed scan of the interpreter has."""
    # The layout decides in which order numpy adds, so each version's layout is kept.
    backwards = np.flip(data, axis=axis)
    return np.ascontiguousarray(backwards) if _ONE_POLICY else backwards


_TRUE = interpreter.TensorHandle(np.array([True]), tl.int1)
# Whether True + True is False, as in one bit; before 3.9 it stays True. Found by asking.
_WRAPS = not interpreter.InterpreterBuilder().create_add(_TRUE, _TRUE).data[0]


def as_one_bit(operation: Any, lhs: Array, rhs: Array) -> Array | None:
    """The operation on booleans as integers of one bit; None where numpy's result is right."""
    if not _WRAPS or lhs.dtype != np.bool_ or rhs.dtype != np.bool_:
        return None
    found: Array = (operation(lhs.astype(np.int8), rhs.astype(np.int8)) & 1).astype(np.bool_)
    return found
