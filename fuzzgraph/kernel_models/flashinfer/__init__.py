"""FlashInfer's wrappers: plan on the host, run on the device, merge of partial results.

A wrapper's plan is written into its integer workspace, and the kernels of a replay follow what lies
there: which rows there are, where their outputs go, how many keys the work items cover. Offsets,
indices, last pages and masks are read from the buffers that the wrapper was made with. Both are
followed as they are; nothing asks whether they agree, unless the kernel's result is undefined where
they do not.

Source: FlashInfer 0.6.12 (decode.py, prefill.py, mla/_core.py, cascade.py, scheduler.cuh,
decode.cuh, prefill.cuh, mla.cuh, page.cuh); 0.6.3 and 0.6.18 differ in nothing that is modelled.
Left out are rotary and ALiBi positions, multi-item scoring, NVFP4 caches, sinks, the backends
cuDNN, CUTLASS, CuTe and trtllm-gen (`KernelNotModelled`), and which head dimensions and group sizes
are compiled.
"""

from fuzzgraph.kernel_models.flashinfer.decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
)
from fuzzgraph.kernel_models.flashinfer.merge import merge_states
from fuzzgraph.kernel_models.flashinfer.mla import BatchMLAPagedAttentionWrapper
from fuzzgraph.kernel_models.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from fuzzgraph.kernel_models.flashinfer.ragged import BatchPrefillWithRaggedKVCacheWrapper
from fuzzgraph.kernel_models.merge import merge_state

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchMLAPagedAttentionWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "fast_decode_plan",
    "merge_state",
    "merge_states",
]
