"""The truth of linear attention with a decay by head, against its definition with matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import Content, content_for
from fuzzgraph.execution.state_planes import state_planes
from fuzzgraph.layout import plan
from fuzzgraph.ports import Pools
from fuzzgraph.recurrent_layers.decayed_attention import (
    LINEAR_EPSILON,
    LINEAR_HEADS,
    LINEAR_ROUNDING,
    LINEAR_STATE,
    LINEAR_WIDTH,
    linear_outputs,
    linear_position_inputs,
    linear_slopes,
    linear_states,
    linear_token_inputs,
)
from fuzzgraph.world import FIRST_ROW, VOCAB, Batch

CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,), max_context_len=32, page_size=16)


def batch_of(*lengths: int) -> Batch:
    rows = tuple(BatchRow(request=name, seq_len=length) for name, length in enumerate(lengths))
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=rows),)))
    return batch


def by_definition(content: Content, tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(state [heads, channels, columns], output of the last token), all sums written out: the
    output as attention whose weights decay, without a state."""
    inputs = linear_token_inputs(content).double()[torch.from_numpy(tokens)]
    inputs = inputs + linear_position_inputs().double()[: len(tokens)]
    q, k, v = inputs.view(len(tokens), 3, LINEAR_HEADS, LINEAR_WIDTH).unbind(1)
    state = torch.zeros(LINEAR_HEADS, LINEAR_WIDTH, LINEAR_WIDTH, dtype=torch.float64)
    out = torch.zeros(LINEAR_HEADS, LINEAR_WIDTH, dtype=torch.float64)
    last = len(tokens) - 1
    for head, slope in enumerate((1.00001 / 16, 1.00001 / 256)):
        for place in range(len(tokens)):
            left = np.exp(-slope * (last - place))
            state[head] += left * torch.outer(k[place, head], v[place, head])
            out[head] += left * (q[last, head] @ k[place, head]) * v[place, head]
    read = out / LINEAR_WIDTH**0.5
    norm = (read.square().mean(-1, keepdim=True) + LINEAR_EPSILON).sqrt()
    return state, (read / norm).flatten()


@pytest.mark.parametrize("lengths", [(1, 5, 2, 32), (17, 4)])
def test_states_and_outputs_are_those_of_the_definition(lengths: tuple[int, ...]) -> None:
    batch, content = batch_of(*lengths), content_for(CONFIG)
    states = linear_states(content, batch, np.arange(len(lengths)), batch.seq_lens)
    outputs = linear_outputs(content, batch, torch.float64)
    assert states.shape == (len(lengths), LINEAR_STATE)
    for row in range(len(lengths)):
        state, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state.flatten(), rtol=1e-6, atol=0)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-8)


def test_heads_decay_apart() -> None:
    first, second = linear_slopes(content_for(CONFIG)).tolist()
    assert first == pytest.approx(16 * second)


def test_an_output_shows_any_token_before_it() -> None:
    batch, content = batch_of(12), content_for(CONFIG)
    out = linear_outputs(content, batch, torch.float64)
    tokens = batch.kv_tokens.values
    for place in range(12):
        values = tokens.copy()
        values[place] = (values[place] + 1) % VOCAB
        _, other = by_definition(content, values)
        assert (other - out[0]).abs().max() > 1e-4, place


def test_a_state_may_be_off_by_its_rounding_and_no_more() -> None:
    tensor = torch.zeros(FIRST_ROW + CONFIG.req_pool_size, LINEAR_HEADS, LINEAR_WIDTH, LINEAR_WIDTH)
    (plane,) = state_planes(Pools(linear_state=tensor), content_for(CONFIG), CONFIG)
    wanted = torch.tensor([64.0, 64.0, 0.0, 0.0, torch.nan])
    near, tiny = 64 * (1 + LINEAR_ROUNDING / 2), 1e-30
    now = torch.tensor([near, 64 * (1 + 3 * LINEAR_ROUNDING), 0.0, tiny, 3.0])
    assert plane.taken(now, wanted).tolist()[0] == now[0]
    assert plane.taken(now, wanted)[1:].tolist() == [64.0, 0.0, 0.0, 3.0]
