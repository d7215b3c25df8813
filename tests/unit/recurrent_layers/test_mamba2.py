"""The recurrent layer's truth, against its definition computed token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import STATE_WIDTH, TIME_STEP, Content, content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.mamba2 import conv_rows, conv_weights, recurrent_outputs
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import Batch

DECAYS = torch.tensor([0.0] * 4 + [-8.0] * 4).double()
CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,))


def batch_of(*lengths: int) -> Batch:
    rows = tuple(BatchRow(request=n, seq_len=length) for n, length in enumerate(lengths))
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=rows),)))
    return batch


def by_definition(content: Content, tokens: np.ndarray) -> tuple[torch.Tensor, ...]:
    """(state, last inputs of the convolution, output of the last token) by softplus and exp."""
    inputs = content.weights["conv_in"].double()[torch.from_numpy(tokens)]
    weights = conv_weights().double()
    window = torch.zeros(CONV_WIDTH, inputs.shape[1], dtype=torch.float64)
    state = torch.zeros(STATE_WIDTH, dtype=torch.float64)
    out = state
    for token in inputs:
        window = torch.cat((window[1:], token[None]))
        mixed = (window * weights.T).sum(0)
        x, b, c = mixed[:STATE_WIDTH], mixed[STATE_WIDTH], mixed[STATE_WIDTH + 1]
        step = torch.nn.functional.softplus(torch.tensor(TIME_STEP).double())
        state = torch.exp(DECAYS * step) * state + step * b * x
        out = c * state + x
    return state, window[1:], out


@pytest.mark.parametrize("lengths", [(1, 5, 2, 16), (3, 4), (16,)])
def test_states_and_outputs_are_those_of_the_definition(lengths: tuple[int, ...]) -> None:
    batch, content = batch_of(*lengths), content_for(CONFIG)
    states, conv = content.state_rows(batch, after=True), conv_rows(content, batch, after=True)
    outputs = recurrent_outputs(content, batch)
    for row in range(len(lengths)):
        state, window, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state, rtol=0, atol=1e-9)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-9)
        assert torch.equal(conv[row].double(), window)


def test_outputs_are_exact_in_float32() -> None:
    outputs = recurrent_outputs(content_for(CONFIG), batch_of(16, 15, 7, 1))
    assert torch.equal(outputs, outputs.float().double())


def test_what_stands_before_the_first_token_is_zero() -> None:
    before = conv_rows(content_for(CONFIG), batch_of(1, 3))
    assert before[0].eq(0).all()
    assert before[1, 0].eq(0).all()
    assert before[1, 1:].ne(0).any(1).all()


def test_the_last_four_tokens_show_in_an_output() -> None:
    weights = conv_weights()[-1]
    assert weights.ne(0).all()
    assert len(set(weights.tolist())) == CONV_WIDTH
