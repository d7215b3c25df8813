"""Which LoRA adapters a server keeps."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import EngineConfig

EXPERT_LORA_OPTIONS = ("experts_shared_outer_loras", "lora_use_virtual_experts")
"""Of a server whose adapters have weights of experts."""
_OF_ADAPTERS = ("lora_eviction", "pinned_loras", "adapted_embeddings", *EXPERT_LORA_OPTIONS)


def check_adapters(config: EngineConfig) -> None:
    """A pool has a policy and pinned adapters; the whole pool is never pinned.

    Source: sglang 0.5.23 lora_manager.py, `validate_new_adapter`: pinned adapters leave one slot of
    `max_loras_per_batch`, which counts requests without an adapter as one; with data-parallel
    attention it refuses adapters that are not pinned. `__init__` refuses data-parallel attention
    whose ranks have others that share their heads.
    """
    for count, needed, names in (
        ("max_loras", "a pool of adapters", _OF_ADAPTERS),
        ("num_experts", "experts", EXPERT_LORA_OPTIONS),
    ):
        for name in () if getattr(config, count) else set_among(config, names):
            refuse(
                f"config.{name}", getattr(config, name), f"is that of {needed}; got {count}=0",
                f"Raise {count}, or drop it.",
            )  # fmt: skip
    if config.pinned_loras > config.max_loras:
        refuse(
            "config.pinned_loras",
            config.pinned_loras,
            f"must be at most max_loras={config.max_loras}",
            "Lower it, or raise max_loras.",
        )
    if config.max_loras and config.dp_size > 1 and config.attn_tp_size > 1:
        refuse(
            "config.attn_tp_size",
            config.attn_tp_size,
            "beside data-parallel ranks has no LoRA adapters: each of these is one rank",
            "Use 1, or max_loras=0.",
        )
    if config.pinned_loras and config.dp_size > 1:
        refuse(
            "config.pinned_loras",
            config.pinned_loras,
            f"says what follows from dp_size={config.dp_size}: all adapters are pinned",
            "Drop it.",
        )
