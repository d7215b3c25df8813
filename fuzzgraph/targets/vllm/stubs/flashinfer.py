"""FlashInfer as vLLM's backend calls it, by the models of its wrappers."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.kernel_models import trtllm_gen
from fuzzgraph.kernel_models.flashinfer.planners import STANDS_FOR
from fuzzgraph.kernel_models.fp8_quant import static_scaled_fp8_quant
from fuzzgraph.kernel_models.paged_store import reshape_and_cache_flash
from fuzzgraph.memory.side_requests import own_device
from fuzzgraph.targets.offline.flashinfer_wrappers import MODELS
from fuzzgraph.targets.offline.import_stubs import Fill, allow_absent
from fuzzgraph.targets.offline.kernel_arguments import strict
from fuzzgraph.targets.vllm.release import FLASHINFER_BYTES, engine_module

_BACKEND = "vllm.v1.attention.backends.flashinfer"
_ABSENT: Mapping[str, str] = {"flashinfer": "wrappers around compiled kernels; models are there"}
_SERVERS_BYTES = 394 << 20
"""vLLM envs.py VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE, all releases."""
_MULTIPROCESSORS = 132
_decode = strict(trtllm_gen.trtllm_batch_decode_with_kv_cache)


def allow_flashinfer() -> None:
    """Let the backend be imported where FlashInfer is not installed; before its import."""
    allow_absent(_ABSENT, _CONTENTS)


def put_flashinfer() -> None:
    """Have the backend call the models; once per process, before a session opens."""
    STANDS_FOR[FLASHINFER_BYTES] = _SERVERS_BYTES
    backend = engine_module(_BACKEND)
    for name, model in MODELS.items():
        if hasattr(backend, name):
            stand_in: Any = strict(model)
            put = _on_device(stand_in) if inspect.isclass(model) else stand_in
            setattr(backend, name, put)
    backend.trtllm_batch_decode_with_kv_cache = trtllm_batch_decode_with_kv_cache
    # The backend calls operators itself. A function in its place is recorded as a launch is.
    vars(torch.ops._C_cache_ops)["reshape_and_cache_flash"] = strict(reshape_and_cache_flash)
    vars(torch.ops._C)["static_scaled_fp8_quant"] = strict(static_scaled_fp8_quant)


def _on_device(wrapper: Any) -> Any:
    """A wrapper that copies what a plan gets from the host to the session's device. On a CPU the
    device that a tensor says is any CPU; by the session's own, device and host are told apart."""

    def opened(self: Any, *args: Any, **kwargs: Any) -> None:
        wrapper.__init__(self, *args, **kwargs)
        self.device = own_device(self.device)

    return type(wrapper.__name__, (wrapper,), {"__init__": opened})


def trtllm_batch_decode_with_kv_cache(
    *, kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor], **given: Any
) -> torch.Tensor:
    """The model, which takes keys and values apart.

    Source: FlashInfer 0.6.18, decode.py: keys and values of one tensor are its halves.
    """
    pair = kv_cache if isinstance(kv_cache, tuple) else tuple(kv_cache.unbind(1))
    attended: torch.Tensor = _decode(kv_cache=pair, **given)
    return attended


def _get_seq_lens(
    indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int
) -> torch.Tensor:
    """Keys of each row, of which all pages but the last are full.

    Source: FlashInfer 0.6.18, page.py get_seq_lens.
    """
    full = (indptr[1:] - indptr[:-1] - 1).clamp(min=0)
    return full * page_size + last_page_len


def _fill(module: types.ModuleType) -> None:
    module.__dict__["get_seq_lens"] = _get_seq_lens


def _fill_utils(module: types.ModuleType) -> None:
    module.__dict__["get_device_sm_count"] = lambda *_: _MULTIPROCESSORS
    module.__dict__["get_trtllm_gen_multi_ctas_kv_counter_bytes"] = _counter_bytes
    # Offsets that FlashInfer keeps on the host, for vLLM to pin; it asks whether they are there.
    module.__dict__["_get_range_buf"] = None


def _counter_bytes(rows: int, heads: int, multiprocessors: int) -> int:
    """Of an int32 for each head of each row, rounded up to eight of them.

    Source: FlashInfer 0.7.2, utils.py get_trtllm_gen_multi_ctas_kv_counter_bytes.
    """
    return 32 * -(-max(rows * heads, multiprocessors) // 8)


_CONTENTS: Mapping[str, Fill] = {"flashinfer": _fill, "flashinfer.utils": _fill_utils}
