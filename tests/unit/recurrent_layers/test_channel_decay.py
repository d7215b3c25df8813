"""The truth of a delta rule with a decay by channel, against its definition with matrices."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from torch.nn.functional import silu, softplus

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.content import Content, content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.channel_decay import (
    CHANNEL_EPSILON,
    CHANNEL_HEADS,
    CHANNELS,
    NARROW,
    SAFE_GATE_BOUND,
    channel_betas,
    channel_conv_rows,
    channel_conv_weights,
    channel_gates,
    channel_heads,
    channel_outputs,
    channel_position_inputs,
    channel_states,
    channel_token_inputs,
)
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import VOCAB, Batch

CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,), max_context_len=256, page_size=16)
WIDE = msgspec.structs.replace(CONFIG, linear_head_dim=128)


def batch_of(*lengths: int, mode: Mode = "decode", new: int = 1) -> Batch:
    rows = tuple(
        BatchRow(request=name, seq_len=length, new_tokens=new)
        for name, length in enumerate(lengths)
    )
    config = EngineConfig(
        modes=(mode,),
        recurrent_state=True,
        draft_tokens=max(new, 2),
        capture_bs=(4,),
        max_context_len=256,
        page_size=16,
    )
    step = ReplayStep(mode=mode, rows=rows)
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    return batch


def by_definition(
    content: Content, tokens: np.ndarray, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, ...]:
    """(state [heads, columns of a value, channels], last inputs of the convolution, output of the
    last token), with all of the formula's functions and matrices, head by head."""
    chosen = torch.from_numpy(tokens)
    inputs = channel_token_inputs(content).to(dtype)[chosen]
    heads = channel_heads(content.config)
    inputs = inputs + channel_position_inputs(len(tokens), heads).to(dtype)
    raw = channel_gates(content).to(dtype)
    bounded = SAFE_GATE_BOUND * torch.sigmoid(raw)
    gates = (bounded if content.config.safe_gate else -softplus(raw))[chosen]
    gates = gates.view(-1, heads.keys, heads.key_width)
    betas = torch.sigmoid(channel_betas().to(dtype))[chosen]
    weights = channel_conv_weights(heads).to(dtype)
    window = torch.zeros(CONV_WIDTH, heads.columns, dtype=dtype)
    state = torch.zeros(*heads.state, dtype=dtype)
    out = torch.zeros(heads.values, heads.value_width, dtype=dtype)
    for place, token in enumerate(inputs):
        window = torch.cat((window[1:], token[None]))
        q, k, v = silu((window * weights.T).sum(0)).view(3, heads.keys, heads.key_width)
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        for head in range(heads.values):
            kept = state[head] @ torch.diag(gates[place, head].exp())
            known = kept @ k[head]
            state[head] = kept + betas[place, head] * torch.outer(v[head] - known, k[head])
            read = state[head] @ q[head] / heads.key_width**0.5
            out[head] = read / (read.square().mean() + CHANNEL_EPSILON).sqrt()
    return state, window[1:], out.flatten()


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (CONFIG, (1, 5, 2, 32)), (CONFIG, (3, 4)), (CONFIG, (31,)), (CONFIG, (33, 250)),
        (WIDE, (5, 140)),
    ],
)  # fmt: skip
def test_states_and_outputs_are_those_of_the_definition(
    config: EngineConfig, lengths: tuple[int, ...]
) -> None:
    batch, content = batch_of(*lengths), content_for(config)
    rows = np.arange(len(lengths))
    states = channel_states(content, batch, rows, batch.seq_lens)
    conv = channel_conv_rows(content, batch, rows, batch.seq_lens)
    outputs = channel_outputs(content, batch, torch.float64)
    assert states.shape == (len(lengths), channel_heads(config).numbers)
    for row in range(len(lengths)):
        state, window, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state.flatten(), rtol=0, atol=1e-6)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-8)
        assert torch.equal(conv[row].double(), window)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_states_and_outputs_with_a_bound_are_those_of_the_definition(dtype: str) -> None:
    content = content_for(msgspec.structs.replace(CONFIG, safe_gate=True, dtype=dtype))
    batch, rows = batch_of(5, 31), np.arange(2)
    states = channel_states(content, batch, rows, batch.seq_lens)
    outputs = channel_outputs(content, batch, torch.float64)
    for row in range(2):
        state, _, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state.flatten(), rtol=0, atol=1e-6)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-8)


def test_no_decay_ends_all_where_a_ring_keeps_logarithms() -> None:
    content = content_for(msgspec.structs.replace(CONFIG, state_ring_len=4))
    assert (-softplus(channel_gates(content))).exp().min() == 0.5


def test_each_token_of_a_verify_has_the_output_behind_it() -> None:
    batch, content = batch_of(9, 30, mode="target_verify", new=3), content_for(CONFIG)
    outputs = channel_outputs(content, batch, torch.float64).view(2, 3, NARROW.output)
    for row, length in enumerate((9, 30)):
        tokens = batch.kv_tokens.row(row)
        for token in range(3):
            *_, out = by_definition(content, tokens[: length - 2 + token])
            torch.testing.assert_close(outputs[row, token], out, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("config", "length"), [(CONFIG, 32), (WIDE, 64)])
def test_the_definition_in_float32_leaves_the_truth_bit_for_bit(
    config: EngineConfig, length: int
) -> None:
    batch, content = batch_of(length), content_for(config)
    state, *_ = by_definition(content, batch.kv_tokens.row(0), torch.float32)
    truth = channel_states(content, batch, np.arange(1), batch.seq_lens)
    assert torch.equal(state.flatten(), truth[0])


def test_a_token_clears_one_channel_halves_another_and_leaves_the_rest() -> None:
    """By head and token: gates of another row, head or channel are other gates."""
    content = content_for(CONFIG)
    decays = (-softplus(channel_gates(content))).exp()
    assert set(decays.unique().tolist()) == {0.0, 0.5, 1.0}
    by_head = decays.view(VOCAB, CHANNEL_HEADS, CHANNELS)
    assert (by_head == 0).sum(-1).ge(1).all() and (by_head == 1).sum(-1).gt(CHANNELS // 2).all()
    assert (by_head[:, 0] != by_head[:, 1]).any(-1).all()
    for token in range(VOCAB - 1):
        assert (decays[token] != decays[token + 1]).any()


def test_in_half_precision_a_token_halves_channels_and_clears_none() -> None:
    content = content_for(msgspec.structs.replace(CONFIG, dtype="float16"))
    decays = (-softplus(channel_gates(content))).exp()
    assert set(decays.unique().tolist()) == {0.5, 1.0}


def test_an_output_shows_most_tokens_before_it() -> None:
    """What a later token clears is not to be seen."""
    batch, content = batch_of(12), content_for(CONFIG)
    out = channel_outputs(content, batch, torch.float64)
    tokens = batch.kv_tokens.values
    shown = []
    for place in range(12):
        values = tokens.copy()
        values[place] = (values[place] + 1) % VOCAB
        *_, other = by_definition(content, values)
        shown.append(bool((other - out[0]).abs().max() > 1e-4))
    assert sum(shown) >= 9


def test_what_stands_before_the_first_token_is_zero() -> None:
    conv = channel_conv_rows(content_for(CONFIG), batch_of(1, 3), np.arange(2), np.array([0, 2]))
    assert conv[0].eq(0).all()
    assert conv[1, 0].eq(0).all()
