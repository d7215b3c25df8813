"""Experts of DeepEP's low-latency mode as on a server with CUDA: DeepGEMM's products by models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from fuzzgraph.kernel_models import grouped_gemm
from fuzzgraph.targets.sglang.release import engine_module

DEEPEP = "sglang.srt.layers.moe.token_dispatcher.deepep"
_GEMM = "sglang.srt.layers.deep_gemm_wrapper"
_PRODUCTS = f"{_GEMM}.entrypoint"
_COMPILED = f"{_GEMM}.compile_utils"
LOW_LATENCY_MODULES = (DEEPEP, _GEMM, _PRODUCTS, _COMPILED)
"""What `exchange_as_on_cuda` needs loaded."""

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


def exchange_as_on_cuda() -> None:
    """Have the modules of this process find DeepEP and DeepGEMM installed, for the process's life;
    DeepGEMM's are compiled ahead of a call, which is left out."""
    engine_module(DEEPEP).use_deepep = True
    products: Any = engine_module(_PRODUCTS)
    for module in (engine_module(_GEMM), products):
        module.ENABLE_JIT_DEEPGEMM = True
    products.deep_gemm = grouped_gemm
    engine_module(_COMPILED).deep_gemm_execution_hook = lambda *_: contextlib.nullcontext()
