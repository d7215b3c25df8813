"""A registry whose batch values pass through pinned memory, copied to the device without waiting.

The host goes on while copies run, as servers do that prepare a step while the one before it is on
the device. Pinned memory that is written again before its copy has run would give the step the next
one's values, so there are buffers for as many steps as may be on their way.

Servers that speculate have lengths on the device that their host does not know. It copies them to
pinned memory, waits, and computes from them: `MirroredRegistry`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fuzzgraph.memory import device_work
from fuzzgraph.memory.transfers import pinned
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext, Pair
from fuzzgraph.targets.builtin.slots import decode_registry, prefill_registry
from fuzzgraph.world import Batch


class StagedRegistry(BufferRegistry):
    """Batch values go to one of several sets of pinned buffers in turn, and on to the device.

    A device is at most one step behind the host: two sets are enough.
    """

    sets = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.staged = [self.new_set() for _ in range(self.sets)]
        self.turn = 0

    def new_set(self) -> dict[int, torch.Tensor]:
        """Address of each buffer that a batch fills -> pinned memory for its values."""
        filled = [slot.name for slot in self.slots.values() if slot.source is not None]
        buffers = [self.buffers[name] for name in filled]
        return {buffer.data_ptr(): pinned_like(buffer) for buffer in buffers}

    def copy(self, pairs: list[Pair]) -> None:
        """Copy all pairs, one after the other, by way of pinned memory."""
        self.turn = (self.turn + 1) % self.sets
        for target, values in pairs:
            staged = self.staging_of(target).view(-1)[: target.numel()].view(target.shape)
            target.copy_(staged.copy_(values), non_blocking=True)

    def staging_of(self, target: torch.Tensor) -> torch.Tensor:
        """Pinned memory for the values of a buffer, of its dtype."""
        return self.staged[self.turn][target.data_ptr()]


class MirroredRegistry(StagedRegistry):
    """The positions of a decode are computed on the host, from a mirror of the device's lengths."""

    def fill_from(self, batch: Batch, context: FillContext) -> None:
        """As `BufferRegistry`, then the positions."""
        super().fill_from(batch, context)
        if batch.mode == "decode" and batch.raw_bs:
            self.write_positions(context)

    def write_positions(self, context: FillContext) -> None:
        """A row's new token is its last; a row without tokens has position 0."""
        mirror = self.view("seq_lens", context.raw).to("cpu", non_blocking=True)
        self.wait_for_mirror()
        positions = self.view("positions", context.raw)
        staged = self.staging_of(self.buffers["positions"])[: len(positions)]
        positions.copy_(staged.copy_((mirror - 1).clamp_(min=0)), non_blocking=True)

    def wait_for_mirror(self) -> None:
        """Wait for the copy to the host."""
        if self.buffers["seq_lens"].is_cuda:
            torch.cuda.current_stream().synchronize()
        else:
            device_work.wait()


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory of the host for what a tensor of the device holds; zeros."""
    shape, dtype = tensor.shape, tensor.dtype
    if tensor.is_cuda:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)
    return pinned(torch.zeros(shape, dtype=dtype, device="cpu"))


def staged_by(registry: type[StagedRegistry]) -> Components:
    """The engine with this registry in all its runners."""
    return replace(
        Components(),
        decode_registry=partial(decode_registry, registry=registry),
        prefill_registry=partial(prefill_registry, registry=registry),
    )
