"""The recurrent layer's truth, against its definition computed token by token."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import TIME_STEP, Content, content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.mamba2 import (
    conv_inputs,
    conv_rows,
    conv_weights,
    recurrent_outputs,
    scan_heads,
    scan_states,
)
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import Batch

DECAYS = torch.tensor([0.0, -8.0]).double()
CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,))
WIDE = [msgspec.structs.replace(CONFIG, linear_head_dim=columns) for columns in (128, 256)]
LAYERS = pytest.mark.parametrize("config", [CONFIG, *WIDE], ids=["narrow", "128", "256"])


def batch_of(*lengths: int) -> Batch:
    rows = tuple(BatchRow(request=n, seq_len=length) for n, length in enumerate(lengths))
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=rows),)))
    return batch


def by_definition(content: Content, tokens: np.ndarray) -> tuple[torch.Tensor, ...]:
    """(state, last inputs of the convolution, output of the last token) by softplus and exp."""
    heads = scan_heads(content.config)
    inputs = conv_inputs(content).double()[torch.from_numpy(tokens)]
    weights = conv_weights(heads).double()
    window = torch.zeros(CONV_WIDTH, inputs.shape[1], dtype=torch.float64)
    state = torch.zeros(heads.state, dtype=torch.float64)
    out = torch.zeros(heads.output, dtype=torch.float64)
    step = torch.nn.functional.softplus(torch.tensor(TIME_STEP).double())
    for token in inputs:
        window = torch.cat((window[1:], token[None]))
        mixed = (window * weights.T).sum(0)
        x, b, c = mixed.split([heads.output, heads.key_width, heads.key_width])
        added = step * x.view(heads.values, heads.value_width, 1) * b
        state = torch.exp(DECAYS * step)[:, None, None] * state + added
        out = (state @ c).flatten() + x
    return state.flatten(), window[1:], out


@LAYERS
@pytest.mark.parametrize("lengths", [(1, 5, 2, 16), (3, 4), (16,)])
def test_states_and_outputs_are_those_of_the_definition(
    lengths: tuple[int, ...], config: EngineConfig
) -> None:
    batch, content = batch_of(*lengths), content_for(config)
    states = scan_states(content, batch, np.arange(len(lengths)), batch.seq_lens)
    conv = conv_rows(content, batch, after=True)
    outputs = recurrent_outputs(content, batch)
    for row in range(len(lengths)):
        state, window, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state, rtol=0, atol=1e-9)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-9)
        assert torch.equal(conv[row].double(), window)


@LAYERS
def test_outputs_are_exact_in_float32(config: EngineConfig) -> None:
    outputs = recurrent_outputs(content_for(config), batch_of(16, 15, 7, 1))
    assert torch.equal(outputs, outputs.float().double())


@LAYERS
def test_a_state_shows_each_of_its_tokens(config: EngineConfig) -> None:
    """The first half of its heads shows all of them, the later one the last."""
    content, batch = content_for(config), batch_of(5, 4)
    heads = scan_heads(config)
    first, shorter = scan_states(content, batch, np.array([0, 0]), np.array([5, 4]))
    kept, last = (first - shorter).view(heads.values, -1).ne(0)
    assert kept.any()
    assert last.any()
    nothing = scan_states(content, batch, np.array([1]), np.array([0]))
    assert nothing.eq(0).all()


@pytest.mark.parametrize("config", WIDE, ids=["128", "256"])
def test_tokens_add_to_columns_of_their_own_in_each_block_of_64(config: EngineConfig) -> None:
    heads = scan_heads(config)
    units = conv_inputs(content_for(config))[:, heads.output : -heads.key_width]
    assert (units != 0).sum(1).eq(1).all()
    columns = units.argmax(1)
    assert len(set(columns.tolist())) == len(columns)
    assert set((columns // 64).tolist()) == set(range(heads.key_width // 64))


def test_what_stands_before_the_first_token_is_zero() -> None:
    before = conv_rows(content_for(CONFIG), batch_of(1, 3))
    assert before[0].eq(0).all()
    assert before[1, 0].eq(0).all()
    assert before[1, 1:].ne(0).any(1).all()


def test_the_last_four_tokens_show_in_an_output() -> None:
    weights = conv_weights()[-1]
    assert weights.ne(0).all()
    assert len(set(weights.tolist())) == CONV_WIDTH
