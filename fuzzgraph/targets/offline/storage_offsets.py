"""Offsets into storages, for code that takes each allocation for a storage of its own.

Guarded memory is one storage. `torch.as_strided` counts its offset from the start of the storage,
so what an engine means as the start of a buffer that it allocated would be another buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.relays import relay

__all__ = ["OffsetsFromAllocation"]

_AS_STRIDED = (torch.as_strided, torch.Tensor.as_strided)


class OffsetsFromAllocation(TorchFunctionMode):
    """Inside, offsets that `as_strided` is given may count from the start of an allocation, which
    has to be that of the tensor.

    One that lies before the tensor counts so: the engine did not ask the tensor where it begins.
    """

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _AS_STRIDED:
            start = args[0].storage_offset()
            if len(args) > 3:
                args = (*args[:3], _in_storage(args[3], start))
            elif kwargs.get("storage_offset") is not None:
                kwargs["storage_offset"] = _in_storage(kwargs["storage_offset"], start)
        return func(*args, **kwargs)


def _in_storage(offset: int, start: int) -> int:
    return offset + start if offset < start else offset
