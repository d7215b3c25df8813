"""Mamba and causal convolutions of sglang."""

from __future__ import annotations

from typing import Any

from released.row import (
    Table,
    below,
    floats,
    halves,
    ints,
    longs,
    starts,
    zeros,
)

row = Table("sglang")
_MAMBA = "kernels.ops.mamba"


@row(f"{_MAMBA}.triton_ops.mamba_ssm")
def mamba_decode(m: Any) -> None:
    out = zeros(3, 4, 16).half()
    m.selective_state_update(
        floats(4, 4, 16, 16), halves(3, 4, 16), halves(3, 4, 1).expand(3, 4, 16),
        -floats(4, 1, 1).abs().expand(4, 16, 16), halves(3, 2, 16), halves(3, 2, 16),
        D=floats(4, 1).expand(4, 16), z=halves(3, 4, 16), dt_bias=floats(4, 1).expand(4, 16),
        dt_softplus=True, state_batch_indices=ints(2, -1, 0), out=out,
    )  # fmt: skip


@row(f"{_MAMBA}.triton_ops.ssd_combined")
def mamba_prefill(m: Any) -> None:
    lens = (20, 5)
    tokens = sum(lens)
    m.mamba_chunk_scan_combined(
        halves(1, tokens, 4, 16), halves(1, tokens, 4), -floats(4).abs(), halves(1, tokens, 2, 16),
        halves(1, tokens, 2, 16), 16, D=floats(4), dt_bias=floats(4), dt_softplus=True,
        initial_states=floats(2, 4, 16, 16), seq_idx=ints(*[0] * 20, *[1] * 5).view(1, -1),
        chunk_indices=ints(0, 1, 1), chunk_offsets=ints(0, 0, 4), cu_seqlens=starts(*lens),
        return_varlen_states=True, out=zeros(1, tokens, 4, 16).half(),
    )  # fmt: skip


@row(f"{_MAMBA}.causal_conv1d_triton")
def causal_convolution(m: Any) -> None:
    m.causal_conv1d_fn(
        halves(9, 8).t(), halves(8, 4), halves(8), halves(4, 3, 8).transpose(1, 2),
        starts(5, 1, 3), [5, 1, 3], ints(2, 3, 0), below(2, 3).bool(),
    )  # fmt: skip


@row(f"{_MAMBA}.causal_conv1d_triton")
def causal_convolution_decode(m: Any) -> None:
    m.causal_conv1d_update(
        halves(3, 8), halves(4, 3, 8).transpose(1, 2), halves(8, 4), halves(8), "silu",
        conv_state_indices=ints(2, -1, 0),
    )  # fmt: skip


@row(f"{_MAMBA}.mamba_state_scatter_triton")
def states_of_accepted_drafts(m: Any) -> None:
    steps = longs(2, -1, 0)
    m.fused_mamba_state_scatter_with_mask(
        floats(2, 6, 8), floats(2, 3, 4, 8), longs(5, 2, 0), steps
    )
    m.fused_conv_window_scatter_with_mask(
        floats(2, 6, 8, 3), floats(2, 3, 4, 8, 3), longs(5, 2, 0), steps
    )
    m.fused_commit_track_indices(below(4, 3, 4), ints(2, 1, 4), longs(30, 5, 62), 4, 32)
    m.track_mamba_states_all_layers(
        floats(2, 6, 8, 3), floats(2, 6, 4, 8), longs(5, 2, 0), below(2, 3).bool(),
        longs(1, 3, 4), 3,
    )  # fmt: skip


@row(f"{_MAMBA}.triton_ops.mamba_ssm")
def mamba_decode_that_rounds_at_random(m: Any) -> None:
    m.selective_state_update(
        halves(4, 4, 16, 16), halves(3, 4, 16), halves(3, 4, 1).expand(3, 4, 16),
        -floats(4, 1, 1).abs().expand(4, 16, 16), halves(3, 2, 16), halves(3, 2, 16),
        D=floats(4, 1).expand(4, 16), z=halves(3, 4, 16), dt_bias=floats(4, 1).expand(4, 16),
        dt_softplus=True, state_batch_indices=ints(2, -1, 0), out=zeros(3, 4, 16).half(),
        enable_stochastic_rounding=True, cache_philox_rounds=4,
    )  # fmt: skip
