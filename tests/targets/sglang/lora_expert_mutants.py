"""Planted bugs of what sglang does for adapters of experts, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.lora import Kernels, LoraSession, LoraTarget
from fuzzgraph.targets.sglang.backends.lora_v2 import LoraV2Session, LoraV2Target
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere, replace_while_running

_ROUTES = "sglang.srt.lora.moe.runner"
"""Where routes are asked for."""
_RUNNER = "sglang.srt.lora.moe.runner:MoeLoraRunner"
_POOL = "sglang.srt.lora.mem_pool:LoRAMemoryPool"
_LAYER = "sglang.srt.lora.layers:FusedMoEWithLoRA"
_SORTS = "sglang.kernels.ops.lora.common.routing"
_SHRINKS = "sglang.kernels.ops.lora.common.lora_a"
_EXPANDS = "sglang.kernels.ops.lora.moe.lora_b"
_ACTIVATES = "sglang.kernels.ops.lora.moe.activation_delta"
_SUMS = "sglang.kernels.ops.lora.moe.finalize"
_VIRTUAL = "sglang.kernels.ops.lora.moe.virtual_experts"
_HOOKS = "sglang.srt.lora.lora_moe_runners"
_ONE_BY_ONE = "sglang.kernels.ops.lora.moe.fused_moe_lora_kernel"
_INFO = "sglang.srt.lora.backend.base_backend:BaseLoRABackend"

Plant = Callable[[Any], None]


def _line(holder: str, name: str, line: str, other: str) -> Plant:
    return lambda session: change_line_elsewhere(session, holder, name, line, other)


def _kernel(module: str, name: str, line: str, other: str) -> Plant:
    return lambda session: change_kernel(session, module, name, line, other)


def _opened(plant: Plant) -> Callable[[], LoraV2Target]:
    class Planted(LoraV2Session):
        def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
            plant(self)
            super().__init__(config, graphs, kernels)

    def target() -> LoraV2Target:
        made = LoraV2Target("sglang-lora-v2", "decode")
        made.session = Planted
        return made

    return target


def _opened_older(plant: Plant, kernels: Kernels = "triton") -> Callable[[], LoraTarget]:
    class Planted(LoraSession):
        def __init__(self, config: EngineConfig, graphs: GraphEngine, kernels: Kernels) -> None:
            plant(self)
            super().__init__(config, graphs, kernels)

    def target() -> LoraTarget:
        made = LoraTarget("sglang-lora", kernels)
        made.session = Planted
        return made

    return target


# Routes

raw_without_groups = _opened(_line(_ROUTES, "build_moe_routes",
    """groups_per_slot=num_local_experts,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.RAW""",
    """groups_per_slot=1,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.RAW"""))  # fmt: skip
sorted_without_groups = _opened(_line(_ROUTES, "build_moe_routes",
    """groups_per_slot=num_local_experts,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.ALIGNED""",
    """groups_per_slot=1,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.ALIGNED"""))  # fmt: skip
shared_with_groups = _opened(_line(_ROUTES, "build_moe_routes",
    """groups_per_slot=1,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.ALIGNED""",
    """groups_per_slot=num_local_experts,
            max_loras=max_loras,
            block_size=block_size,
            view=RouteViewKind.ALIGNED"""))  # fmt: skip
slots_side_by_side = _opened(_kernel(_SORTS, "route_bucket_ids",
    "buckets = slots * GROUPS_PER_SLOT + groups", "buckets = slots + groups"))  # fmt: skip
slot_of_a_pair = _opened(_kernel(_SORTS, "route_bucket_ids",
    "token_ids = pair_ids // WIDTH", "token_ids = pair_ids"))  # fmt: skip
one_bucket_on = _opened(_kernel(_SORTS, "_build_small_route_kernel",
    "pos // BLOCK_SIZE, bin_id - 1,", "pos // BLOCK_SIZE, bin_id,"))  # fmt: skip
blocks_overlap = _opened(_kernel(_SORTS, "_build_small_route_kernel",
    "starts = tl.cumsum(padded, axis=0) - padded", "starts = tl.cumsum(counts, axis=0) - counts"
))  # fmt: skip
counts_not_cleared = _opened(_kernel(_SORTS, "_build_small_route_kernel",
    "scratch_ptr + idx, tl.zeros([FILL], dtype=tl.int32), mask=idx < NUM_BINS",
    "scratch_ptr + idx, tl.zeros([FILL], dtype=tl.int32), mask=idx < 1"))  # fmt: skip

# Products

input_of_the_token = _opened(_kernel(_SHRINKS, "_per_row_lora_a_kernel",
    "input_row = pair64 if PAIR_INPUT else pair64 // WIDTH", "input_row = pair64 // WIDTH"
))  # fmt: skip
first_plane = _opened(_kernel(_SHRINKS, "_grouped_lora_a_kernel",
    "plane = (bucket_id // WEIGHT_DIV).to(tl.int64)", "plane = (bucket_id * 0).to(tl.int64)"
))  # fmt: skip
without_adapter_not_cleared = _opened(_line(_EXPANDS, "grouped_lora_b",
    "zero_sentinel=True", "zero_sentinel=False"))  # fmt: skip
gate_for_up = _opened(_kernel(_ACTIVATES, "_act_delta_kernel",
    "delta_row + inter + offs", "delta_row + offs"))  # fmt: skip
delta_behind_the_activation = _opened(_kernel(_ACTIVATES, "_act_delta_kernel",
    "g += dg", "dg = dg"))  # fmt: skip
weights_reversed = _opened(_kernel(_SUMS, "_small_finalize_kernel",
    "topk_weights_ptr + t * TOPK + ks", "topk_weights_ptr + t * TOPK + TOPK - 1 - ks"
))  # fmt: skip
first_pair_twice = _opened(_kernel(_SUMS, "_small_finalize_kernel",
    "delta_ptr + (t * TOPK + k) * hidden", "delta_ptr + (t * TOPK) * hidden"))  # fmt: skip
shared_b_of_the_first_slot = _opened(_kernel(_SUMS, "_shared_one_pass_kernel",
    "+ safe_adapter * stride_bs", "+ safe_adapter * 0"))  # fmt: skip
shared_sum_not_weighted = _opened(_kernel(_SUMS, "_shared_one_pass_kernel",
    "rank_acc += weight * rank_row", "rank_acc += rank_row"))  # fmt: skip

# The batch

rows_reversed = _opened(_line(_LAYER, "_run_moe_core_with_lora",
    "token_lora_mapping=batch_info.token_slots[: batch_info.num_tokens],",
    "token_lora_mapping=batch_info.token_slots[: batch_info.num_tokens].flip(0),"))  # fmt: skip
slots_of_the_capture = _opened(_line(_LAYER, "_run_moe_core_with_lora",
    "token_lora_mapping=batch_info.token_slots[: batch_info.num_tokens],",
    "token_lora_mapping=batch_info.token_slots[: batch_info.num_tokens].clone().fill_(-1),"
))  # fmt: skip
memory_of_no_graph = _opened(_line(_LAYER, "_run_moe_core_with_lora",
    "use_cuda_graph=batch_info.use_cuda_graph", "use_cuda_graph=False"))  # fmt: skip
one_pair_less = _opened(_line(_RUNNER, "_run_gate_up",
    "num_tokens * self.top_k,", "num_tokens * self.top_k - 1,"))  # fmt: skip

# The pool

not_scaled = _opened(_line(_POOL, "load_lora_weight_to_buffer",
    """w = w * lora_adapter.scaling
                            w = self._get_maybe_cached_weight_for_transfer(
                                pinned_layer_weights,
                                w_cache_key,""",
    """w = self._get_maybe_cached_weight_for_transfer(
                                pinned_layer_weights,
                                w_cache_key,"""))  # fmt: skip
shared_not_scaled = _opened(_line(_POOL, "load_lora_weight_to_buffer",
    """w = w * lora_adapter.scaling
                            w = self._get_maybe_cached_weight_for_transfer(
                                pinned_layer_weights,
                                append""",
    """w = self._get_maybe_cached_weight_for_transfer(
                                pinned_layer_weights,
                                append"""))  # fmt: skip
up_behind_its_rank = _opened(_line(_POOL, "load_lora_weight_to_buffer",
    """local_eid,
                                ci * max_r : ci * max_r + lora_rank,""",
    """local_eid,
                                ci * lora_rank : ci * lora_rank + lora_rank,"""))  # fmt: skip
experts_one_on = _opened(_line(_POOL, "_iter_local_expert_weights",
    "lid = self._global_to_local_expert_id(gid) if localize else gid",
    "lid = (self._global_to_local_expert_id(gid) + 1) % self._num_experts_local"))  # fmt: skip


def _keeps_old_experts(load: Any) -> Any:
    """An adapter leaves what it has no weights of as the slot's last one left it. Each half alone,
    A or B, would change nothing, for the product with zeros is zero."""

    def kept(pool: Any, uid: Any, buffer_id: int, *rest: Any, **named: Any) -> None:
        held = [
            slots[buffer_id]
            for buffers in (pool.A_buffer, pool.B_buffer)
            for name, layers in buffers.items()
            for slots in layers
            if name.endswith("_moe")
        ]
        before = [slot.clone() for slot in held]
        load(pool, uid, buffer_id, *rest, **named)
        for slot, old in zip(held, before, strict=True):
            for expert in range(len(slot)):
                if not slot[expert].any():
                    slot[expert] = old[expert]

    return kept


others_not_cleared = _opened(
    lambda session: replace_while_running(
        session,
        engine_module(_POOL.partition(":")[0]).LoRAMemoryPool,
        "load_lora_weight_to_buffer",
        _keeps_old_experts,
    )
)

# Virtual experts

virtual_side_by_side = _opened_older(_kernel(_VIRTUAL, "_fused_virtual_topk_ids_kernel",
    "shifted = expert + safe_lora * num_experts_for_weight", "shifted = expert + safe_lora"
))  # fmt: skip
virtual_slot_before = _opened_older(_kernel(_VIRTUAL, "_fused_virtual_topk_ids_kernel",
    "shifted = expert + safe_lora * num", "shifted = expert + (safe_lora ^ 1) * num"
), "csgmv")  # fmt: skip
routes_of_another_product = _opened_older(_line(_VIRTUAL, "_merged_experts_fused_moe_lora_add_impl",
    "cache_key = (num_experts, shared_outer, block_size, id(adapter_enabled))",
    "cache_key = block_size"))  # fmt: skip
gates_a_for_up = _opened_older(_line(_HOOKS, "_add_lora_gate_up_delta",
    "a_output_slices=2 if is_gated else 1", "a_output_slices=1"))  # fmt: skip
virtual_not_weighted = _opened_older(_line(_HOOKS, "_add_lora_down_delta",
    """token_lora_mapping=token_lora_mapping,
            mul_routed_weight=True""",
    """token_lora_mapping=token_lora_mapping,
            mul_routed_weight=False"""))  # fmt: skip

# One adapter after another

one_gates_a_for_up = _opened_older(_line(_HOOKS, "_add_lora_gate_up_delta",
    "gate_up_a[:, :, r : 2 * r, :]", "gate_up_a[:, :, :r, :]"))  # fmt: skip
one_not_weighted = _opened_older(_line(_HOOKS, "_add_lora_down_delta",
    """expand_split_k=1,
            mul_routed_weight=True""",
    """expand_split_k=1,
            mul_routed_weight=False"""))  # fmt: skip
weights_of_the_first_slot = _opened_older(_kernel(_ONE_BY_ONE, "_fused_moe_lora_kernel",
    "+ lora_id * stride_bl", "+ 0 * stride_bl"))  # fmt: skip
weights_of_the_first_expert = _opened_older(_kernel(_ONE_BY_ONE, "_fused_moe_lora_kernel",
    "+ expert_id * stride_be", "+ 0 * stride_be"), "csgmv")  # fmt: skip
places_of_the_slot_before = _opened_older(_kernel(_ONE_BY_ONE, "_fused_moe_lora_kernel",
    "token_ind = stride_tl * lora_id + offs_token_id",
    "token_ind = stride_tl * (lora_id ^ 1) + offs_token_id"))  # fmt: skip
merged_segments = _opened_older(_line(_INFO, "_add_moe_lora_info",
    """batch_info.req_seg_indptr is not None
        or batch_info.req_weight_indices is not None""",
    "False"), "csgmv")  # fmt: skip
first_blocks_alone = _opened_older(_line(_HOOKS, "_compute_lora_alignment",
    "int(max_num_tokens_padded),\n            int(max_num_m_blocks),\n            sorted",
    "int(max_num_tokens_padded),\n            1,\n            sorted"))  # fmt: skip
# Survivors of a sample of mutants in four seconds of processor time each
# (reports/mutants/across-fourth.toml).

nothing_added_up = _opened_older(_kernel(_ONE_BY_ONE, "_fused_moe_lora_kernel",
    "accumulator += tl.dot(a, b.to(a.dtype))", "pass"))  # fmt: skip
experts_of_the_first_slot = _opened_older(_line(_ONE_BY_ONE, "_fused_moe_lora_expand",
    "expert_ids.stride(0)", "expert_ids.stride(1)"))  # fmt: skip
