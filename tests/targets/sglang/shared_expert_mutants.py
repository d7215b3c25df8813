"""Planted bugs of sglang's shared experts, of DeepSeek's router, and of copies of experts, one line
each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.moe import MoeTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_TOPK = "sglang.srt.layers.moe.topk"
_GATE = "sglang.kernels.ops.moe.moe_fused_gate"
_DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.standard:StandardDispatcher"
_PLACED = "sglang.srt.eplb.expert_location_dispatch"
_MODEL = "sglang.srt.models.deepseek_v2"


def _healthy() -> MoeTarget:
    return MoeTarget("sglang-moe-deepseek", "decode", "deepseek")


def _line(holder: str, name: str, line: str, other: str) -> Callable[[], MoeTarget]:
    return with_a_line_changed(_healthy, holder, name, line, other)


def _kernel(line: str, other: str) -> Callable[[], MoeTarget]:
    def change(session: Any) -> None:
        change_kernel(session, _GATE, "_router_triton_kernel", line, other)

    return lambda: with_changed_sessions(_healthy(), change)


scaled_with_the_others = _kernel(
    "1.0 if APPLY_SCALE else 1.0 / routed_scaling_factor", "1.0 if APPLY_SCALE else 1.0"
)
named_one_too_far = _kernel("(N + (offs_k - K_ROUTED))", "(N + (offs_k - K_ROUTED) - 1)")
normalised_with_it = _kernel(
    "routed_sum = tl.sum(tl.where(mask_k_routed[None, :], selected_vals, 0.0), axis=1)[",
    "routed_sum = 1.0 + tl.sum(tl.where(mask_k_routed[None, :], selected_vals, 0.0), axis=1)[",
)
flags_swapped = _line(
    _GATE, "moe_fused_gate",
    "RENORMALIZE_EPSILON=renormalize_epsilon,\n        USE_PDL=use_pdl,",
    "RENORMALIZE_EPSILON=use_pdl,\n        USE_PDL=renormalize_epsilon,",
)  # fmt: skip
whole_on_each_rank = _line(
    _TOPK, "_post_process_topk_ids",
    "topk_weights[:, -num_shared_topk_slots:] *= fused_shared_experts_scaling_factor", "pass",
)  # fmt: skip
padded_not_masked = _line(
    _TOPK, "_post_process_topk_ids",
    "routed_cols, expert_location_dispatch_info, num_token_non_padded\n",
    "routed_cols, expert_location_dispatch_info, None\n",
)  # fmt: skip
on_no_rank = _line(
    _DISPATCHER, "dispatch", "if self.num_local_shared_experts > 0:", "if False:"
)  # fmt: skip
left_out = _line(
    _MODEL, "maybe_fuse_routed_scale_and_shared_add",
    "    if shared is not None:\n        routed += shared", "    pass",
)  # fmt: skip
bias_left_out = _kernel(
    "activated = tl.sigmoid(scores)\n        biased = activated + row_bias",
    "activated = tl.sigmoid(scores)\n        biased = activated",
)
weights_with_bias = _kernel(
    "tl.where(offs_n[None, :] == win_lane, activated, 0.0)",
    "tl.where(offs_n[None, :] == win_lane, biased, 0.0)",
)
groups_by_their_best = _kernel(
    "group_score = tl.where(offs_g[None, :] == g, top1 + top2, group_score)",
    "group_score = tl.where(offs_g[None, :] == g, top1, group_score)",
)
one_group_more = _kernel("tl.static_range(TOPK_GROUP)", "tl.static_range(TOPK_GROUP + 1)")
by_place_among_experts = _line(
    _PLACED, "_topk_ids_logical_to_physical_dynamic", "// slots_per_token", "// 1"
)
left_where_they_were = _line(
    _PLACED, "_topk_ids_logical_to_physical_dynamic",
    "info.partial_logical_to_all_physical_map[topk_ids, chosen_dispatch_index]", "topk_ids",
)  # fmt: skip
