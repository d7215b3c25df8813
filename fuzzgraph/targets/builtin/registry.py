"""Declarative registry of the static input buffers that captured graphs read.

Each `GraphSlot` declares one buffer: its shape, dtype and axis, what becomes of the rows beyond the
live ones, and where its values come from. `BufferRegistry.fill_from` does the rest for all of them.
Which slots a runner has is told by `slots`; attention metadata is not kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np
import torch

from fuzzgraph.targets.builtin.cached_method import cached_method
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.world import Batch, IntArray

SlotAxis = Literal["batch", "tokens", "none"]


class PaddingPolicy(Enum):
    """What becomes of a buffer's rows beyond the live ones when a batch is padded."""

    KEEP = "keep"
    """Nothing: they hold what an earlier, larger batch left."""
    FILL_SENTINEL = "fill_sentinel"
    """They are set to the slot's pad value before the copy."""
    ZERO = "zero"
    """They are set to zero before the copy."""
    COPY_LIVE = "copy_live"
    """The source may be longer than the batch: its live rows are copied, no other row changes."""
    FILL_ONCE = "fill_once"
    """The buffer is filled with the pad value at allocation; it is never reset afterwards."""


@dataclass(frozen=True, slots=True)
class FillContext:
    """The sizes of one fill."""

    raw: Extent
    padded: Extent

    @property
    def is_padded(self) -> bool:
        return self.raw != self.padded


Source = Callable[[Batch], "IntArray | None"]
PostFill = Callable[[torch.Tensor, Batch, FillContext], None]


@dataclass(frozen=True)
class GraphSlot:
    """What one static input buffer is, and how batches fill it; the registry holds it."""

    name: str
    shape: Callable[[Extent], tuple[int, ...]]
    dtype: torch.dtype
    axis: SlotAxis
    policy: PaddingPolicy = PaddingPolicy.KEEP
    pad_value: int = 0
    source: Source | None = None
    """The batch's values; None where the hook alone fills the buffer. A source that answers None
    is absent from the batch: its rows all take the pad value."""
    post_fill: PostFill | None = None
    slice_of: Callable[[torch.Tensor, Extent], torch.Tensor] | None = None
    """Part of the buffer that a batch of this extent uses; by default the first rows."""
    device: torch.device | None = None
    """Defaults to the registry's device; host mirrors name another one."""

    def __post_init__(self) -> None:
        if self.axis == "none" and self.policy not in (PaddingPolicy.KEEP, PaddingPolicy.FILL_ONCE):
            raise ValueError(
                f"slot {self.name!r}: axis 'none' has no padded rows, so policy"
                f" {self.policy.value!r} means nothing. Use 'keep' or 'fill_once'."
            )

    def allocate(self, pool: InputPool, largest: Extent, device: torch.device) -> torch.Tensor:
        """The buffer from the shared pool, at the largest extent."""
        where = self.device or device
        return pool.share(self.name, self.shape(largest), self.dtype, where, self.initial_value())

    def initial_value(self) -> int:
        """What a new buffer holds."""
        filled = (PaddingPolicy.FILL_SENTINEL, PaddingPolicy.FILL_ONCE)
        return self.pad_value if self.policy in filled else 0

    def used_of(self, buffer: torch.Tensor, extent: Extent) -> torch.Tensor:
        """The part of its buffer that a batch of `extent` uses."""
        if self.slice_of is not None:
            return self.slice_of(buffer, extent)
        if self.axis == "none":
            return buffer
        return buffer[: extent.rows if self.axis == "batch" else extent.tokens]

    def read(self, batch: Batch) -> IntArray | None:
        """The batch's values for the live rows."""
        values = self.source(batch) if self.source is not None else None
        if values is not None and self.policy is PaddingPolicy.COPY_LIVE:
            return values[: self._live_rows(batch)]
        return values

    def _live_rows(self, batch: Batch) -> int:
        return batch.raw_bs if self.axis == "batch" else batch.num_tokens


Pair = tuple[torch.Tensor, torch.Tensor]


class BufferRegistry:
    """All static input buffers of one runner, filled together."""

    def __init__(
        self,
        slots: Iterable[GraphSlot],
        largest: Extent,
        pool: InputPool,
        device: torch.device,
    ) -> None:
        self.slots = {slot.name: slot for slot in slots}
        self.largest = largest
        self.buffers = {
            name: slot.allocate(pool, largest, device) for name, slot in self.slots.items()
        }
        self._views = cached_method(self._used)

    def view(self, name: str, extent: Extent) -> torch.Tensor:
        """The rows that a batch of `extent` uses; same storage, same object at every call."""
        return self._views(name, extent)

    def _used(self, name: str, extent: Extent) -> torch.Tensor:
        return self.slots[name].used_of(self.buffers[name], extent)

    def find(self, name: str, extent: Extent) -> torch.Tensor | None:
        """The slot's rows, or None where this runner has no such slot."""
        return self.view(name, extent) if name in self.slots else None

    def fill_from(self, batch: Batch, context: FillContext) -> None:
        """Reset padded rows by policy, copy the live ones, then run the hooks."""
        if context.is_padded:
            self.reset_padding(context)
        self.copy(self.pairs(batch, context))
        for slot in self.slots.values():
            if slot.post_fill is not None:
                slot.post_fill(self.view(slot.name, context.padded), batch, context)

    def reset_padding(self, context: FillContext) -> None:
        """Give every row that may be padded the value its policy asks for."""
        zeroed = []
        for slot in self.slots.values():
            if slot.policy is PaddingPolicy.ZERO:
                zeroed.append(self.view(slot.name, context.padded))
            elif slot.policy is PaddingPolicy.FILL_SENTINEL:
                self.view(slot.name, context.padded).fill_(slot.pad_value)
        if zeroed:
            torch._foreach_zero_(zeroed)

    def pairs(self, batch: Batch, context: FillContext) -> list[Pair]:
        """(buffer rows, batch values) of every slot that copies; absent inputs are neutralised."""
        found = []
        for slot in self.slots.values():
            if slot.source is None:
                continue
            values = slot.read(batch)
            if values is None:
                self.neutralize(slot, context)
            elif values.size:
                found.append((self.view(slot.name, context.raw), self.tensor_of(values)))
        return found

    def neutralize(self, slot: GraphSlot, context: FillContext) -> None:
        """An optional input is absent: no row may keep an earlier batch's value."""
        self.view(slot.name, context.padded).fill_(slot.pad_value)

    @staticmethod
    def tensor_of(values: IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values))

    def copy(self, pairs: list[Pair]) -> None:
        """Copy all pairs, those of the same dtypes and devices in one call."""
        for targets, sources in self.grouped(pairs):
            self.copy_group(targets, sources)

    def grouped(self, pairs: list[Pair]) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """Pairs by (dtype written, dtype read): a grouped copy needs one of each."""
        groups: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, source in pairs:
            key = (target.dtype, source.dtype)
            targets, sources = groups.setdefault(key, ([], []))
            targets.append(target)
            sources.append(source)
        return list(groups.values())

    def copy_group(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        foreach_copy = getattr(torch, "_foreach_copy_", None)
        if foreach_copy is not None:
            foreach_copy(targets, sources)
            return
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
