"""Turns the arguments of a launch into tensors of the interpreter, and finds their memory."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from fuzzgraph.lanes.memory import LaneMemory
from fuzzgraph.lanes.report import LaneReport

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
    ) -> None:
        self._kernel = kernel
        self._bound = bound
        self._constants = frozenset(constants)
        self._regions = regions
        self._vouched = vouched
        self._written = written
        self._views: list[View] = []
        self._spans: list[tuple[int, int]] = []
        self._described = False
        self.converted: dict[str, Any] = {}

    def reconvert(self) -> None:
        """Convert again under another patched language, if there are tensor descriptors."""
        # A descriptor is an object of the builder that made it; plain tensors are not.
        if self._described:
            self.convert()

    def convert(self) -> None:
        """Turn values into what the kernel sees; call it under the patched language."""
        self._views, self._spans = [], []
        self.converted = {
            name: value if name in self._constants else self._convert(name, value)
            for name, value in self._bound.items()
        }
        self._link()

    def _convert(self, name: str, value: Any) -> Any:
        if hasattr(value, "data_ptr"):
            return self._pointer(name, value)
        if isinstance(value, tuple):
            parts = [self._convert(f"{name}[{index}]", each) for index, each in enumerate(value)]
            return triton._utils._tuple_create(value, parts)
        if isinstance(value, TensorDescriptor):
            self._described = True
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
        kind = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
        tensor = interpreter._unwrap_tensor(value)
        view = view_of(name, tensor, self._regions)
        view.keeps_loads = name in _KEEPS.get(self._kernel, ())
        if self._written is not None:
            view.written = self._written(tensor)
        self._views.append(view)
        storage = tensor.untyped_storage()
        self._spans.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        # One entry for all lanes. The pointer itself has offset 0, which every grain divides; 4096
        # is a power of two above the size of any element.
        address = np.array([value.data_ptr()], dtype=np.uint64)
        return tl.tensor(Handle(address, kind, Tag(view, 1 << 12)), kind)

    def _link(self) -> None:
        """Let every view know which others overlap it."""
        for view in self._views:
            view.aliases = [each for each in self._views if each is view or each.overlaps(view)]

    def memory(self, kernel: str, grid: Grid, report: LaneReport) -> LaneMemory:
        """Fresh bookkeeping over the memory of these arguments."""
        # A launch that found out that a buffer's loads must be logged starts over with this.
        for view in self._views:
            view.unlogged = False
            if view.keeps_loads:
                _KEEPS.setdefault(self._kernel, set()).add(view.name)
        spans = [*self._spans, *_spans_of(self._vouched)]
        if self._regions is not None:
            spans += self._regions.spans()
        known = KnownMemory(spans)
        bounds = BoundsChecker(kernel, grid, known, self._views, self._regions, report)
        return LaneMemory(self._views, bounds)

    def constants_key(self, kernel: Any) -> Any:
        """The kernel and the constants on which the sizes of its intermediates depend."""
        values = [self._bound.get(name) for name in sorted(self._constants)]
        return kernel, *(value if isinstance(value, (int, str)) else None for value in values)


def _spans_of(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        storage = tensor.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
