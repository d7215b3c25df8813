"""Planted bugs of the persistent decode kernel that AMD's GPUs have.

Each is the change of one line.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.triton import TritonTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_DECODES = "sglang.kernels.ops.attention.decode_attention"
_KERNEL = "_lean_attention_decode_kernel"


def _opened() -> TritonTarget:
    return TritonTarget("sglang-triton", "decode")


def _in_kernel(line: str, other: str) -> Any:
    def change(session: Any) -> None:
        change_kernel(session, _DECODES, _KERNEL, line, other)

    return lambda: with_changed_sessions(_opened(), change)


locks_left = with_a_line_changed(
    _opened, _DECODES, "_decode_lean_attention_fwd", "locks.zero_()", "locks.add_(0)"
)
"""Locks of the last replay let a program read what it left before others have computed anew."""
parts_scaled_alike = _in_kernel("alpha1 = tl.exp(e_max - m_new)", "alpha1 = tl.exp(m_cta - m_new)")
parts_of_later_ones_left_out = _in_kernel(
    "for cta in range((xcd_pid + 1), last_cta):", "for cta in range((xcd_pid + 2), last_cta):"
)
keys_behind_a_row = _in_kernel(
    "tok_end = tl.minimum(local_iter_end_ptr, cur_batch_seq_len)", "tok_end = local_iter_end_ptr"
)
