"""Refuses on a CPU what a capture on a device forbids.

Two checks: operator tags (a value or a shape that depends on data), and the Python functions that
read a tensor on the host or copy pageable host memory, which dispatch does not show.

On a CPU, reading a host mirror inside a capture is refused although a device allows it, unless what
is captured is said to prepare a step (`GraphEngine.segment`); and `.to(torch.device("cpu"))` passes
because it may name the engine's own device. Addresses (`data_ptr`) and writes through NumPy views
taken earlier are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.errors import CaptureError
from fuzzgraph.memory.operator_facts import Facts
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.memory.transfers import tensor_cpu, tensor_numpy

_WAY_OUT = "Do it in prepare_replay, before the graph, and pass the result in a static buffer."

_READS = (
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__",
    "__array__", "__complex__", "__contains__",
)  # fmt: skip
HOST_READS = {getattr(torch.Tensor, name): name for name in _READS}
HOST_READS |= {tensor_cpu: "cpu", tensor_numpy: "numpy"}
"""Functions that read a tensor on the host -> their names."""
_HOST_COPIES = {
    torch.tensor: "torch.tensor",
    torch.as_tensor: "torch.as_tensor",
    torch.asarray: "torch.asarray",
    torch.Tensor.new_tensor: "Tensor.new_tensor",
}

_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_WATCHED = frozenset((*HOST_READS, *_HOST_COPIES, _SET_DATA))


def _refuse(what: str, key: str) -> NoReturn:
    raise CaptureError(
        f"{what} while graph {key!r} was captured, at {innermost_source() or 'unknown line'}. "
        f"A device graph forbids it. {_WAY_OUT}"
    )


class HostReads(TorchFunctionMode):
    """During a capture, refuses reads back to the host and copies of pageable host memory.

    Args:
        key: the graph that is captured.
        rebound: called after a tensor's `.data` was replaced, which dispatch does not show.
        side_of: tells which tensors are the host's own, which may be read; None where none is.
    """

    def __init__(
        self,
        key: str,
        rebound: Callable[[], None],
        side_of: Callable[[torch.Tensor], str] | None = None,
    ) -> None:
        super().__init__()
        self._key = key
        self._side_of = side_of
        self._rebound = rebound

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Called for every torch function of a capture; nearly all of them leave here.
        if func not in _WATCHED:
            return func(*args, **kwargs) if kwargs else func(*args)
        self._check(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if func == _SET_DATA:
            self._rebound()
        return result

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        name = HOST_READS.get(func)
        if name is not None and not self._is_on_host(args[0]):
            _refuse(f"Tensor.{name}() read {_described(args[0])} on the host", self._key)
        copy = _HOST_COPIES.get(func)
        if copy is not None and not _stays_where_it_is(func, args, kwargs):
            _refuse(f"{copy} copied pageable host memory", self._key)

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        return self._side_of is not None and self._side_of(tensor) == "host"


def _stays_where_it_is(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a new tensor is a copy on the device, made from another one, or a number on the host,
    which operators on the device take as an argument."""
    if args and isinstance(args[-1], torch.Tensor):
        return True
    number = bool(args) and isinstance(args[0], (bool, int, float))
    return func != torch.Tensor.new_tensor and number and kwargs.get("device") is None


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def refuse_forbidden(
    facts: Facts, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: str
) -> None:
    """Raise if a device graph could not hold this operation.

    Raises:
        CaptureError: a value or a shape depends on data; names operation, graph and line.
    """
    forbidden = depends_on_data(facts, args, kwargs)
    if forbidden == "value":
        _refuse(f"{func} read a value back to the host", key)
    if forbidden == "shape":
        _refuse(f"{func} has a result whose shape depends on data", key)
    # A lifted scalar is usually written somewhere next, which a device captures as a fill.
    if facts.is_lift and args[0].dim():
        _refuse("A Python value became a tensor, a pageable host copy,", key)


def depends_on_data(facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What of an operation's result depends on data: 'value', 'shape' or ''."""
    if not facts.index:
        return facts.forbidden
    if facts.index == "write":
        return "shape" if _mask_needs_shape(args) else ""
    if facts.index == "read":
        return "shape" if _has_mask(args[1]) else ""
    # `repeat_interleave` reads its counts back unless it is told their sum.
    return "" if kwargs.get("output_size") is not None else facts.forbidden


def _has_mask(indices: Any) -> bool:
    return any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in indices
    )


def _mask_needs_shape(args: tuple[Any, ...]) -> bool:
    """Whether a masked write has to count its elements; of one value it is a masked fill."""
    return _has_mask(args[1]) and args[2].numel() != 1
