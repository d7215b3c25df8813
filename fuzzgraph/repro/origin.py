"""The operations that a tensor's content depends on, out of all that an engine ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuzzgraph.graphs import RecordedGraph, RecordedOp
from fuzzgraph.memory.operator_facts import facts_of, tensors_in
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Event

_MOST = 200
"""Operations that are still printed."""
_ALL_MEMORY = 1 << 20
"""Bytes from which on a view is one of all memory; what is written through it lies in pools."""


def leading_to(events: Sequence[Event], value: torch.Tensor) -> list[Event]:
    """The operations that a tensor's content depends on, in order.

    Raises:
        NotStandalone: none wrote it, or they are too many to read.
    """
    wanted: list[torch.Tensor] = [value]
    found: list[Event] = []
    for event in reversed(events):
        if isinstance(event, RecordedGraph):
            continue  # a replay while opening: warm-up of a graph that is already captured
        written = written_by(event)
        if not any(overlap(one, two) for one in written for two in wanted):
            continue
        found.append(event)
        if _overwrites(event):
            wanted = [one for one in wanted if not any(_covers(two, one) for two in written)]
        wanted += [tensor for tensor in _read(event) if tensor.numel()]
    if not found or len(found) > _MOST:
        raise NotStandalone(f"the value at capture depends on {len(found)} operations")
    return found[::-1]


def written_by(op: RecordedOp) -> list[torch.Tensor]:
    """What an operation writes as its schema says; of a launch all that it was passed."""
    if op.kind != "operation":
        return tensors_in([*op.args, *op.kwargs.values()])
    facts = facts_of(op.func)
    if not facts.writes:
        return list(op.outputs)
    values: list[Any] = [op.kwargs[w] if isinstance(w, str) else op.args[w] for w in facts.writes]
    return tensors_in([*values, *(item for v in values if isinstance(v, list) for item in v)])


def _read(op: RecordedOp) -> list[torch.Tensor]:
    """Tensors that an operation reads; of a view or a fill none but its own base."""
    every = tensors_in([*op.args, *op.kwargs.values()])
    if _overwrites(op):
        written = set(map(id, written_by(op)))
        return [tensor for tensor in every if id(tensor) not in written]
    return every


def _overwrites(op: RecordedOp) -> bool:
    """Whether what it writes no longer depends on what was there."""
    if op.kind != "operation":
        return False
    facts = facts_of(op.func)
    base = op.func.overloadpacket.__name__
    if not facts.writes:
        return True
    return bool(facts.outs) or base in (
        "fill_",
        "zero_",
        "copy_",
        "_foreach_copy_",
        "_foreach_zero_",
    )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors share bytes, gaps of strides included; no view of all memory does."""
    return not is_of_all_memory(one) and not is_of_all_memory(two) and touches(one, two)


def touches(one: torch.Tensor, two: torch.Tensor) -> bool:
    """The same for views of all memory as well."""
    if not one.numel() or not two.numel():
        return False
    (start, end), (first, last) = _span(one), _span(two)
    return start < last and first < end


def is_of_all_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor spans so much that what is written through it lies in pools."""
    start, end = _span(tensor) if tensor.numel() else (0, 0)
    return end - start > _ALL_MEMORY


def _covers(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether a write to all of `one` leaves nothing of `two`."""
    (start, end), (first, last) = _span(one), _span(two)
    return one.is_contiguous() and start <= first and last <= end
