"""The truth of a layer of the gated delta rule, against its definition computed token by token."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from torch.nn.functional import silu, softplus

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.content import STATE_WIDTH, Content, content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.delta_rule import (
    HEAD_WIDTH,
    HEADS,
    NORM_EPSILON,
    POSITIONS,
    delta_betas,
    delta_conv_rows,
    delta_conv_weights,
    delta_gates,
    delta_heads,
    delta_outputs,
    delta_position_inputs,
    delta_states,
    delta_token_inputs,
)
from fuzzgraph.recurrent_layers.queries_keys_values import channels_of, delta_keys
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import Batch

CONFIG = EngineConfig(recurrent_state=True, capture_bs=(4,), max_context_len=256, page_size=16)
WIDE = msgspec.structs.replace(CONFIG, linear_head_dim=128)
both = pytest.mark.parametrize("config", [CONFIG, WIDE], ids=["narrow", "wide"])


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


def by_definition(content: Content, tokens: np.ndarray) -> tuple[torch.Tensor, ...]:
    """(state [heads, columns of a value, of a key], last inputs of the convolution, output of the
    last token): float64, head by head."""
    heads = delta_heads(content.config)
    inputs = delta_token_inputs(content).double()[torch.from_numpy(tokens)]
    inputs = inputs + delta_position_inputs(len(tokens), heads).double()
    weights = delta_conv_weights(heads).double()
    window = torch.zeros(CONV_WIDTH, inputs.shape[1], dtype=torch.float64)
    state = torch.zeros(*heads.state, dtype=torch.float64)
    betas = torch.sigmoid(delta_betas(heads).double())[torch.from_numpy(tokens)]
    out = torch.zeros(heads.values, heads.value_width, dtype=torch.float64)
    gates = -math.e * softplus(delta_gates(heads).double() - 32.0)[torch.from_numpy(tokens)]
    for token, gate, beta in zip(inputs, gates, betas, strict=True):
        window = torch.cat((window[1:], token[None]))
        mixed = silu((window * weights.T).sum(0))
        queries, keys, values = mixed.split((heads.key_columns, heads.key_columns, heads.output))
        queries, keys = (part.view(heads.keys, heads.key_width) for part in (queries, keys))
        values = values.view(heads.values, heads.value_width)
        for head in range(heads.values):
            mine = head // (heads.values // heads.keys)
            q, k = (
                part[mine] / (part[mine].square().sum() + 1e-6).sqrt() for part in (queries, keys)
            )
            state[head] *= gate[head].exp()
            known = state[head] @ k
            state[head] += beta[head] * torch.outer(values[head] - known, k)
            read = state[head] @ q / heads.key_width**0.5
            out[head] = read / (read.square().mean() + NORM_EPSILON).sqrt()
    return state, window[1:], out.flatten()


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        (CONFIG, (1, 5, 2, 64)), (CONFIG, (3, 4)), (CONFIG, (33,)), (CONFIG, (65, 250)),
        (WIDE, (5, 140)),
    ],
)  # fmt: skip
def test_states_and_outputs_are_those_of_the_definition(
    config: EngineConfig, lengths: tuple[int, ...]
) -> None:
    batch, content = batch_of(*lengths), content_for(config)
    rows = np.arange(len(lengths))
    states = delta_states(content, batch, rows, batch.seq_lens)
    conv = delta_conv_rows(content, batch, rows, batch.seq_lens)
    outputs = delta_outputs(content, batch, torch.float64)
    for row in range(len(lengths)):
        state, window, out = by_definition(content, batch.kv_tokens.row(row))
        torch.testing.assert_close(states[row].double(), state.flatten(), rtol=0, atol=1e-6)
        torch.testing.assert_close(outputs[row], out, rtol=0, atol=1e-8)
        assert torch.equal(conv[row].double(), window)


def test_half_of_the_heads_forget_at_one_token_in_four() -> None:
    batch, content = batch_of(33), content_for(CONFIG)
    state = delta_states(content, batch, np.arange(1), batch.seq_lens)[0]
    heads = state.view(HEADS, HEAD_WIDTH, POSITIONS)[:, 0]
    last = max(np.flatnonzero(batch.kv_tokens.row(0)[:33] % 4 == 1))
    assert last > 0
    keys = delta_keys(33, POSITIONS)
    assert all(set(head.nonzero().flatten().tolist()) == set(keys.tolist()) for head in heads[:2])
    left = set(keys[last:].tolist())
    assert all(set(head.nonzero().flatten().tolist()) == left for head in heads[2:])


def test_each_token_of_a_verify_has_the_output_behind_it() -> None:
    batch, content = batch_of(9, 30, mode="target_verify", new=3), content_for(CONFIG)
    outputs = delta_outputs(content, batch, torch.float64).view(2, 3, STATE_WIDTH)
    for row, length in enumerate((9, 30)):
        tokens = batch.kv_tokens.row(row)
        for token in range(3):
            *_, out = by_definition(content, tokens[: length - 2 + token])
            torch.testing.assert_close(outputs[row, token], out, rtol=0, atol=1e-8)


@both
def test_states_are_exact_in_float32(config: EngineConfig) -> None:
    """The recurrence in float32 leaves what the truth says, bit for bit."""
    batch, content, heads = batch_of(64), content_for(config), delta_heads(config)
    tokens = torch.from_numpy(batch.kv_tokens.row(0))
    inputs = delta_token_inputs(content)[tokens] + delta_position_inputs(64, heads)
    kept, betas = (
        each.repeat_interleave(heads.value_width, dim=1)[tokens]
        for each in (
            (-math.e * softplus(delta_gates(heads) - 32.0)).exp(),
            torch.sigmoid(delta_betas(heads)),
        )
    )
    state = torch.zeros(heads.output, heads.key_width)
    for token, keep, beta in zip(inputs, kept, betas, strict=True):
        state *= keep[:, None]
        _, k, v = silu(token).split((heads.key_columns, heads.key_columns, heads.output))
        k = k[: heads.key_width] / (k[: heads.key_width].square().sum() + 1e-6).sqrt()
        state += beta[:, None] * torch.outer(v - state @ k, k)
    truth = delta_states(content, batch, np.arange(1), batch.seq_lens)
    assert torch.equal(state.flatten(), truth[0])


def test_one_token_in_four_changes_the_column_of_the_one_before() -> None:
    batch, content = batch_of(8), content_for(CONFIG)
    after_three, after_four, after_five = (
        delta_states(content, batch, np.arange(1), np.array([length])).view(HEADS, -1, POSITIONS)
        for length in (3, 4, 5)
    )
    lasting = slice(HEADS // 2)
    changed = (after_four != after_three)[lasting]
    assert changed.flatten(0, 1).any(0).nonzero().flatten().tolist() == [2]
    assert after_four[..., 3].eq(0).all()
    assert torch.equal(after_five[lasting, :, 2], after_four[lasting, :, 2])


def test_a_token_counted_twice_or_left_out_shows_in_one_column() -> None:
    batch, content = batch_of(7), content_for(CONFIG)
    before = delta_states(content, batch, np.arange(1), batch.cached_lens).view(-1, POSITIONS)
    after = delta_states(content, batch, np.arange(1), batch.seq_lens).view(-1, POSITIONS)
    assert (before != after).any(0).nonzero().flatten().tolist() == [6]
    beta = torch.sigmoid(delta_betas())[batch.kv_tokens.row(0)[6]].repeat_interleave(HEAD_WIDTH)
    once = after[:, 6]
    twice = once + beta * (once / beta - once)
    shows = (twice != once).view(HEADS, HEAD_WIDTH)
    assert shows.all(1).sum() == HEADS // 2


def test_betas_tell_heads_and_tokens_apart() -> None:
    betas = torch.sigmoid(delta_betas())
    assert set(betas.flatten().tolist()) == {0.5, 1.0}
    for beta in betas:
        assert set(beta[: HEADS // 2].tolist()) == set(beta[HEADS // 2 :].tolist()) == {0.5, 1.0}
    assert (betas[2:] != betas[:-2]).all()


def test_what_stands_before_the_first_token_is_zero() -> None:
    conv = delta_conv_rows(content_for(CONFIG), batch_of(1, 3), np.arange(2), np.array([0, 2]))
    assert conv[0].eq(0).all()
    assert conv[1, 0].eq(0).all()
    assert conv[1, 1:].ne(0).any(1).all()


@both
def test_an_output_shows_any_token_before_it(config: EngineConfig) -> None:
    batch, content = batch_of(12), content_for(config)
    out = delta_outputs(content, batch, torch.float64)
    tokens = batch.kv_tokens.values
    for place in range(12):
        values = tokens.copy()
        values[place] = (values[place] + 1) % len(delta_token_inputs(content))
        *_, other = by_definition(content, values)
        assert (other - out[0]).abs().max() > 1e-4, place


@both
def test_values_tell_columns_apart_and_are_such_that_nothing_rounds_them(
    config: EngineConfig,
) -> None:
    """Half precision holds them, and SiLU leaves them as they are."""
    heads = delta_heads(config)
    values = delta_token_inputs(content_for(config))[:, 2 * heads.key_columns :]
    assert torch.equal(values.half().float(), values)
    assert torch.equal(silu(values), values)
    assert len(values.T.unique(dim=0)) == heads.output


@pytest.mark.parametrize("channels", [64, 128, 256])
def test_tokens_one_after_the_other_have_keys_in_the_first_block_of_channels_and_in_the_last(
    channels: int,
) -> None:
    keys = channels_of(torch.arange(channels), channels)
    assert sorted(keys.tolist()) == list(range(channels))
    halves = keys // (channels // 2)
    assert halves[:2].unique().numel() == 2 and halves.unique().numel() == 2
