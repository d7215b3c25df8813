"""What a layer of linear attention with a decay by head computes, as lightning attention has it.

A step is `state = exp(-s) state + k v^T` and `y = state^T q / sqrt(width)`, with a slope s of its
own for each head (Qin et al. 2024, "Lightning Attention-2", equation 4), `2^(-8 i / heads)` for
head i counted from 1, as ALiBi has it (Press, Smith and Lewis 2022), times what the layer's place
makes of it (MiniMax 2025, "MiniMax-01", modeling code `_build_slope_tensor`). There is no
convolution. The recurrence here runs token by token in float64; the exponentials round, so states
are compared with a part of their size. A token's key is a unit vector, chosen by its position, so a
row of a state holds what is left of the value of one token, and shows one that is missing, foreign
or counted twice. Behind `LINEAR_WIDTH` tokens keys come again, and add to what is
left of the older values. Queries read every row.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.content import Content
from fuzzgraph.recurrent_layers.queries_keys_values import (
    channels_of,
    normed,
    position_inputs,
    token_inputs,
    values_of_tokens,
)
from fuzzgraph.world import VOCAB, Batch, IntArray

LINEAR_HEADS = 2
LINEAR_WIDTH = 128
"""Of a key, a query and a value: the least that engines' kernels take."""
LINEAR_OUTPUT = LINEAR_HEADS * LINEAR_WIDTH
"""Columns of an output, and of each of q, k and v."""
LINEAR_STATE = LINEAR_HEADS * LINEAR_WIDTH * LINEAR_WIDTH
"""Numbers of a state: [LINEAR_HEADS, channels of a key, columns of a value]."""
LINEAR_EPSILON = 64.0
"""Of the norm behind the readout, so that its size shows."""
LINEAR_ROUNDING = 1e-5
"""How far a state may be off, as a part of each number: a few roundings of float32."""
_LEAST_PART = 1e-5
"""What the slopes of a model's last layer are of whole ones."""


def linear_slopes(content: Content) -> torch.Tensor:
    """[LINEAR_HEADS] float64: slopes of a layer. The first of all has whole ones, the last next to
    none, and those between lie on a line (source above); one alone is the first of two."""
    kinds = content.config.layer_types or ("linear_attention", "full_attention")
    places = [place for place, kind in enumerate(kinds) if kind == "linear_attention"]
    part = 1.0 - places[content.layer] / (len(kinds) - 1) + _LEAST_PART
    heads = torch.arange(1, LINEAR_HEADS + 1, dtype=torch.float64)
    slopes: torch.Tensor = 2.0 ** (-8.0 * heads / LINEAR_HEADS) * part
    return slopes


def linear_token_inputs(content: Content) -> torch.Tensor:
    """[VOCAB, 3 * LINEAR_OUTPUT] float32: what a token brings as q, k and v."""
    return token_inputs(content, LINEAR_OUTPUT, LINEAR_OUTPUT)


def linear_position_inputs(positions: int = LINEAR_WIDTH) -> torch.Tensor:
    """[positions, 3 * LINEAR_OUTPUT] float32: what its position adds."""
    keys = _keys(positions)
    return position_inputs(LINEAR_WIDTH, LINEAR_HEADS, LINEAR_OUTPUT, key=1.0, keys=keys)


def _keys(positions: int) -> torch.Tensor:
    """[positions] channel of each position's key."""
    return channels_of(torch.arange(positions), LINEAR_WIDTH)


def linear_states(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float32 [n, LINEAR_STATE]: the state of row `rows[i]` behind its first `lens[i]` tokens."""
    return _states_at(content, batch, rows, lens).float().flatten(1)


def _states_at(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float64 [n, LINEAR_HEADS, channels, columns of a value]."""
    shape = (LINEAR_HEADS, LINEAR_WIDTH, LINEAR_WIDTH)
    found = torch.zeros(len(rows), *shape, dtype=torch.float64)
    values = (
        values_of_tokens(content, LINEAR_OUTPUT).double().view(VOCAB, LINEAR_HEADS, LINEAR_WIDTH)
    )
    decays = (-linear_slopes(content)).exp()[:, None, None]
    asked = torch.from_numpy(np.stack((rows, lens)))
    for row in set(rows.tolist()):
        tokens = batch.kv_tokens.row(row)[: lens[rows == row].max()].tolist()
        state = torch.zeros(shape, dtype=torch.float64)
        for place, (key, token) in enumerate(zip(_keys(len(tokens)).tolist(), tokens, strict=True)):
            state *= decays
            state[:, key] += values[token]
            found[(asked == torch.tensor([[row], [place + 1]])).all(0)] = state
    return found


def linear_outputs(content: Content, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, LINEAR_OUTPUT] in `dtype`: the layer's output for each new token."""
    rows, positions = batch.token_rows, torch.from_numpy(batch.positions)
    states = _states_at(content, batch, rows, batch.positions + 1).to(dtype)
    tokens = torch.from_numpy(batch.input_ids)
    places = linear_position_inputs(int(batch.seq_lens.max(initial=0)))
    inputs = linear_token_inputs(content)[tokens] + places[positions]
    query = inputs[:, :LINEAR_OUTPUT].to(dtype).view(-1, LINEAR_HEADS, 1, LINEAR_WIDTH)
    read = (query @ states).squeeze(-2) * LINEAR_WIDTH**-0.5
    return normed(read, LINEAR_EPSILON)
