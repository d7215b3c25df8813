"""Turns the arguments of a launch into tensors of the interpreter, and finds their memory."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzzgraph.lanes.argument_regions import KnownMemory, RegionMap, View, view_of
from fuzzgraph.lanes.bounds_check import BoundsChecker, Grid
from fuzzgraph.lanes.compat import round_as_described
from fuzzgraph.lanes.handles import Handle, Tag
from fuzzgraph.lanes.host_pointers import OutOfReach, check_pointer
from fuzzgraph.lanes.memory import LaneMemory
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.types import tensor_of

# Arguments whose loads have to be logged, by kernel: learned from launches that wrote them.
_KEEPS: dict[Any, set[str]] = {}


class Arguments:
    """The arguments of one launch.

    Args:
        kernel: the rewritten function.
        bound: argument name -> value as the caller passed it, on the host.
        constants: names of constexpr arguments, passed unchanged.
        regions: names memory by address.
        vouched: tensors that pointers loaded from memory may lead to.
        written: tells which elements of a tensor were written; None where that is not checked.
        is_out_of_reach: tells of memory that no kernel reaches; None where that is not checked.
    """

    def __init__(
        self,
        kernel: Any,
        bound: Mapping[str, Any],
        constants: Sequence[str],
        *,
        regions: RegionMap | None = None,
        vouched: Sequence[torch.Tensor] = (),
        written: Callable[[torch.Tensor], Any] | None = None,
        is_out_of_reach: OutOfReach | None = None,
    ) -> None:
        self._kernel = kernel
        self._bound = bound
        self._constants = constants
        self._regions = regions
        self._vouched = vouched
        self._written = written
        self._is_out_of_reach = is_out_of_reach
        self._views: list[View] = []
        self._tensors: list[torch.Tensor] = []
        self._found: KnownMemory | None = None
        self.described = _has_descriptor(bound.values())
        """Whether a tensor descriptor is among them: only the patched language makes these."""
        self.converted: dict[str, Any] = {}
        self.inputs: list[Any] = []
        """The handles of all tensors among the converted arguments, in order."""
        self.kinds: tuple[Any, ...] | None = None
        """What a trace depends on: the types of the tensors, all else by value; None if a value is
        of a kind that does not tell."""

    def sized_by(self, grid: Callable[[dict[str, Any]], Any]) -> Any:
        """What a callable grid says of these arguments, which it may replace.

        As compiled: it is handed the values as passed, and the kernel gets what it leaves there
        (Triton 3.7.1 runtime/jit.py `JITFunction.run`). The stock interpreter converts them first.
        """
        bound = dict(self._bound)
        sizes = grid(bound)
        self._bound = {name: bound[name] for name in self._bound}
        return sizes

    def reconvert(self) -> None:
        """Convert again under another patched language, if there are tensor descriptors."""
        # A descriptor is an object of the builder that made it; plain tensors are not.
        if self.described:
            self.convert()

    def convert(self) -> None:
        """Turn values into what the kernel sees; under the patched language if `described`.

        Raises:
            ValueError: a tensor lies out of the kernel's reach.
        """
        self._views, self._tensors = [], []
        self._found = None
        constants = frozenset(self._constants)
        self.converted = {
            name: value if name in constants else self._convert(name, value)
            for name, value in self._bound.items()
        }
        for view in self._views:
            view.beside = self._views
        self.inputs = []
        try:
            self.kinds = tuple([(name, self._kind(each)) for name, each in self.converted.items()])
        except _NoKind:
            self.kinds = None

    def _kind(self, value: Any) -> Any:
        """What a trace depends on in one converted argument; its handles are noted as inputs."""
        kind = type(value)
        if kind is tl.tensor:
            self.inputs.append(value.handle)
            return value.type.name
        if kind in (int, bool, str, type(None)):
            return kind, value
        if kind is float:
            return kind, value.hex()
        if kind is tl.constexpr:
            return kind, self._kind(value.value)
        if isinstance(value, tl.dtype):
            return kind, str(value)
        if isinstance(value, tuple):
            return kind, tuple([self._kind(each) for each in value])
        if isinstance(value, interpreter.InterpretedFunction):
            return kind, value
        raise _NoKind

    def _convert(self, name: str, value: Any) -> Any:
        if type(value) is int:
            # A handle of its own: two arguments of one value are two inputs of a trace.
            data, kind = _number(value)
            return tensor_of(Handle(data, kind), kind)
        if hasattr(value, "data_ptr"):
            return self._pointer(name, value)
        if isinstance(value, tuple):
            parts = [self._convert(f"{name}[{index}]", each) for index, each in enumerate(value)]
            return triton._utils._tuple_create(value, parts)
        if isinstance(value, TensorDescriptor):
            strides = [self._convert(name, stride) for stride in value.strides]
            # Triton takes the innermost stride as a constant, and the host's descriptor has 1
            # there.
            assert value.strides[-1] == 1
            strides[-1] = tl.constexpr(1)
            descriptor = interpreter.interpreter_semantic.make_tensor_descriptor(
                base=self._convert(name, value.base),
                shape=[self._convert(name, size) for size in value.shape],
                strides=strides,
                block_shape=[tl.constexpr(size) for size in value.block_shape],
                padding_option=value.padding,
            )
            round_as_described(descriptor, value)
            return descriptor
        return interpreter._implicit_cvt(value)

    def _pointer(self, name: str, value: Any) -> Any:
        kind = _pointer_kind(value)
        tensor = interpreter._unwrap_tensor(value)
        if self._is_out_of_reach is not None:
            check_pointer(self._kernel, name, tensor, self._is_out_of_reach)
        view = view_of(name, tensor, self._regions)
        view.keeps_loads = name in _KEEPS.get(self._kernel, ())
        if self._written is not None:
            view.written = self._written(tensor)
        self._views.append(view)
        self._tensors.append(tensor)
        # One entry for all lanes. The pointer itself has offset 0, which every grain divides; 4096
        # is a power of two above the size of any element.
        address = np.array([value.data_ptr()], dtype=np.uint64)
        return tensor_of(Handle(address, kind, Tag(view, 1 << 12)), kind)

    def memory(self, kernel: str, grid: Grid, report: LaneReport) -> LaneMemory:
        """Fresh bookkeeping over the memory of these arguments."""
        # A launch that found out that a buffer's loads must be logged starts over with this.
        for view in self._views:
            view.unlogged = False
            if view.keeps_loads:
                _KEEPS.setdefault(self._kernel, set()).add(view.name)
        bounds = BoundsChecker(kernel, grid, self._known, self._views, self._regions, report)
        return LaneMemory(self._views, bounds)

    def _known(self) -> KnownMemory:
        """The memory that is there; few launches ask for it."""
        if self._found is None:
            spans = [*_spans_of(self._tensors), *_spans_of(self._vouched)]
            if self._regions is not None:
                spans += self._regions.spans()
            self._found = KnownMemory(spans)
        return self._found

    def constants_key(self, kernel: Any) -> Any:
        """The kernel and the constants on which the sizes of its intermediates depend."""
        # Always in the order in which the executor names them.
        bound = self._bound
        values = [bound[name] for name in self._constants if name in bound]
        return kernel, *[value if isinstance(value, (int, str)) else None for value in values]


# No operation changes an array or a type in place.


@lru_cache(maxsize=4096)
def _number(value: int) -> tuple[Any, Any]:
    """[1] and type of an integer argument."""
    made = interpreter._implicit_cvt(value)
    return made.handle.data, made.type


@lru_cache(maxsize=256)
def _pointer_type(mangled: str) -> Any:
    return tl.str_to_ty(mangled, None)


_POINTER_KINDS: dict[torch.dtype, Any] = {}


def _pointer_kind(value: Any) -> Any:
    """The type of a pointer to a tensor's elements."""
    if type(value) is not torch.Tensor:  # a wrapper may say another dtype
        return _pointer_type(triton.runtime.jit.mangle_type(value))
    kind = _POINTER_KINDS.get(value.dtype)
    if kind is None:
        kind = _POINTER_KINDS[value.dtype] = _pointer_type(triton.runtime.jit.mangle_type(value))
    return kind


_PLAIN = frozenset((torch.Tensor, int, bool, float, str, type(None)))


def _has_descriptor(values: Iterable[Any]) -> bool:
    for value in values:
        if type(value) in _PLAIN:
            continue
        if isinstance(value, TensorDescriptor):
            return True
        if isinstance(value, tuple) and _has_descriptor(value):
            return True
    return False


class _NoKind(Exception):
    """An argument that a trace cannot stand for."""


def _spans_of(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        storage = tensor.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
