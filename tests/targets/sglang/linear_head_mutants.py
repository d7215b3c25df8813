"""Planted bugs of what kernels of the delta rule do with a block of columns behind the first one.

Each is the change of one line; narrow heads have one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.runners.hybrid_prefill import (
    DeltaNetPrefillTarget,
    FlatGatesPrefillTarget,
)
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.planted import with_a_held_kernel_changed, with_changed_sessions

_KERNELS = "sglang.kernels.ops.attention"
_FLA = f"{_KERNELS}.fla"
_INTRA = f"{_FLA}.chunk_intra", "chunk_kda_fwd_kernel_inter_solve_fused"
_COLUMNS = "o_v = i_v * BV + tl.arange(0, BV)"


def _decode() -> DeltaNetTarget:
    return DeltaNetTarget("sglang-gdn", "decode")


def _verify() -> DeltaNetTarget:
    return DeltaNetTarget("sglang-gdn-verify", "target_verify")


def _prompts() -> DeltaNetPrefillTarget:
    return DeltaNetPrefillTarget("sglang-gdn-prefill")


def _prompts_by_channel() -> FlatGatesPrefillTarget:
    return FlatGatesPrefillTarget("sglang-kda-glm-prefill")


def _planted(
    opened: Callable[[], Any], module: str, name: str, line: str, other: str
) -> Callable[[], Any]:
    def change(session: Any) -> None:
        change_kernel(session, f"{_KERNELS}.{module}", name, line, other)

    return lambda: with_changed_sessions(opened(), change)


def _keys_of(part: int) -> str:
    """What makes the pointer to keys of a part of a chunk, where it is not the last one."""
    return f"""p_k{part} = tl.make_block_ptr(
                k, (T, K), (H * K, 1), (i_tc{part}, i_k * BK), (BC, BK), (1, 0)
            )
            p_k{part + 1} = """


keys_of_the_loop_before = with_a_held_kernel_changed(
    _prompts_by_channel, *_INTRA, _keys_of(0), "p_k1 = "
)
"""The pointer of the last block in the loop before is left for all blocks."""
keys_of_the_first_block = with_a_held_kernel_changed(
    _prompts_by_channel, *_INTRA, _keys_of(1), _keys_of(1).replace("i_k * BK", "i_k // BK")
)
first_block_alone_solved = _planted(
    _prompts,
    "fla.wy_fast",
    "recompute_w_u_fwd_kernel",
    "for i_k in range(tl.cdiv(K, BK)):",
    "for i_k in range(tl.cdiv(BK, K)):",
)
state_over_its_first_block = with_a_held_kernel_changed(
    _prompts,
    f"{_FLA}.chunk_delta_h",
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "ht, (V, K), (K, 1), (i_v * BV, 64)",
    "ht, (V, K), (K, 1), (i_v * BV, 0)",
)
values_of_the_first_block = _planted(
    _decode,
    "fla.fused_recurrent",
    "fused_recurrent_gated_delta_rule_packed_decode_kernel",
    _COLUMNS,
    _COLUMNS.replace("*", "//"),
)
verified_values_of_the_first_block = _planted(
    _verify,
    "linear.fused_sigmoid_gating_recurrent",
    "fused_sigmoid_gating_delta_rule_update_kernel",
    _COLUMNS,
    _COLUMNS.replace("*", "//"),
)
