"""Finds memory that the captured graphs of a session read and that no field declares."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fuzzgraph.execution.session import OpenSession
from fuzzgraph.graphs import RecordedGraph, RecordedOp
from fuzzgraph.memory.arena import storage_key
from fuzzgraph.memory.operator_facts import tensors_in
from fuzzgraph.ports import Pools
from fuzzgraph.target_report import HiddenTensor

# In-place operations that do not read what they write.
_ONLY_WRITES = ("aten.copy_", "aten.fill_", "aten.zero_")


def hidden_tensors(opened: OpenSession) -> list[HiddenTensor]:
    """Allocations that captured work reads, without declared fields and pools, each once."""
    declared = [tensor for _, tensor in opened.static_buffers()]
    known = {_key(opened, tensor) for tensor in (*declared, *_pool_tensors(opened.session.pools))}
    found = {_key(opened, tensor): tensor for tensor in _read(opened)}
    return [_described(opened, tensor) for key, tensor in found.items() if key not in known]


def untouched_pools(opened: OpenSession) -> list[str]:
    """KV planes that no captured operation or launch takes as an argument."""
    arguments = [tensor for op in _operations(opened) for tensor in _arguments(op)]
    # An argument that spans many allocations may reach any of them, planes included.
    if any(_spans(opened, tensor) for tensor in arguments):
        return []
    touched = {_key(opened, tensor) for tensor in arguments}
    return [
        name
        for name, plane in opened.pool_writer.plane_names()
        if _key(opened, plane) not in touched
    ]


def _operations(opened: OpenSession) -> Iterator[RecordedOp]:
    for graph in opened.graphs.graphs:
        if isinstance(graph, RecordedGraph):
            yield from (op for op in graph.trace if op.replayed)


def _arguments(op: RecordedOp) -> list[torch.Tensor]:
    return tensors_in([*op.args, *op.kwargs.values()])


def _read(opened: OpenSession) -> Iterator[torch.Tensor]:
    """Tensors in persistent memory that captured work reads: not what graphs make themselves."""
    for op in _operations(opened):
        first = 1 if op.name.startswith(_ONLY_WRITES) else 0
        # The first argument of these, and every `out`, is written and not read.
        kept = [value for name, value in op.kwargs.items() if name != "out"]
        for tensor in tensors_in([*op.args[first:], *kept]):
            region = opened.memory.region_of(tensor)
            if _spans(opened, tensor):
                continue
            # A scalar without dimensions is a constant of the graph, not a buffer.
            if tensor.dim() and tensor.numel() and (region is None or region.segment == "engine"):
                yield tensor


def _spans(opened: OpenSession, tensor: torch.Tensor) -> bool:
    """Whether it lies in guarded memory but not within a single allocation."""
    inside = storage_key(tensor) == opened.memory.arena.storage_key
    return inside and opened.memory.region_of(tensor) is None


def _key(opened: OpenSession, tensor: torch.Tensor) -> int:
    """Identity of the allocation: its region, or its storage where it is not guarded."""
    region = opened.memory.region_of(tensor)
    return tensor.untyped_storage().data_ptr() if region is None else id(region)


def _pool_tensors(pools: Pools) -> list[torch.Tensor]:
    tables = (
        pools.encoder_to_token,
        *pools.states,
        *(each.req_to_token for each in pools.groups),
    )
    return [*pools.all_planes, *(table for table in tables if table is not None)]


def _described(opened: OpenSession, tensor: torch.Tensor) -> HiddenTensor:
    region = opened.memory.region_of(tensor)
    then = None if region is None else opened.at_capture(tensor)
    return HiddenTensor(
        name=region.name if region else "",
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=region.shape if region else tuple(tensor.shape),
        allocated_at=region.allocated_at if region else "",
        changes=then is not None and not _same_bytes(tensor, then),
    )


def _same_bytes(one: torch.Tensor, two: torch.Tensor) -> bool:
    pair = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, two)]
    return torch.equal(*pair)
