"""Prompts in graphs."""

from __future__ import annotations

from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.model import EngineConfig


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
