"""Planted bugs of what Mamba2's kernels do with a block of a state behind the first one.

Each is the change of one line; narrow states have one block.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.mamba2 import Mamba2Target
from fuzzgraph.targets.sglang.runners.hybrid_prefill import Mamba2PrefillTarget
from tests.targets.sglang.planted import with_a_held_kernel_changed

_KERNELS = "sglang.kernels.ops.mamba.triton_ops"
_UPDATE = f"{_KERNELS}.mamba_ssm", "_selective_scan_update_kernel"
_SCAN = f"{_KERNELS}.ssd_chunk_scan", "_chunk_scan_fwd_kernel"
_ROWS = "offs_m = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)"


def _decode() -> Any:
    return Mamba2Target("sglang-mamba", "decode")


def _verify() -> Any:
    return Mamba2Target("sglang-mamba-verify", "target_verify")


def _prompts() -> Any:
    return Mamba2PrefillTarget("sglang-mamba-prefill")


rows_of_the_first_block = with_a_held_kernel_changed(
    _decode, *_UPDATE, _ROWS, _ROWS.replace("*", "//")
)
verified_rows_of_the_first_block = with_a_held_kernel_changed(
    _verify, *_UPDATE, _ROWS, _ROWS.replace("*", "//")
)
readout_of_the_first_columns = with_a_held_kernel_changed(
    _prompts,
    f"{_KERNELS}.ssd_bmm",
    "_bmm_chunk_fwd_kernel",
    "a_ptrs += BLOCK_SIZE_K * stride_ak",
    "a_ptrs += 0 * stride_ak",
)
"""Of what a chunk itself brings."""
state_read_over_its_first_columns = with_a_held_kernel_changed(
    _prompts, *_SCAN, "prev_states_ptrs += BLOCK_SIZE_K", "prev_states_ptrs += 0"
)
"""Of what was before a chunk; with more than 128 columns there is a loop over them."""
columns_of_the_first_block = with_a_held_kernel_changed(
    _prompts,
    f"{_KERNELS}.ssd_chunk_state",
    "_chunk_state_fwd_kernel",
    """b_ptrs = b_ptr + (
        offs_n[None, :]""",
    """b_ptrs = b_ptr + (
        tl.arange(0, BLOCK_SIZE_N)[None, :]""",
)
