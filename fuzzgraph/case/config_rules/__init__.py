"""Which configs are valid: bounds, captured sizes, and fields that contradict each other."""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.case.config_rules import (
    adapters,
    drafts,
    experts,
    keys,
    prompts,
    servers,
    sizes,
    states,
)
from fuzzgraph.case.config_rules.adapters import EXPERT_LORA_OPTIONS
from fuzzgraph.case.config_rules.beside import set_among
from fuzzgraph.case.config_rules.drafts import WITHOUT_BUDGET
from fuzzgraph.case.config_rules.keys import (
    FORCED_BLOCKS,
    POOLED_BLOCKS,
    POOLED_WIDTH,
    SCORED,
    WITHOUT_BLOCKS,
    WITHOUT_CAP,
    WITHOUT_LAYER_TYPES,
    WITHOUT_POOLED,
)
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.config_rules.servers import WHOLE_BATCHES, hands_out
from fuzzgraph.case.engine_config import EngineConfig

__all__ = [
    "EXPERT_LORA_OPTIONS",
    "FORCED_BLOCKS",
    "POOLED_BLOCKS",
    "POOLED_WIDTH",
    "SCORED",
    "WHOLE_BATCHES",
    "WITHOUT_BLOCKS",
    "WITHOUT_BUDGET",
    "WITHOUT_CAP",
    "WITHOUT_LAYER_TYPES",
    "WITHOUT_POOLED",
    "hands_out",
    "refuse",
    "set_among",
    "validate_config",
]

_RULES: tuple[Callable[[EngineConfig], None], ...] = (
    sizes.check_bounds,
    keys.check_second_group,
    keys.check_virtual_pages,
    keys.check_chunks,
    states.check_tracking,
    sizes.check_pools,
    sizes.check_ladders,
    sizes.check_modes,
    keys.check_heads,
    keys.check_fp4,
    keys.check_unit_scale,
    servers.check_ranks,
    states.check_state_modes,
    sizes.check_runner,
    states.check_states,
    states.check_rings,
    states.check_safe_gate,
    states.check_linear_heads,
    states.check_drafted_prompts,
    servers.check_later_stage,
    keys.check_index_layer,
    keys.check_index_logits,
    keys.check_index_gathering,
    keys.check_index_block,
    keys.check_pooled_blocks,
    keys.check_sparse_kernel,
    keys.check_logit_cap,
    keys.check_layer_types,
    servers.check_two_batches,
    servers.check_even_ranks,
    servers.check_all_reduce,
    servers.check_backends,
    drafts.check_plan_stream,
    drafts.check_drafted_blocks,
    drafts.check_sampling,
    drafts.check_verify_budget,
    drafts.check_draft_model,
    drafts.check_branches,
    drafts.check_draft_window,
    drafts.check_shared_selection,
    servers.check_returned_hidden,
    servers.check_gathered_logits,
    experts.check_experts,
    adapters.check_adapters,
    prompts.check_prefill,
    prompts.check_image_encoder,
    prompts.check_prefix_chunks,
)
"""In the order in which a config is held against them; the first one that it breaks is told."""


def validate_config(config: EngineConfig) -> None:
    """Return if the config is coherent.

    Raises:
        InvalidCase: names the first field that is out of bounds or contradicts another.
    """
    for check in _RULES:
        check(config)
