"""What a layer of the gated delta rule computes: a short convolution over the last tokens, a state
that is a matrix, a readout, and a norm with a gate.

With q, k and v after the convolution and its SiLU, k of length 1, a step is
`state = exp(g) state; state = state + beta (v - state k) k^T` and `y = state q` (Yang, Kautz and
Hatamizadeh 2024, "Gated Delta Networks", equation 10), as Qwen3-Next has it: transformers
modeling_qwen3_next.py, `torch_recurrent_gated_delta_rule` and `Qwen3NextRMSNormGated`. The model's
numbers make states exact in float32: beta is 1/2 or 1, by token and head, and the key of a token is
a unit vector, chosen by its position. So a column of a state is the value of one token, or half of
it: a token that is missing or foreign shows, a beta of another token or head, and one that
is counted twice, which leaves three quarters where beta is 1/2, as it is in half of the heads for
each token. One token in four has the key of the one before, and replaces its value or half of it:
what kernels over chunks solve for the tokens of a chunk shows in no other way. Behind as many
tokens as a key has columns keys come again, and replace the oldest likewise. exp(g) is 1 for ever
in the first half of the heads; in the others it is 0 at one token in four, which begins the state
anew, so that a gate of another token shows. SiLU gives back large numbers as they are, and keys and
values are large. The convolution leaves both as they are; queries weigh the last four tokens, and
read every column.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import STATE_WIDTH, Content
from fuzzgraph.recurrent_layers.delta_recurrence import (
    OfTokens,
    states_behind,
    states_of_tokens,
)
from fuzzgraph.recurrent_layers.linear_heads import LinearHeads
from fuzzgraph.recurrent_layers.queries_keys_values import (
    conv_weights,
    delta_keys,
    normed,
    position_inputs,
    token_inputs,
    values_of_tokens,
)
from fuzzgraph.recurrent_layers.short_convolution import (
    CONV_WIDTH,
    last_inputs,
    unit_queries,
)
from fuzzgraph.recurrent_layers.state_ring import RingOfLayer
from fuzzgraph.world import VOCAB, Batch, IntArray

POSITIONS = 64
"""Columns of a key in narrow heads."""
KEY_HEADS = 2
HEADS = 4
"""Of values; two share one head of queries and keys."""
HEAD_WIDTH = STATE_WIDTH // HEADS
NARROW = LinearHeads(KEY_HEADS, HEADS, POSITIONS, HEAD_WIDTH)
DELTA_WIDTH = NARROW.numbers
"""Numbers of a state: those of one head after those of the other."""
KEY_COLUMNS = NARROW.key_columns
DELTA_COLUMNS = NARROW.columns
NORM_EPSILON = 64.0
"""Of the norm behind the readout: about the mean square of what is read, so that it shows."""
A_LOG = 1.0
RING_A_LOG = 0.0
"""The same where a ring keeps logarithms of decays: their sums are then exact, in any order."""
DT_BIAS = -32.0
"""g is -exp(A_LOG) softplus(a + DT_BIAS)."""
_KEY = 4096.0
# A sigmoid gives 1/2 and 1 for these.
_LOGITS = torch.tensor([0.0, 200.0])
_BETAS = torch.tensor([0.5, 1.0])
_BEGINS_ANEW, _GOES_ON = 256.0, -256.0
"""softplus leaves the one as it is and makes 0 of the other, in float32 too; exp(-256) is 0."""


def delta_heads(config: EngineConfig) -> LinearHeads:
    """Those of the config's layers; wide ones are fewer, and still share a head of keys."""
    wide = config.linear_head_dim
    return LinearHeads(KEY_HEADS // 2, HEADS // 2, wide, wide) if wide else NARROW


def delta_token_inputs(content: Content) -> torch.Tensor:
    """[VOCAB, columns] float32: what a token brings to the convolution."""
    heads = delta_heads(content.config)
    return token_inputs(content, heads.key_columns, heads.output)


def _begins_anew() -> torch.Tensor:
    """bool [VOCAB], the tokens at which the later heads forget."""
    return torch.arange(VOCAB) % 4 == 1


def _forgets(heads: LinearHeads) -> torch.Tensor:
    """bool [VOCAB, heads], what each of them forgets at."""
    return _begins_anew()[:, None] & (torch.arange(heads.values) >= heads.values // 2)


def delta_gates(heads: LinearHeads = NARROW) -> torch.Tensor:
    """[VOCAB, heads] float32: `a` of each token."""
    return torch.where(_forgets(heads), _BEGINS_ANEW, _GOES_ON) - DT_BIAS


def _beta_kinds(heads: LinearHeads) -> torch.Tensor:
    """[VOCAB, heads] entries of `_BETAS`."""
    return (torch.arange(VOCAB)[:, None] // 2 + torch.arange(heads.values)) % 2


def delta_betas(heads: LinearHeads = NARROW) -> torch.Tensor:
    """[VOCAB, heads] float32: `b` of each token, beta before the sigmoid."""
    return _LOGITS[_beta_kinds(heads)]


def delta_position_inputs(positions: int = POSITIONS, heads: LinearHeads = NARROW) -> torch.Tensor:
    """[positions, columns] float32: what its position adds."""
    keys = delta_keys(positions, heads.key_width)
    return position_inputs(heads.key_width, heads.keys, heads.output, _KEY, keys)


def delta_conv_weights(heads: LinearHeads = NARROW) -> torch.Tensor:
    """[columns, CONV_WIDTH] float32, the newest token last."""
    return conv_weights(heads)


def delta_states(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float32 [n, numbers]: the state of row `rows[i]` behind its first `lens[i]` tokens."""
    return states_behind(_states_of(content), batch, rows, lens).float().flatten(1)


def _decays(heads: LinearHeads) -> torch.Tensor:
    """[VOCAB, heads, columns of a key]: what a token leaves."""
    return torch.where(_forgets(heads), 0.0, 1.0)[..., None].expand(-1, -1, heads.key_width)


def _states_of(content: Content) -> OfTokens:
    heads = delta_heads(content.config)
    betas, decays = _BETAS[_beta_kinds(heads)], _decays(heads)
    values = values_of_tokens(content, heads.output).view(VOCAB, heads.values, heads.value_width)

    def states(tokens: torch.Tensor) -> torch.Tensor:
        keys = delta_keys(len(tokens), heads.key_width)
        return states_of_tokens(keys, decays[tokens], betas[tokens], values[tokens])

    return states


def delta_ring(content: Content) -> RingOfLayer:
    """What tokens leave in a ring beside their states."""
    heads = delta_heads(content.config)
    gates = torch.where(_forgets(heads), -_BEGINS_ANEW, 0.0)
    return RingOfLayer(_states_of(content), _decays(heads).double(), gates, heads.keys)


def delta_conv_rows(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = CONV_WIDTH - 1
) -> torch.Tensor:
    """float32 [n, count, columns]: inputs of the last `count` of the first `lens[i]` tokens of row
    `rows[i]`, the newest last, zeros where there were none."""
    by_token = delta_token_inputs(content)
    by_position = delta_position_inputs(int(lens.max(initial=0)), delta_heads(content.config))
    return last_inputs(by_token, by_position, batch, rows, lens, count)


def delta_outputs(content: Content, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, columns] in `dtype`: the layer's output for each new token."""
    heads = delta_heads(content.config)
    rows, lens = batch.token_rows, batch.positions + 1
    states = delta_states(content, batch, rows, lens).to(dtype)
    seen = delta_conv_rows(content, batch, rows, lens, CONV_WIDTH).to(dtype)
    query = unit_queries(seen[..., : heads.key_width])
    read = states.view(-1, heads.output, heads.key_width) @ query[..., None]
    read = read * heads.key_width**-0.5
    return normed(read.view(-1, heads.values, heads.value_width), NORM_EPSILON)
