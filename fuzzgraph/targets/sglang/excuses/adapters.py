"""Of layers with LoRA adapters, on the decode runner."""

from __future__ import annotations

from fuzzgraph.handover import Excuse
from fuzzgraph.targets.sglang.adapter_segments import BY_SLOT, SLOTS

OF_EXPERTS: tuple[Excuse, ...] = (
    Excuse(
        "*.topk_ids",
        "live",
        "sglang virtual_experts.py _fused_virtual_topk_ids: expert + slot * experts",
        "experts of all slots, one slot behind another; " + BY_SLOT,
        only_with="lora_use_virtual_experts",
    ),
    *(
        Excuse(
            f"moe_lora_align_block_size.{name}",
            "live",
            SLOTS,
            "of slots; " + BY_SLOT,
        )
        for name in ("req_to_lora", "adapter_enabled")
    ),
)
OF_RANKS: tuple[Excuse, ...] = (
    Excuse(
        "*.forward_batch.can_run_decode_cuda_graph",
        "fits",
        "sglang scheduler_components/dp_attn.py: all ranks agree whether they take a graph",
        "the eager run is what a step without that agreement computes",
        only_with="dp_size",
    ),
)
