"""Weights of an engine's Mamba2 mixer by which its own projections give known numbers exactly.

Tokens are embedded as one column each, so that the first projection looks up a row for each. The
gate multiplies by 32, and the second projection divides by it.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import STATE_SUMS, STATE_WIDTH, TIME_STEP, content_for
from fuzzgraph.world import VOCAB

GATE = 32.0
"""silu(32) is 32 in float32."""
_AT_ONCE = -8.0
"""exp(-8 * 32) is 0 in float32."""


def in_projection(config: EngineConfig, heads: int, layer: int = 0) -> torch.Tensor:
    """[columns, VOCAB] float32: gate, what goes to the convolution, and the time step of a head.

    Args:
        layer: number of the mixer among those of the model.
    """
    gate = torch.full((VOCAB, STATE_WIDTH), GATE)
    step = torch.full((VOCAB, heads), TIME_STEP)
    return torch.cat((gate, content_for(config, layer).weights["conv_in"], step), dim=1).T


def decays(heads: int) -> torch.Tensor:
    """[heads] float32: A of each head of a state, which decays not at all or at once."""
    first_columns = torch.arange(heads) * STATE_WIDTH // heads
    return torch.where(first_columns < STATE_SUMS, 0.0, _AT_ONCE)


def out_projection() -> torch.Tensor:
    """[VOCAB, STATE_WIDTH] float32: the layer's columns without the gate, then zeros."""
    out = torch.zeros(VOCAB, STATE_WIDTH)
    out[:STATE_WIDTH] = torch.eye(STATE_WIDTH) / GATE
    return out
