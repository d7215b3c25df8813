"""KV goes to its slots by the kernels that a GPU has for it, here their models.

Without this the engine's pools would write by torch, on a path that no server with a GPU takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fuzzgraph.kernel_models.fp8_kv_store import store_fp8_kv
from fuzzgraph.kernel_models.kv_store import check_rows, store_kv
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, compile_to_models

_POOLS = "sglang.srt.mem_cache.memory_pool"
_STORES = ("sglang.kernels.ops.kvcache.kvcache", "sglang.jit_kernel.kvcache")
_FP8_STORES = (
    "sglang.kernels.ops.kvcache.fused_fp8_qkv_kv_cache",
    "sglang.jit_kernel.fused_fp8_qkv_kv_cache",
)
"""From 0.5.16 on; before, a kernel of Triton does it."""
_WARP = 32


def store_kv_as_on(vendor: Literal["cuda", "hip"]) -> None:
    """Have the KV pools of this process write as on a GPU of this vendor."""
    pools: Any = engine_module(_POOLS)
    pools._is_cuda, pools._is_hip = vendor == "cuda", vendor == "hip"
    store: Any = next(engine_module(name) for name in _STORES if has_module(name))
    compile_to_models(store, {"StoreKVCacheKernel::run": _store})


def store_fp8_kv_by_model() -> None:
    """Have backends that quantise KV by a kernel of their own call its model."""
    for name in filter(has_module, _FP8_STORES):
        compile_to_models(engine_module(name), {"FusedFp8QkvKvCache::run": _store_fp8})


def _store_fp8(compiled: Compiled) -> Callable[..., Any]:
    dtype = compiled.dtype("T")

    def run(*args: Any) -> None:
        store_fp8_kv(**compiled.by_name(args), dtype=dtype)

    return run


def _store(compiled: Compiled) -> Callable[..., Any]:
    """The model of `StoreKVCacheKernel`, whose values are as wide as its keys up to 0.5.16."""
    k_bytes = compiled.number("kKBytes", "kKElementBytes", "kElementBytes")
    v_bytes = compiled.number("kVBytes", "kVElementBytes", "kElementBytes")
    # From 0.5.21 on the number of warps is built in; before, a call says it.
    threads = compiled.number("kNumThreads") if "kNumThreads" in compiled.template else None
    built = None if threads is None else threads // _WARP
    check_rows(k_bytes, v_bytes, built)

    def run(*args: Any) -> None:
        given = compiled.by_name(args)
        splits = given.pop("num_split", built)
        store_kv(**given, k_bytes=k_bytes, v_bytes=v_bytes, splits=splits)

    return run
