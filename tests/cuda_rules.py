"""What CUDA refuses of operations on tensors of both memories, and where their results are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzgraph.memory.side_requests import Side

_COPIES = frozenset(
    ("aten::copy_", "aten::_to_copy", "aten::copy", "aten::_foreach_copy_", "aten::lift_fresh")
)
_INDEXED = frozenset(("aten::index", "aten::_unsafe_index"))
_PUT = frozenset(("aten::index_put_", "aten::index_put", "aten::_index_put_impl_"))
_WITHOUT_SCALARS = frozenset(
    f"aten::{name}"
    for name in (
        *("index_select", "gather", "take", "embedding", "masked_select", "searchsorted"),
        *("scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_"),
        *("index_copy", "index_copy_", "index_fill", "index_fill_", "cat", "equal", "bincount"),
        *("mm", "bmm", "addmm", "matmul"),
    )
)
"""Operations that take no scalar of the host beside tensors of the device."""


def refused(name: str, given: Sequence[torch.Tensor], held: Sequence[Side]) -> bool:
    """Whether CUDA refuses an operation on tensors of both memories."""
    if name in _COPIES:
        return False
    if name in _INDEXED or (name in _PUT and held[0] == "host"):
        return held[0] == "host"  # what is on the host takes no index of the device
    pairs = list(zip(given, held, strict=True))
    if name in _PUT:
        pairs = [pairs[0], pairs[-1]]
    if name in _WITHOUT_SCALARS:
        return True
    host = any(side == "host" and tensor.dim() for tensor, side in pairs)
    return host and any(side == "device" for _, side in pairs)


def side_of_result(
    name: str, named: Side | None, around: Sequence[Side], held: Sequence[Side]
) -> Side:
    """The side of a result that has memory of its own; "" where that is unknown.

    Args:
        name: of the operation.
        named: of the device that the call of torch around it names; None where it names none.
        around: of the tensors that this call is given.
        held: of the operation's own tensors.
    """
    if named is not None and (not held or name in _COPIES or "new_" in name or "_like" in name):
        return named
    if name == "aten::lift_fresh":
        return _common(around) if around else "host"
    return _common(held) if held else _common(around) if around else "host"


def _common(held: Sequence[Side]) -> Side:
    if "device" in held:
        return "device"
    return "host" if all(side == "host" for side in held) else ""
