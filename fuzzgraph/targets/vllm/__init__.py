"""Real vLLM, from a released wheel, behind the ports.

Nothing here imports vLLM when it is imported; `release` does so when a target opens.
"""

from __future__ import annotations

from fuzzgraph.targets.entry import TargetEntry

__all__ = ["TARGETS"]

_MIXED = {"mode": "prefill"}
_PIECES, _BOTH = {"graphs": "piecewise"}, {"graphs": "full_and_piecewise"}
_VERIFIES = {"mode": "target_verify"}

TARGETS = (
    TargetEntry("vllm-eagle-draft", "vllm.eagle_target", "EagleDraftTarget"),
    TargetEntry("vllm-eagle-draft-breakable", "vllm.eagle_target", "EagleBreakableDraftTarget"),
    TargetEntry("vllm-fa", "vllm.target", "FlashAttentionTarget"),
    TargetEntry("vllm-fa-breakable", "vllm.piecewise_target", "FlashAttentionBreakableTarget"),
    TargetEntry(
        "vllm-fa-full-piecewise", "vllm.piecewise_target", "FlashAttentionPiecewiseTarget", _BOTH
    ),
    TargetEntry("vllm-fa-mixed", "vllm.target", "FlashAttentionTarget", _MIXED),
    TargetEntry("vllm-fa-mla", "vllm.target", "FlashAttentionMlaTarget"),
    TargetEntry(
        "vllm-fa-piecewise", "vllm.piecewise_target", "FlashAttentionPiecewiseTarget", _PIECES
    ),
    TargetEntry("vllm-fa-verify", "vllm.target", "FlashAttentionTarget", _VERIFIES),
    TargetEntry("vllm-flashinfer", "vllm.target", "FlashInferTarget"),
    TargetEntry("vllm-flashinfer-trtllm", "vllm.target", "TrtllmGenTarget"),
    TargetEntry("vllm-flashmla", "vllm.target", "FlashMlaTarget"),
    TargetEntry("vllm-gdn", "vllm.recurrent_target", "DeltaNetTarget"),
    TargetEntry("vllm-gdn-hybrid", "vllm.beside_target", "DeltaNetHybridTarget"),
    TargetEntry("vllm-gdn-hybrid-fa", "vllm.beside_target", "DeltaNetFlashHybridTarget"),
    TargetEntry(
        "vllm-gdn-hybrid-fa-verify", "vllm.beside_target", "DeltaNetFlashHybridTarget", _VERIFIES
    ),
    TargetEntry("vllm-gdn-hybrid-verify", "vllm.beside_target", "DeltaNetHybridTarget", _VERIFIES),
    TargetEntry("vllm-gdn-verify", "vllm.recurrent_target", "DeltaNetTarget", _VERIFIES),
    TargetEntry("vllm-gdn-verify-join", "vllm.recurrent_target", "JoiningVerifyTarget", _VERIFIES),
    TargetEntry("vllm-gdn-verify-prompt", "vllm.recurrent_target", "PromptVerifyTarget", _VERIFIES),
    TargetEntry("vllm-gdn-verify-wait", "vllm.recurrent_target", "WaitingVerifyTarget", _VERIFIES),
    TargetEntry("vllm-mamba", "vllm.recurrent_target", "Mamba2Target"),
    TargetEntry("vllm-mamba-hybrid", "vllm.beside_target", "Mamba2HybridTarget"),
    TargetEntry("vllm-mamba-hybrid-fa", "vllm.beside_target", "Mamba2FlashHybridTarget"),
    TargetEntry("vllm-mamba-prompt", "vllm.recurrent_target", "PromptTarget"),
    TargetEntry("vllm-mamba1", "vllm.recurrent_target", "Mamba1Target"),
    TargetEntry("vllm-triton", "vllm.target", "TritonTarget"),
    TargetEntry("vllm-triton-breakable", "vllm.piecewise_target", "TritonBreakableTarget"),
    TargetEntry(
        "vllm-triton-full-piecewise", "vllm.piecewise_target", "TritonPiecewiseTarget", _BOTH
    ),
    TargetEntry("vllm-triton-mixed", "vllm.target", "TritonTarget", _MIXED),
    TargetEntry("vllm-triton-mla", "vllm.target", "TritonMlaTarget"),
    TargetEntry("vllm-triton-piecewise", "vllm.piecewise_target", "TritonPiecewiseTarget", _PIECES),
    TargetEntry("vllm-triton-verify", "vllm.target", "TritonTarget", _VERIFIES),
    TargetEntry("vllm-v2-eagle-draft", "vllm.v2_eagle_target", "V2EagleDraftTarget"),
    TargetEntry("vllm-v2-eagle-draft-triton", "vllm.v2_eagle_target", "V2TritonEagleDraftTarget"),
    TargetEntry("vllm-v2-fa", "vllm.v2_target", "V2FlashAttentionTarget"),
    TargetEntry("vllm-v2-fa-breakable", "vllm.piecewise_target", "V2FlashAttentionBreakableTarget"),
    TargetEntry("vllm-v2-fa-mla", "vllm.v2_target", "V2FlashAttentionMlaTarget"),
    TargetEntry("vllm-v2-fa-verify", "vllm.v2_target", "V2FlashAttentionTarget", _VERIFIES),
    TargetEntry("vllm-v2-gdn", "vllm.v2_recurrent", "V2DeltaNetTarget"),
    TargetEntry("vllm-v2-gdn-hybrid", "vllm.v2_recurrent", "V2DeltaNetHybridTarget"),
    TargetEntry(
        "vllm-v2-gdn-hybrid-verify", "vllm.v2_recurrent", "V2DeltaNetHybridTarget", _VERIFIES
    ),
    TargetEntry("vllm-v2-gdn-verify", "vllm.v2_recurrent", "V2DeltaNetTarget", _VERIFIES),
    TargetEntry("vllm-v2-gdn-verify-join", "vllm.v2_recurrent", "V2JoiningVerifyTarget", _VERIFIES),
    TargetEntry("vllm-v2-mamba", "vllm.v2_recurrent", "V2Mamba2Target"),
    TargetEntry("vllm-v2-mamba-hybrid", "vllm.v2_recurrent", "V2Mamba2HybridTarget"),
    TargetEntry("vllm-v2-triton", "vllm.v2_target", "V2TritonTarget"),
    TargetEntry("vllm-v2-triton-breakable", "vllm.piecewise_target", "V2TritonBreakableTarget"),
    TargetEntry("vllm-v2-triton-mla", "vllm.v2_target", "V2TritonMlaTarget"),
    TargetEntry("vllm-v2-triton-verify", "vllm.v2_target", "V2TritonTarget", _VERIFIES),
)
