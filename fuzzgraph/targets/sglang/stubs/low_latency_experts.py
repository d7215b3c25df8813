"""Experts of DeepEP's low-latency mode as on a server with CUDA: DeepGEMM's products by models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.kernel_models import grouped_gemm
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module

_DEEPEP = "sglang.srt.layers.moe.token_dispatcher.deepep"
_GEMM = "sglang.srt.layers.deep_gemm_wrapper"
_PRODUCTS = f"{_GEMM}.entrypoint"
_COMPILED = f"{_GEMM}.compile_utils"
_PLACES = "sglang.srt.eplb.expert_location_dispatch"
LOW_LATENCY_MODULES = (_DEEPEP, _GEMM, _PRODUCTS, _COMPILED, _PLACES)
"""What `exchanged_as_on_cuda` needs loaded."""

_MOST_TOKENS = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


@contextlib.contextmanager
def most_dispatched(tokens: int) -> Iterator[None]:
    """Inside, layers are made as on a server whose environment says how many tokens a rank sends at
    most; without it they make room for 128."""
    before = os.environ.get(_MOST_TOKENS)
    os.environ[_MOST_TOKENS] = str(tokens)
    try:
        yield
    finally:
        del os.environ[_MOST_TOKENS]
        if before is not None:
            os.environ[_MOST_TOKENS] = before


@contextlib.contextmanager
def exchanged_as_on_cuda() -> Iterator[None]:
    """Inside, the engine finds DeepEP and DeepGEMM installed, and experts where their numbers say.

    What DeepGEMM compiles ahead of a call is left out.
    """
    if torch.cuda.is_available():
        yield
        return
    products: Any = engine_module(_PRODUCTS)
    products.deep_gemm = grouped_gemm  # which it lacks without a GPU
    names: dict[str, Any] = {
        "use_deepep": True,
        "ENABLE_JIT_DEEPGEMM": True,
        "deep_gemm_execution_hook": lambda *_: contextlib.nullcontext(),
        # Up to 0.5.22 the block wants somebody to know it; without copies it looks no further.
        "get_global_expert_location_metadata": Stub,
    }
    with replaced_names([*map(engine_module, LOW_LATENCY_MODULES)], names):
        yield
