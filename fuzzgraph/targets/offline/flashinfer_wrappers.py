"""In place of FlashInfer's wrappers: they keep what `plan` gets and run nothing.

As in FlashInfer (`decode.py`, `prefill.py`, `mla.py`), a wrapper for graphs copies what it is
given into the buffers that it was made with, whose batch size is fixed and whose indices must fit;
its fast plans leave that to the caller. What a plan is made of stays in the wrapper, because the
kernels of a replay follow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fuzzgraph.errors import EngineError

__all__ = ["install_wrappers"]


class _Wrapper:
    """A wrapper; `order` names the first arguments of its `plan`."""

    order: tuple[str, ...] = ()

    # What the engine looks up.
    _backend = "fa2"
    _max_total_num_rows: int | None = None
    _custom_mask_buf: torch.Tensor | None = None
    _float_workspace_buffer = _int_workspace_buffer = _pin_memory_int_workspace_buffer = None

    def __init__(self, *_: Any, use_cuda_graph: bool = False, **given: Any) -> None:
        self.is_cuda_graph_enabled = use_cuda_graph
        self.planned: dict[str, list[int]] = {}
        """What the plan is made of: offsets of queries and of KV."""
        self._cached_module = _Planner(self)
        for name, buffer in given.items():
            if isinstance(buffer, torch.Tensor):
                setattr(self, _slot(name.removesuffix("fer").removesuffix("_buf")), buffer)

    def buffer(self, name: str) -> torch.Tensor:
        found: torch.Tensor = getattr(self, _slot(name))
        return found

    def plan(self, *args: Any, **_: Any) -> None:
        given = dict(zip(self.order, args, strict=False))
        for name, tensor in given.items():
            self._take(name, tensor)
        self.remember({name: tensor for name, tensor in given.items() if "indptr" in name})

    begin_forward = plan

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        if not self.is_cuda_graph_enabled:
            setattr(self, _slot(name), tensor)
            return
        self.check(name, tensor)
        self.buffer(name)[: len(tensor)].copy_(tensor)

    def check(self, name: str, tensor: torch.Tensor) -> None:
        """As FlashInfer refuses what does not fit.

        Raises:
            DoesNotFit: another batch size than the wrapper's, or more indices than it has room for.
        """
        room = len(self.buffer(name))
        if len(tensor) > room or (len(tensor) != room and not name.endswith("_indices")):
            raise DoesNotFit(f"{name} of {len(tensor)} where the graph's buffer has {room}")

    def remember(self, offsets: dict[str, torch.Tensor]) -> None:
        """Keeps what the plan is made of, as numbers: a plan is read on the host."""
        self.planned = {
            name.removeprefix("paged_"): tensor.tolist() for name, tensor in offsets.items()
        }


class DoesNotFit(EngineError, ValueError):
    """FlashInfer's own refusal, which is a ValueError there."""


class _Decode(_Wrapper):
    order = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")


class _Prefill(_Wrapper):
    order = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")


class _Mla(_Wrapper):
    order = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")


class _Ragged(_Wrapper):
    """Reads no cache."""


class _Planner:
    """In place of the compiled module, which the engine's own fast plans call."""

    def __init__(self, wrapper: _Wrapper) -> None:
        self._wrapper = wrapper

    def plan(self, *args: Any) -> None:
        qo_indptr, kv_indptr = args[3:5]  # after three workspaces
        self._wrapper.remember({"qo_indptr": qo_indptr, "kv_indptr": kv_indptr})


def _slot(name: str) -> str:
    return f"_{name}_buf"


def _fast_decode_plan(
    wrapper: _Wrapper,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    *_: Any,
    global_override_indptr_cpu: torch.Tensor | None = None,
    **__: Any,
) -> None:
    """As FlashInfer's: it checks sizes, copies nothing and plans by the host's offsets."""
    given: Sequence[torch.Tensor] = (indptr, indices, last_page_len)
    for name, tensor in zip(wrapper.order, given, strict=True):
        wrapper.check(name, tensor)
    host = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
    wrapper.remember({"kv_indptr": host})


_NAMES = {
    "BatchDecodeWithPagedKVCacheWrapper": _Decode,
    "BatchPrefillWithPagedKVCacheWrapper": _Prefill,
    "BatchPrefillWithRaggedKVCacheWrapper": _Ragged,
    "BatchMLAPagedAttentionWrapper": _Mla,
    "fast_decode_plan": _fast_decode_plan,
}


def install_wrappers(modules: Iterable[Any]) -> None:
    """Where FlashInfer is not installed, these modules of the engine find the wrappers under its
    names."""
    for module in modules:
        for name, wrapper in _NAMES.items():
            if not hasattr(module, name):
                setattr(module, name, wrapper)
