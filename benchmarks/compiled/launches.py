"""Notes what the compiler would have to know of each launch that the interpreter runs.

A note is what a device's launch would be compiled by: the kernel, the types of its arguments, which
of them 16 divides, its constants, and its options (Triton 3.7.1 runtime/jit.py `JITFunction.run`).
Launches that differ in nothing but which numbers are 1, or which ones 16 divides, are one note: the
first that was seen.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import triton.language as tl
from triton._C.libtriton import native_specialize_impl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import KernelParam

VENDORS = ("cuda", "hip")


@dataclass(frozen=True)
class Note:
    """One kernel as it would be compiled."""

    kernel: Any
    """The interpreted function."""
    values: Mapping[str, Any]
    """Constant arguments, and those that are compiled in because they are 1."""
    types: Mapping[str, tuple[Any, ...]]
    """Argument -> its type, then what 16 divides, for each of `VENDORS`."""
    options: Mapping[str, Any]
    """num_warps, num_stages and the like."""

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    @property
    def module(self) -> str:
        return str(self.kernel.fn.__module__)

    def key(self) -> Any:
        """Equal for launches that are one note."""
        shape = [(name, _kind(name, kinds, self.values)) for name, kinds in self.types.items()]
        return self.kernel, repr(shape), repr(sorted(self.options.items()))

    def without_dependent_launch(self) -> Note:
        """The launch of an engine whose device has none."""
        return replace(self, values=_off(self.values), options=_off(self.options))

    def in_bfloat16(self) -> Note | None:
        """The same launch where all that is float16 is bfloat16; None if nothing is."""
        types = {name: tuple(map(_as_bfloat16, kinds)) for name, kinds in self.types.items()}
        values = {name: _constant_as_bfloat16(value) for name, value in self.values.items()}
        if types == self.types and all(values[name] is self.values[name] for name in values):
            return None
        return replace(self, types=types, values=values)

    def floats(self) -> str:
        """The kinds of floats that its pointers lead to, e.g. "bf16 fp32"."""
        named = re.findall(r"\*k?(fp\w+|bf16)", repr([kinds[0] for kinds in self.types.values()]))
        return " ".join(sorted(set(named)))


def _kind(name: str, kinds: tuple[Any, ...], values: Mapping[str, Any]) -> Any:
    if kinds[0] != "constexpr":
        return str(kinds[0])
    return "i32" if type(values[name]) is _One else repr(values[name])


class _One(int):
    """An argument that is compiled in because it is 1, though the kernel does not ask for it."""


_DEPENDENT_LAUNCH = frozenset({"launch_pdl", "enable_pdl", "use_pdl", "pdl", "use_gdc"})
"""What engines call the constants and options that ask for it, in small letters."""


def _off(given: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = {name for name in given if name.lower() in _DEPENDENT_LAUNCH}
    return {name: False if name in wanted else value for name, value in given.items()}


def _as_bfloat16(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind.replace("fp16", "bf16")
    return tuple(map(_as_bfloat16, kind)) if isinstance(kind, tuple) else kind


def _constant_as_bfloat16(value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        inner = _constant_as_bfloat16(value.value)
        return value if inner is value.value else tl.constexpr(inner)
    return tl.bfloat16 if isinstance(value, tl.dtype) and value == tl.float16 else value


class Notes:
    """All launches that were noted, each once."""

    def __init__(self) -> None:
        self._found: dict[Any, Note] = {}
        self.launches = 0
        self.unread: dict[str, str] = {}
        """Kernel -> why a launch of it could not be noted."""

    def __len__(self) -> int:
        return len(self._found)

    def add(self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note a launch."""
        self.launches += 1
        try:
            note = note_of(kernel, args, kwargs)
        except Exception as error:  # of one launch; the engine's own goes on
            self.unread.setdefault(kernel.__name__, f"{type(error).__name__}: {error}")
            return
        self._found.setdefault(note.key(), note)

    def all(self) -> list[Note]:
        """Every note, each launch of 16-bit floats in both kinds of them."""
        for note in list(self._found.values()):
            other = note.in_bfloat16()
            if other is not None:
                self._found.setdefault(other.key(), other)
        return list(self._found.values())


def note_of(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Note:
    """What a launch would be compiled by.

    Raises:
        Exception: an argument that Triton cannot take.
    """
    signature = inspect.signature(kernel.fn)
    known = signature.parameters
    bound = signature.bind(*args, **{key: kwargs[key] for key in kwargs if key in known})
    bound.apply_defaults()
    values, types = {}, {}
    for number, (name, parameter) in enumerate(known.items()):
        value = bound.arguments[name]
        types[name] = _specialised(_parameter(kernel, number, parameter), value)
        if types[name][0] == "constexpr":
            asked = "constexpr" in str(parameter.annotation) or type(value) is not int
            values[name] = value if asked else _One(value)
    options = {key: value for key, value in kwargs.items() if key not in known}
    return Note(kernel, values, types, options)


def _parameter(kernel: Any, number: int, parameter: inspect.Parameter) -> Any:
    """The parameter as Triton reads it, with what the decorator says of it."""

    def said(option: str) -> bool:
        named = kernel.kwargs.get(option) or ()
        return number in named or parameter.name in named

    return KernelParam(
        number, parameter, said("do_not_specialize"), said("do_not_specialize_on_alignment")
    )


def _specialised(parameter: Any, value: Any) -> tuple[Any, ...]:
    """Type and what 16 divides, as `create_function_from_signature` of Triton's jit.py says."""
    if parameter.is_constexpr or isinstance(value, InterpretedFunction):
        return "constexpr", None, None
    specialise = not parameter.do_not_specialize
    align = not parameter.do_not_specialize_on_alignment
    kind = parameter.annotation_type
    if kind and (kind == "u1" or kind[:2] in ("fp", "bf")):
        return kind, None, None
    found = [
        native_specialize_impl(_backend(vendor), value, parameter.is_const, specialise, align)
        for vendor in VENDORS
    ]
    if kind:
        return kind, *[attributes if specialise else None for _, attributes in found]
    return found[0][0], *[attributes for _, attributes in found]


def _backend(vendor: str) -> Any:
    from triton.backends import backends

    return backends["amd" if vendor == "hip" else "nvidia"].compiler


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """Note every launch inside; of an autotuned kernel the config that the interpreter runs."""
    run = InterpretedFunction.run

    def noted(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        notes.add(kernel, args, kwargs)
        return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = noted
    try:
        yield
    finally:
        InterpretedFunction.run = run
