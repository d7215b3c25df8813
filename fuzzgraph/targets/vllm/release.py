"""The vLLM of this process: one unpacked release, or an installed one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.vllm.stubs.absent_modules import ABSENT, LEFT_OUT, interpreted

FLASHINFER_BYTES = 128 << 10
"""Of FlashInfer's workspace for partial results: guarded memory is compared at every step, and no
model reads it. More than the least that 0.33.0 works out for the widest batch of a case."""

_BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"

VLLM = EnginePackage(
    "vllm",
    absent=ABSENT,
    left_out=LEFT_OUT,
    contents={"numba": interpreted},
    settings="VLLM_",
    environment={
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",  # none of those that are installed
        "VLLM_USE_DEEP_GEMM": "0",  # compiled kernels of quantised layers
        "VLLM_HAS_FLASHINFER_CUBIN": "1",  # else it asks the network for them
        "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": str(FLASHINFER_BYTES),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        _BREAKABLE: "0",
        "TQDM_DISABLE": "1",  # its capture loop draws a bar
        # Without this word vLLM has a placeholder in place of Triton where there is no driver.
        "CUDA_VISIBLE_DEVICES": "",
    },
    example="0.33.0",
    companions="run 'make vllm', or pip install it",
)

engine_module = VLLM.module
has_module = VLLM.has_module
release = VLLM.release


@contextlib.contextmanager
def breakable_graphs() -> Iterator[None]:
    """Meanwhile the engine breaks graphs at attention by itself, without its compiler.

    Releases up to 0.25 ask when their layers are imported, later ones at each capture.
    """
    before = os.environ[_BREAKABLE]
    os.environ[_BREAKABLE] = "1"
    try:
        yield
    finally:
        os.environ[_BREAKABLE] = before
