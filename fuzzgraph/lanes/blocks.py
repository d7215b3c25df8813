"""Block pointers and tensor descriptors, for one program at a time and over lanes."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime.interpreter import TensorDescHandle

from fuzzgraph.lanes.compat import BlockPointerHandle
from fuzzgraph.lanes.handles import Handle, tag_of

Array = npt.NDArray[Any]


class BlockPointer(BlockPointerHandle):  # type: ignore[misc]
    """The stock block pointer; its pointers remember their argument."""

    def materialize_pointers(self, boundary_check: Any) -> tuple[Any, Array]:
        pointers, masks = super().materialize_pointers(boundary_check)
        return Handle(pointers.data, pointers.dtype, tag_of(self.base)), masks


class Descriptor(TensorDescHandle):  # type: ignore[misc]
    """The stock descriptor; its pointers remember their argument."""

    def materialize_pointers(self, offsets: Any) -> tuple[Any, Array]:
        pointers, masks = super().materialize_pointers(offsets)
        return Handle(pointers.data, pointers.dtype, tag_of(self.base)), masks


class LaneBlockPointer(BlockPointerHandle):  # type: ignore[misc]
    """A block pointer whose base, shape, strides and offsets have one entry per lane, or one."""

    def materialize_pointers(self, boundary_check: Any) -> tuple[Any, Array]:
        checked = [dim in boundary_check for dim in range(len(self.block_shape))]
        return _pointers(self, self.offsets, self.base.get_element_ty(), checked)


class LaneDescriptor(TensorDescHandle):  # type: ignore[misc]
    """A descriptor over lanes; it checks every boundary."""

    def validate(self) -> None:
        # The rules of TMA hardware, which the stock interpreter asserts too.
        scalar = self.base.dtype.element_ty
        itemsize = scalar.primitive_bitwidth // 8
        assert (self.base.data % np.uint64(16) == 0).all(), "base must be 16-byte aligned"
        assert len(self.strides) == self.ndim == len(self.block_shape) >= 1
        for stride in self.strides[:-1]:
            assert (stride.data * itemsize % 16 == 0).all(), "stride must be 16-byte aligned"
        assert (self.strides[-1].data == 1).all(), "last dim must be contiguous"

    def materialize_pointers(self, offsets: Any) -> tuple[Any, Array]:
        assert len(offsets) == self.ndim
        scalar = self.base.dtype.element_ty
        start = offsets[-1].data * (scalar.primitive_bitwidth // 8)
        assert (start % 16 == 0).all(), "block offset start must be 16-byte aligned"
        return _pointers(self, offsets, scalar, [True] * self.ndim)


def _pointers(block: Any, offsets: Any, scalar: Any, checked: list[bool]) -> tuple[Any, Array]:
    """The pointers of a block in every lane, and which of them lie inside its tensor."""
    # Shapes: [lanes or 1, 1, ..., 1] for what is one number per lane, and the block's own index
    # along one axis for each dimension; broadcasting makes the pointers of the whole block.
    rank = len(block.block_shape)
    itemsize = scalar.primitive_bitwidth // 8
    column = (-1,) + (1,) * rank
    places = block.base.data.reshape(column)
    inside: Array = np.ones((1,) * (rank + 1), np.bool_)
    for dim, size in enumerate(block.block_shape):
        steps = np.arange(size).reshape((1,) * (dim + 1) + (-1,) + (1,) * (rank - dim - 1))
        offset = offsets[dim].data.reshape(column) + steps
        stride = block.strides[dim].data.reshape(column)
        # A negative distance wraps around, and the sum of addresses wraps back.
        places = places + (itemsize * offset * stride).astype(np.uint64)
        if checked[dim]:
            inside = inside & (offset < block.shape[dim].data.reshape(column)) & (offset >= 0)
    lanes = max(len(places), len(inside))
    shape = (lanes, *block.block_shape)
    tag = tag_of(block.base)
    pointers = Handle(np.broadcast_to(places, shape), block.base.dtype.scalar, tag)
    return pointers, np.broadcast_to(inside, shape)
