"""KV goes to its slots by the kernel that a GPU has for it, here its model.

Without this the engine's pools would write by torch, on a path that no server with a GPU takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fuzzgraph.kernel_models.kv_store import check_rows, store_kv
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, compile_to_models

_POOLS = "sglang.srt.mem_cache.memory_pool"
_STORES = ("sglang.kernels.ops.kvcache.kvcache", "sglang.jit_kernel.kvcache")
_WARP = 32


def store_kv_as_on(vendor: Literal["cuda", "hip"]) -> None:
    """Have the KV pools of this process write as on a GPU of this vendor."""
    pools: Any = engine_module(_POOLS)
    pools._is_cuda, pools._is_hip = vendor == "cuda", vendor == "hip"
    store: Any = next(engine_module(name) for name in _STORES if has_module(name))
    compile_to_models(store, {"StoreKVCacheKernel::run": _store})


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
