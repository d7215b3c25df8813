"""Prompts in graphs."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import also, set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import BOUNDS_OF_KEYS, EngineConfig
from fuzzgraph.case.prefix_parts import expands_past


def check_prefill(config: EngineConfig) -> None:
    """Full graphs alone have an axis of requests; images are in prompts."""
    if config.image_len and (config.modes != ("prefill",) or config.swa_window):
        refuse(
            "config.image_len",
            config.image_len,
            "is of prompts, for a model with layers of one kind; got modes "
            f"{list(config.modes)} and swa_window={config.swa_window}",
            "Use modes=['prefill'] without a window.",
        )
    slots, full = config.prefill_slots, config.prefill_runner == "full"
    if slots > 1 and not full:
        refuse(
            "config.prefill_slots",
            slots,
            f"are those of full graphs; got prefill_runner={config.prefill_runner!r}",
            "Use prefill_runner='full', or 1 slot.",
        )
    if slots > config.req_pool_size:
        refuse(
            "config.prefill_slots",
            slots,
            f"must be at most req_pool_size={config.req_pool_size}",
            "Lower it, or raise req_pool_size.",
        )


NOT_OF_ENCODERS = (
    "image_len", "max_loras", "recurrent_state", "num_experts", "dp_size",
    *(bound for bound in BOUNDS_OF_KEYS if bound != "attention_chunk_size"),
)  # fmt: skip
"""What no encoder of images has beside it. Its layers may attend in windows of an image, which are
chunks of its patches."""


def check_image_encoder(config: EngineConfig) -> None:
    """Images are of one kind of layer, which keeps nothing of them."""
    others = set_among(config, NOT_OF_ENCODERS)
    alone = config.modes == ("prefill",) and config.attention == "mha" and not others
    if config.image_encoder and not alone:
        refuse(
            "config.image_encoder",
            True,
            "needs modes=['prefill'] and layers that see images or their windows alone; got "
            f"{list(config.modes)}, attention={config.attention!r}" + also(config, others),
            "Change them, or drop it.",
        )


def check_prefix_chunks(config: EngineConfig) -> None:
    """What is cached is expanded in full graphs of latent attention, in chunks with a token of each
    request at least (sglang forward_batch_deepseek_mha_mixin.py divides them)."""
    names = ("chunked_prefix_cache_threshold", "max_kv_chunk_capacity")
    changed = set_among(config, names)
    if changed and not expands_past(config):
        refuse(
            f"config.{changed[0]}",
            getattr(config, changed[0]),
            "is of prompts of latent attention in full graphs; got modes "
            f"{list(config.modes)}, attention={config.attention!r} and "
            f"prefill_runner={config.prefill_runner!r}",
            "Drop it, or use modes=['prefill'], attention='mla' and prefill_runner='full'.",
        )
    if config.max_kv_chunk_capacity < config.req_pool_size:
        refuse(
            "config.max_kv_chunk_capacity",
            config.max_kv_chunk_capacity,
            f"must be at least req_pool_size={config.req_pool_size}",
            "Raise it, or lower req_pool_size.",
        )
