"""What a capture on a device forbids, made an error where there is no device.

Two watches: operator tags (a value or a shape that depends on data) and the Python functions that
read a tensor on the host or copy pageable host memory, which bypass dispatch.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.errors import CaptureError
from fuzzgraph.memory.operations import Facts
from fuzzgraph.memory.sources import innermost_source

__all__ = ["HostReads", "refuse_forbidden"]

_WAY_OUT = "Do it in prepare_replay, before the graph, and pass the result in a static buffer."

_READS = (
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__",
    "__array__", "__complex__", "__contains__", "__iter__",
)  # fmt: skip
_HOST_READS = {
    getattr(torch.Tensor, name): name
    for name in _READS
    if name not in ("__iter__",) and hasattr(torch.Tensor, name)
}
_HOST_COPIES = {
    torch.tensor: "torch.tensor",
    torch.as_tensor: "torch.as_tensor",
    torch.from_numpy: "torch.from_numpy",
    torch.asarray: "torch.asarray",
}


def _refuse(what: str, key: str) -> NoReturn:
    raise CaptureError(
        f"{what} while graph {key!r} was captured, at {innermost_source() or 'unknown line'}. "
        f"A device graph forbids it. {_WAY_OUT}"
    )


class HostReads(TorchFunctionMode):
    """Active during a capture only: refuses reads back to the host and pageable host copies."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _HOST_READS.get(func)
        if name is not None:
            _refuse(f"Tensor.{name}() read {_described(args[0])} on the host", self._key)
        if func in _HOST_COPIES and not (args and isinstance(args[0], torch.Tensor)):
            _refuse(f"{_HOST_COPIES[func]} copied pageable host memory", self._key)
        if func is torch.Tensor.to and _names_cpu(args[1:], kwargs):
            _refuse(f"Tensor.to('cpu') read {_described(args[0])} on the host", self._key)
        return func(*args, **kwargs)


def _names_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a `.to` names the plain host, which on a CPU engine can only mean a host mirror."""
    named = [*args[:1], kwargs.get("device")]
    return any(isinstance(device, str) and device == "cpu" for device in named)


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def refuse_forbidden(
    facts: Facts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: str
) -> None:
    """Raise if a device graph could not hold this operation.

    Raises:
        CaptureError: a value or a shape depends on data; names operation, graph and line.
    """
    base = facts.name.partition(".")[2]
    if base == "index_put_" or base == "index_put":
        forbidden = "shape" if _mask_needs_shape(args) else ""
    elif base == "index":
        forbidden = "shape" if _has_mask(args[1]) else ""
    elif base == "repeat_interleave":
        forbidden = "" if kwargs.get("output_size") is not None else facts.forbidden
    else:
        forbidden = facts.forbidden
    if forbidden == "value":
        _refuse(f"{func} read a value back to the host", key)
    if forbidden == "shape":
        _refuse(f"{func} has a result whose shape depends on data", key)
    if facts.is_lift:
        _refuse("A Python value became a tensor, a pageable host copy,", key)


def _has_mask(indices: Any) -> bool:
    return any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in indices
    )


def _mask_needs_shape(args: tuple[Any, ...]) -> bool:
    """A masked write counts its elements, except that of one value, which is a masked fill."""
    return _has_mask(args[1]) and args[2].numel() != 1
