"""The vLLM of this process: one unpacked release, or an installed one."""

from __future__ import annotations

from fuzzgraph.targets.offline.package import EnginePackage
from fuzzgraph.targets.vllm.stubs.absent_modules import ABSENT, LEFT_OUT

VLLM = EnginePackage(
    "vllm",
    absent=ABSENT,
    left_out=LEFT_OUT,
    settings="VLLM_",
    environment={
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",  # none of those that are installed
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
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
