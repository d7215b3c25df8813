"""What lies in a ring beside a state, replayed step by step, is the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.channel_decay import CHANNEL_HEADS, CHANNELS, channel_ring
from fuzzgraph.recurrent_layers.channel_decay import channel_states as states_by_channel
from fuzzgraph.recurrent_layers.delta_rule import (
    HEAD_WIDTH,
    HEADS,
    KEY_HEADS,
    POSITIONS,
    delta_ring,
    delta_states,
)

CONFIG = EngineConfig(recurrent_state=True, state_ring_len=8, max_context_len=64, page_size=16)
STEP = ReplayStep(
    rows=tuple(BatchRow(request=name, seq_len=end) for name, end in enumerate((9, 30, 64)))
)
BATCH = plan(Case(schema_version=1, config=CONFIG, steps=(STEP,)))[0]
ROWS, DEPTHS = np.arange(3), np.array([0, 5, 8])
ENDS = BATCH.seq_lens
DELTA = (delta_ring, delta_states, (HEADS, HEAD_WIDTH, POSITIONS), KEY_HEADS)
CHANNEL = (channel_ring, states_by_channel, (CHANNEL_HEADS, CHANNELS, CHANNELS), CHANNEL_HEADS)

layers = pytest.mark.parametrize(("ring_of", "states_of", "shape", "key_heads"), [DELTA, CHANNEL])


@layers
def test_a_state_is_the_one_before_its_ring_and_what_lies_in_it(
    ring_of: Callable[..., Any],
    states_of: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    key_heads: int,
) -> None:
    content = content_for(CONFIG)
    ring = ring_of(content)
    given = (BATCH, ROWS, ENDS, DEPTHS, 8)
    deltas, keys, gates = ring.deltas(*given), ring.keys(*given), ring.logs(*given)
    state = states_of(content, BATCH, ROWS, ENDS - DEPTHS).view(-1, *shape)
    shared = shape[0] // key_heads
    for row, depth in enumerate(DEPTHS):
        for place in range(depth):
            decay = gates[row, :, place].exp().view(shape[0], 1, -1)
            key = keys[row, :, place].repeat_interleave(shared, 0)[:, None]
            state[row] = decay * state[row] + deltas[row, :, place, :, None] * key
    wanted = states_of(content, BATCH, ROWS, ENDS).view(-1, *shape)
    torch.testing.assert_close(state, wanted, rtol=1e-5, atol=1e-4)


@layers
def test_nobody_says_what_lies_behind_a_ring(
    ring_of: Callable[..., Any], states_of: object, shape: tuple[int, ...], key_heads: int
) -> None:
    ring = ring_of(content_for(CONFIG))
    for values in (ring.deltas, ring.keys, ring.logs):
        held = values(BATCH, ROWS, ENDS, DEPTHS, 8)
        for row, depth in enumerate(DEPTHS):
            assert not held[row, :, :depth].isnan().any()
            assert held[row, :, depth:].isnan().all()
