"""What differs inside Triton between the tested versions: nowhere else is a version told apart.

Most differences ask for no look at the number: whoever overrides a method of Triton takes the hints
of a load (caches, eviction) as they come. Here is what is left.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter

__all__ = [
    "DESCRIPTOR_HINTS",
    "POSITION_OF_EXTREME",
    "BlockPointerHandle",
    "accepted_names",
    "as_one_bit",
    "flipped",
    "is_plain_load",
    "is_plain_store",
    "round_as_described",
    "unpatched",
]

Array = npt.NDArray[Any]


class _NoBlockPointer:
    """Stands in the place of a class that no kernel reaches."""


BlockPointerHandle: Any = getattr(interpreter, "BlockPointerHandle", _NoBlockPointer)
"""Before 3.8. There block pointers are made of ordinary ones; from 3.9 on there are none."""

# From 3.9 on one argument holds all hints on caches.
_ONE_POLICY = hasattr(interpreter.InterpreterBuilder, "get_cache_policy")

DESCRIPTOR_HINTS = (None,) if _ONE_POLICY else (None, None)
"""What `create_descriptor_load` takes behind the indices."""

POSITION_OF_EXTREME = (np.argmin, np.argmax, np.nanargmin, np.nanargmax)
"""From 3.8 on NaN is passed over."""


def is_plain_load(semantic: Any, hints: tuple[Any, ...]) -> bool:
    """Whether a load asks for no boundary check; of a wrong hint the error is Triton's.

    Args:
        hints: what `TritonSemantic.load` got behind pointer, mask and default.
    """
    if _ONE_POLICY:
        hints[0]._to_ir(semantic.builder)
        return True
    boundary_check, padding, cache, eviction, _ = hints
    semantic._str_to_load_cache_modifier(cache)
    semantic._str_to_eviction_policy(eviction)
    return not boundary_check and not semantic._str_to_padding_option(padding)


def is_plain_store(semantic: Any, hints: tuple[Any, ...]) -> bool:
    """The same for a store; hints stand behind pointer, value and mask."""
    if _ONE_POLICY:
        hints[0]._to_ir(semantic.builder)
        return True
    boundary_check, cache, eviction = hints
    semantic._str_to_store_cache_modifier(cache)
    semantic._str_to_eviction_policy(eviction)
    return not boundary_check


def unpatched(member: Any) -> Any:
    """A function of the language as Triton defines it.

    A launch may leave one behind as the interpreter has replaced it. That of 3.6.0 is bound to a
    builder of its own, later ones ask for the builder in use.
    """
    while getattr(member, "__qualname__", "").startswith("_patch_attr."):
        member = member.__kwdefaults__["member"]
    return member


def accepted_names(kernel: Any) -> frozenset[str]:
    """Keywords that a launch hands on to the kernel; all others are launch options."""
    spec = inspect.getfullargspec(kernel)
    return frozenset(spec.args + spec.kwonlyargs if _ONE_POLICY else spec.args)


def round_as_described(descriptor: Any, described: Any) -> None:
    """Let loads round as the host's descriptor says; earlier interpreters pass over it."""
    if hasattr(descriptor.handle, "round_f32_to_tf32"):
        descriptor.handle.round_f32_to_tf32 = described.round_f32_to_tf32


def flipped(data: Array, axis: int) -> Array:
    """The array backwards, in the memory layout that a reversed scan of the interpreter has."""
    backwards = np.flip(data, axis=axis)
    return np.ascontiguousarray(backwards) if _ONE_POLICY else backwards


_TRUE = interpreter.TensorHandle(np.array([True]), tl.int1)
# Whether booleans add up to one bit; before 3.9 they stay true.
_WRAPS = not interpreter.InterpreterBuilder().create_add(_TRUE, _TRUE).data[0]


def as_one_bit(operation: Any, lhs: Array, rhs: Array) -> Array | None:
    """The operation on booleans as integers of one bit; None where numpy's own meaning holds."""
    if not _WRAPS or lhs.dtype != np.bool_ or rhs.dtype != np.bool_:
        return None
    found: Array = (operation(lhs.astype(np.int8), rhs.astype(np.int8)) & 1).astype(np.bool_)
    return found
