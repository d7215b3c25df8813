"""What a layer of the delta rule computes whose state decays by channel, as Kimi Linear has it.

With q, k and v after the convolution and its SiLU, k of length 1, a step is
`state = exp(g) * state; state = state + beta (v - state k) k^T` and `y = state q`, with a decay g
of its own for each channel of the key (Kimi Team 2025, "Kimi Linear", equation 1;
flash-linear-attention fla/ops/kda/naive.py). The recurrence runs token by token in float64. The
model's numbers leave nothing to round: a token's key is a unit vector, chosen by its position, so a
channel holds what is left of the value of one token; one token in four has the key of the one
before, and replaces its value or half of it. A decay is 0, 1/2 or 1 and
beta 1/2 or 1, both by token and head, the decay by channel too: a gate of another row, head or
channel shows in the state, and so does a token that is missing or counted twice. Queries weigh the
last four tokens, and read every channel.

No decay is 0 where a ring keeps logarithms of decays: a sum with one that ends all says little of
the others. Nor is one of a model in half precision, as such models compute prompts too: kernels
over chunks take decays relative to a token of the chunk, and tell none apart that are 2^126 from it
(sglang fla/chunk_intra.py). All are powers of 2, which what a kernel keeps in half precision rounds
to.

With `safe_gate` the logarithm of a decay is `SAFE_GATE_BOUND * sigmoid(gate)`, as Kimi K3 has it
(sglang kimi_k3.py, `gate_lower_bound`): the same gates give 1/16, 1/4 and 1, none of them too small
for a ring or for half precision. A checkpoint's bound is -5; this one keeps decays powers of 2.
"""

from __future__ import annotations

import math

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Content
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

CHANNELS = 32
"""Of a key, a query and a value in narrow heads."""
CHANNEL_HEADS = 2
"""Of keys, and as many of values."""
NARROW = LinearHeads(CHANNEL_HEADS, CHANNEL_HEADS, CHANNELS, CHANNELS)
CHANNEL_EPSILON = 64.0
"""Of the norm behind the readout: about the mean square of what is read, so that it shows."""
_KEY = 4096.0
# softplus gives 200, log 2 and 0 for these in float32, and with A of 1 decays of 0, 1/2 and 1.
_GATES = torch.tensor([200.0, 0.0, -200.0])
_DECAYS = torch.tensor([0.0, 0.5, 1.0])
SAFE_GATE_BOUND = -4.0 * math.log(2.0)
"""Of the logarithm of a decay, where it has a bound."""
# A sigmoid gives 1, 1/2 and 0 for the gates.
_SAFE_DECAYS = torch.tensor([1 / 16, 1 / 4, 1.0])
# A sigmoid gives 1/2 and 1 for these.
_LOGITS = torch.tensor([0.0, 200.0])
_BETAS = torch.tensor([0.5, 1.0])
_FORGETTING = 23
"""One channel in so many is cleared by a token, another one halved; a prime, so that tokens, heads
and channels fall differently."""


CHANNEL_ROUNDING = 1e-5
"""How far a state may be off, as a part of each number: powers of 2 come by way of logarithms."""


def channel_heads(config: EngineConfig) -> LinearHeads:
    """Those of the config's layers."""
    wide = config.linear_head_dim
    return LinearHeads(CHANNEL_HEADS, CHANNEL_HEADS, wide, wide) if wide else NARROW


def _decay_kinds(content: Content) -> torch.Tensor:
    """[VOCAB, CHANNEL_HEADS, channels] entries of `_GATES`: most channels stay as they are."""
    config = content.config
    exact = config.dtype == "float32" and not config.state_ring_len
    least = 0 if exact or config.safe_gate else 1
    tokens = torch.arange(VOCAB)[:, None, None]
    heads = torch.arange(CHANNEL_HEADS)[None, :, None]
    channels = torch.arange(channel_heads(config).key_width)
    drawn = (7 * tokens + 11 * heads + 3 * channels) % _FORGETTING
    return drawn.clamp(least, 2)


def _decays(content: Content) -> torch.Tensor:
    """float32 [VOCAB, CHANNEL_HEADS, channels]: what a token leaves of each channel."""
    decays = _SAFE_DECAYS if content.config.safe_gate else _DECAYS
    return decays[_decay_kinds(content)]


def _beta_kinds() -> torch.Tensor:
    """[VOCAB, CHANNEL_HEADS] entries of `_BETAS`."""
    return (torch.arange(VOCAB)[:, None] // 2 + torch.arange(CHANNEL_HEADS)) % 2


def channel_gates(content: Content) -> torch.Tensor:
    """[VOCAB, columns of a key, all heads] float32: what a token says of its decays."""
    return _GATES[_decay_kinds(content)].flatten(1)


def channel_betas() -> torch.Tensor:
    """[VOCAB, CHANNEL_HEADS] float32: what it says of beta, before the sigmoid."""
    return _LOGITS[_beta_kinds()]


def channel_token_inputs(content: Content) -> torch.Tensor:
    """[VOCAB, columns] float32: what a token brings to the convolution."""
    heads = channel_heads(content.config)
    return token_inputs(content, heads.key_columns, heads.output)


def channel_position_inputs(positions: int = CHANNELS, heads: LinearHeads = NARROW) -> torch.Tensor:
    """[positions, columns] float32: what its position adds."""
    keys = delta_keys(positions, heads.key_width)
    return position_inputs(heads.key_width, heads.keys, heads.output, _KEY, keys)


def channel_conv_weights(heads: LinearHeads = NARROW) -> torch.Tensor:
    """[columns, CONV_WIDTH] float32, the newest token last."""
    return conv_weights(heads)


def _states_of(content: Content) -> OfTokens:
    heads = channel_heads(content.config)
    decays, betas = _decays(content), _BETAS[_beta_kinds()]
    values = values_of_tokens(content, heads.output).view(VOCAB, heads.values, heads.value_width)

    def states(tokens: torch.Tensor) -> torch.Tensor:
        keys = delta_keys(len(tokens), heads.key_width)
        return states_of_tokens(keys, decays[tokens], betas[tokens], values[tokens])

    return states


def channel_states(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float32 [n, numbers]: the state of row `rows[i]` behind its first `lens[i]` tokens."""
    return states_behind(_states_of(content), batch, rows, lens).float().flatten(1)


def channel_ring(content: Content) -> RingOfLayer:
    """What tokens leave in a ring beside their states."""
    decays = _decays(content)
    return RingOfLayer(_states_of(content), decays.double(), decays.log(), CHANNEL_HEADS)


def channel_conv_rows(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = CONV_WIDTH - 1
) -> torch.Tensor:
    """float32 [n, count, columns]: inputs of the last `count` of the first `lens[i]` tokens of row
    `rows[i]`, the newest last, zeros where there were none."""
    by_token = channel_token_inputs(content)
    longest = int(lens.max(initial=0))
    by_position = channel_position_inputs(longest, channel_heads(content.config))
    return last_inputs(by_token, by_position, batch, rows, lens, count)


def channel_outputs(content: Content, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, columns] in `dtype`: the layer's output for each new token."""
    width = channel_heads(content.config).key_width
    rows, lens = batch.token_rows, batch.positions + 1
    states = states_behind(_states_of(content), batch, rows, lens).to(dtype)
    seen = channel_conv_rows(content, batch, rows, lens, CONV_WIDTH).to(dtype)[..., :width]
    query = unit_queries(seen)
    read = (states @ query[:, None, :, None]).squeeze(-1) * width**-0.5
    return normed(read, CHANNEL_EPSILON)
