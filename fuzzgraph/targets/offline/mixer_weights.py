"""Weights of an engine's Mamba2 mixer by which its own projections give known numbers exactly.

Tokens are embedded as one column each, so that the first projection looks up a row for each. The
gate multiplies by 32, and the second projection divides by it.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import TIME_STEP, content_for
from fuzzgraph.recurrent_layers.mamba2 import conv_inputs, scan_heads
from fuzzgraph.world import VOCAB

GATE = 32.0
"""silu(32) is 32 in float32."""
_AT_ONCE = -8.0
"""exp(-8 * 32) is 0 in float32."""


def in_projection(config: EngineConfig, layer: int = 0) -> torch.Tensor:
    """[columns, mixer_width] float32: gate, what goes to the convolution, and the time step of a
    head.

    Args:
        layer: number of the mixer among those of the model.
    """
    heads = scan_heads(config)
    gate = torch.full((VOCAB, heads.output), GATE)
    step = torch.full((VOCAB, heads.values), TIME_STEP)
    given = torch.cat((gate, conv_inputs(content_for(config, layer)), step), dim=1).T
    return torch.nn.functional.pad(given, (0, mixer_width(config) - VOCAB))


def mixer_width(config: EngineConfig) -> int:
    """Columns of an embedded token: one for each there is, and no fewer than the layer gives."""
    return max(VOCAB, scan_heads(config).output)


def decays(heads: int) -> torch.Tensor:
    """[heads] float32: A of each head of a state: the first half decays not at all, the others at
    once."""
    return torch.where(2 * torch.arange(heads) < heads, 0.0, _AT_ONCE)


def out_projection(config: EngineConfig) -> torch.Tensor:
    """[mixer_width, columns] float32: the layer's columns without the gate, then zeros."""
    return torch.eye(mixer_width(config), scan_heads(config).output) / GATE
