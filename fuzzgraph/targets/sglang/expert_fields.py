"""What is judged of the numbers of a token's experts, and of how many tokens each expert has."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.routing import named_experts
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.fused_experts import TOPK

IDS = (("topk_ids", "chosen_experts"), ("local_topk_ids", "local_experts"))
"""What the router chose, and what the experts were handed: field and truth, by place."""
Ids = tuple[tuple[str, str], ...]
"""Of each of a token's experts, likewise."""
_CHOSEN = "sglang topk.py select_experts: the k largest, in falling order"
_MASKED = "sglang topk.py _mask_topk_ids_padded_region: -1 from num_token_non_padded on"
_COUNTED = "sglang expert_distribution.py _SelectExpertsSinglePassGatherer: ids of -1 do not count"
_UNMASKED = (
    "padded tokens count as well: nothing tells the block of their number (sglang qwen3_moe.py "
    "forward_normal up to 0.5.21; with one rank forward_batch_info.py enable_num_token_non_padded)"
)


def id_names(config: EngineConfig, shown: Ids) -> list[str]:
    """Names of the fields of `id_fields`, in their order."""
    return [f"{name}.{place}" for name, _ in shown for place in range(named_experts(config))]


def id_fields(config: EngineConfig, shown: Ids, *, masked: bool) -> tuple[Field, ...]:
    """Numbers of experts of tokens, one field for each place.

    Args:
        shown: field and truth, by place.
        masked: whether padded tokens have no expert. What masks them passes over the place of a
            shared expert, which computes them for nothing.
    """
    found = []
    for name, truth in shown:
        for place in range(named_experts(config)):
            fills = masked and place < config.experts_per_token
            found.append(_id_field(f"{name}.{place}", f"{truth}:{place}", fills))
    return tuple(found)


def _id_field(name: str, truth: str, masked: bool) -> Field:
    padded = PaddingRule("fill", -1) if masked else common.FREE
    source = _MASKED if masked else _CHOSEN
    return Field(name, "tokens", "nothing", padded, source=source, repeats=truth)


def counts_field(*, masked: bool) -> Field:
    """How many tokens each expert has, as the engine's recorder keeps it.

    Args:
        masked: whether padded tokens have no expert.
    """
    if masked:
        return common.value("expert_counts", repeats="expert_counts", source=_COUNTED)
    return Field(
        "expert_counts", "scalar", "nothing", common.FREE, source=_COUNTED,
        unjudged=_UNMASKED, past=_UNMASKED,
    )  # fmt: skip


def masks_padded_tokens(config: EngineConfig) -> bool:
    """Whether this release's block masks padded tokens, where experts lie on several ranks
    that have the same tokens: DeepSeek's hands the count on (0.5.21), and since 0.5.23 `TopK` looks
    it up by itself. Gathered tokens of several ranks are masked elsewhere, by the dispatcher."""
    if config.ep_size == 1 or config.dp_size > 1:
        return False
    by_itself = hasattr(engine_module(TOPK), "resolve_routing_inputs")
    return by_itself or config.expert_scoring == "sigmoid"
