"""Planted changes of how Triton attention cuts wide heads into tiles, each of one line of sglang;
opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.triton import TritonTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_EXTEND = "sglang.kernels.ops.attention.extend_attention"
_DECODE = "sglang.kernels.ops.attention.decode_attention"


def _verify(change: Any) -> Any:
    return with_changed_sessions(TritonTarget("sglang-triton-verify", "target_verify"), change)


def _decode(change: Any) -> Any:
    return with_changed_sessions(TritonTarget("sglang-triton", "decode"), change)


def rest_of_half_a_tile() -> Any:
    """Of a key of 192 columns the tile behind the first 128 has 32 columns."""

    def change(session: Any) -> None:
        line, other = (
            "BLOCK_DMODEL = 128\n        BLOCK_DPE = 64",
            "BLOCK_DMODEL = 128\n        BLOCK_DPE = 32",
        )
        name = "_get_block_sizes_for_extend_attention"
        change_line_elsewhere(session, _EXTEND, name, line, other)

    return _verify(change)


def rest_from_the_start() -> Any:
    """The tile behind the first 128 columns begins at the first."""

    def change(session: Any) -> None:
        line = "offs_dpe = BLOCK_DMODEL + tl.arange(0, BLOCK_DPE)"
        change_kernel(session, _EXTEND, "_fwd_kernel", line, "offs_dpe = tl.arange(0, BLOCK_DPE)")

    return _verify(change)


def columns_of_the_next_head() -> Any:
    """Columns of a key's last tile are not cut off where the head ends."""

    def change(session: Any) -> None:
        line, other = "mask_d = offs_d < Lk", "mask_d = offs_d < BLOCK_DMODEL"
        change_kernel(session, _DECODE, "_fwd_kernel_stage1", line, other)

    return _decode(change)


def values_of_the_next_head() -> Any:
    """Columns of a value's last tile are stored behind the head's end."""

    def change(session: Any) -> None:
        line, other = "mask_d = offs_d < Lv", "mask_d = offs_d < BLOCK_DV"
        change_kernel(session, _DECODE, "_fwd_kernel_stage2", line, other)

    return _decode(change)


def half_of_the_rotary_part() -> Any:
    """Of a latent row of 576 columns 32 are taken for the rotary part."""

    def change(session: Any) -> None:
        line, other = (
            "BLOCK_DMODEL = 512\n        BLOCK_DPE = 64",
            "BLOCK_DMODEL = 512\n        BLOCK_DPE = 32",
        )
        change_line_elsewhere(session, _DECODE, "_decode_grouped_att_m_fwd", line, other)

    target = TritonTarget("sglang-triton-mla", "decode", "mla")
    return with_changed_sessions(target, change)
