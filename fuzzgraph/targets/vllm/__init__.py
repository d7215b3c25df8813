"""Real vLLM, from a released wheel, behind the ports.

Nothing here imports vLLM when it is imported; `release` does so when a target opens.
"""

from __future__ import annotations

from fuzzgraph.targets.entry import TargetEntry

__all__ = ["TARGETS"]

TARGETS = (
    TargetEntry("vllm-fa", "vllm.target", "FlashAttentionTarget"),
    TargetEntry("vllm-triton", "vllm.target", "TritonTarget"),
)
