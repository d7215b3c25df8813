"""Lets code that asks for memory on `cuda` have memory of the CPU, where there is no GPU.

It is active only while a target's engine runs, and only if the target asks for it. Nothing else of
a GPU is imitated here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.memory.side_requests import SESSION_CPU, is_cuda
from fuzzgraph.relays import relay

__all__ = ["ClaimsCuda", "CudaMeansCpu"]


class CudaMeansCpu(TorchFunctionMode):
    """Every `cuda` in a call of torch means the CPU, and pinned memory is ordinary memory."""

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Called for every operation, attributes of tensors among them, hundreds of times a step.
        for arg in args:
            if type(arg) in _NAMES:
                args = tuple(SESSION_CPU if is_cuda(arg) else arg for arg in args)
                break
        return func(*args, **_without_cuda(kwargs)) if kwargs else func(*args)


class ClaimsCuda(TorchFunctionMode):
    """Tensors say that they lie on a GPU, for code that asserts it and needs none."""

    @relay
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func == _IS_CUDA:
            return True
        return func(*args, **(kwargs or {}))


_NAMES = (str, torch.device)
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


def _without_cuda(kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = dict(kwargs)
    if is_cuda(kwargs.get("device")):
        kwargs["device"] = SESSION_CPU
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
        kwargs["device"] = "cpu"  # the word by which `transfers` knows the host
    return kwargs
