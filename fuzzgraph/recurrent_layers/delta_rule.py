"""What a layer of the gated delta rule computes: a short convolution over the last tokens, a state
that is a matrix, a readout, and a norm with a gate.

With q, k and v after the convolution and its SiLU, k of length 1, a step is
`state = exp(g) state; state = state + beta (v - state k) k^T` and `y = state q` (Yang, Kautz and
Hatamizadeh 2024, "Gated Delta Networks", equation 10), as Qwen3-Next has it: transformers
modeling_qwen3_next.py, `torch_recurrent_gated_delta_rule` and `Qwen3NextRMSNormGated`. The model's
numbers make states exact in float32: beta is 1/2 or 1, by token and head, and the key of a token is
the unit vector of its position. So column p of a state is the value of the token at position p, or
half of it: a token that is missing or foreign shows, a beta of another token or head, and one that
is counted twice, which leaves three quarters where beta is 1/2, as it is in half of the heads for
each token. One token in four has the key of the one before, and replaces its value or half of it:
what kernels over chunks solve for the tokens of a chunk shows in no other way. Behind `POSITIONS`
tokens keys come again, and replace the oldest likewise. exp(g) is 1 for ever
in the first half of the heads; in the others it is 0 at one token in four, which begins the state
anew, so that a gate of another token shows. SiLU gives back large
numbers as they are, and keys and values are large. The convolution leaves both as they are; queries
weigh the last four tokens, and read every column.
"""

from __future__ import annotations

import torch

from fuzzgraph.content import STATE_WIDTH, Content
from fuzzgraph.recurrent_layers.delta_recurrence import (
    OfTokens,
    states_behind,
    states_of_tokens,
)
from fuzzgraph.recurrent_layers.queries_keys_values import (
    delta_keys,
    normed,
    position_inputs,
    token_inputs,
    values_of_tokens,
)
from fuzzgraph.recurrent_layers.short_convolution import (
    CONV_WIDTH,
    LAST_FOUR,
    NEWEST,
    last_inputs,
    unit_queries,
)
from fuzzgraph.recurrent_layers.state_ring import RingOfLayer
from fuzzgraph.world import VOCAB, Batch, IntArray

POSITIONS = 64
"""Columns of a state: positions that have a key of their own, before keys come again."""
KEY_HEADS = 2
"""Of queries and keys, all alike."""
HEADS = 4
"""Of values; two share one head of queries and keys."""
HEAD_WIDTH = STATE_WIDTH // HEADS
DELTA_WIDTH = STATE_WIDTH * POSITIONS
"""Numbers of a state: [STATE_WIDTH, POSITIONS], the rows of one head after those of the other."""
KEY_COLUMNS = KEY_HEADS * POSITIONS
DELTA_COLUMNS = 2 * KEY_COLUMNS + STATE_WIDTH
"""Columns of the convolution's input: q, k, v."""
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
_FORGETS = torch.arange(HEADS) >= HEADS // 2
_BEGINS_ANEW, _GOES_ON = 256.0, -256.0
"""softplus leaves the one as it is and makes 0 of the other, in float32 too; exp(-256) is 0."""


def delta_token_inputs(content: Content) -> torch.Tensor:
    """[VOCAB, DELTA_COLUMNS] float32: what a token brings to the convolution."""
    return token_inputs(content, KEY_COLUMNS, STATE_WIDTH)


def _begins_anew() -> torch.Tensor:
    """bool [VOCAB], the tokens at which the later heads forget."""
    return torch.arange(VOCAB) % 4 == 1


def delta_gates() -> torch.Tensor:
    """[VOCAB, HEADS] float32: `a` of each token."""
    return torch.where(_begins_anew()[:, None] & _FORGETS, _BEGINS_ANEW, _GOES_ON) - DT_BIAS


def _beta_kinds() -> torch.Tensor:
    """[VOCAB, HEADS] entries of `_BETAS`."""
    return (torch.arange(VOCAB)[:, None] // 2 + torch.arange(HEADS)) % 2


def delta_betas() -> torch.Tensor:
    """[VOCAB, HEADS] float32: `b` of each token, beta before the sigmoid."""
    return _LOGITS[_beta_kinds()]


def delta_position_inputs(positions: int = POSITIONS) -> torch.Tensor:
    """[positions, DELTA_COLUMNS] float32: what its position adds."""
    keys = delta_keys(positions, POSITIONS)
    return position_inputs(POSITIONS, KEY_HEADS, STATE_WIDTH, _KEY, keys)


def delta_conv_weights() -> torch.Tensor:
    """[DELTA_COLUMNS, CONV_WIDTH] float32, the newest token last."""
    return torch.tensor([*[LAST_FOUR] * KEY_COLUMNS, *[NEWEST] * (KEY_COLUMNS + STATE_WIDTH)])


def delta_states(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float32 [n, DELTA_WIDTH]: the state of row `rows[i]` behind its first `lens[i]` tokens."""
    return states_behind(_states_of(content), batch, rows, lens).float().flatten(1)


def _states_of(content: Content) -> OfTokens:
    betas, begins_anew = _BETAS[_beta_kinds()], _begins_anew()
    values = values_of_tokens(content, STATE_WIDTH).view(VOCAB, HEADS, HEAD_WIDTH)
    decays = torch.where(begins_anew[:, None] & _FORGETS, 0.0, 1.0)
    decays = decays[..., None].expand(-1, -1, POSITIONS)

    def states(tokens: torch.Tensor) -> torch.Tensor:
        keys = delta_keys(len(tokens), POSITIONS)
        return states_of_tokens(keys, decays[tokens], betas[tokens], values[tokens])

    return states


def delta_ring(content: Content) -> RingOfLayer:
    """What tokens leave in a ring beside their states."""
    begins_anew = _begins_anew()[:, None] & _FORGETS
    decays = torch.where(begins_anew, 0.0, 1.0).double()[..., None]
    return RingOfLayer(
        _states_of(content),
        decays.expand(-1, -1, POSITIONS),
        torch.where(begins_anew, -_BEGINS_ANEW, 0.0),
        KEY_HEADS,
    )


def delta_conv_rows(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = CONV_WIDTH - 1
) -> torch.Tensor:
    """float32 [n, count, DELTA_COLUMNS]: inputs of the last `count` of the first `lens[i]` tokens
    of row `rows[i]`, the newest last, zeros where there were none."""
    by_token = delta_token_inputs(content)
    by_position = delta_position_inputs(int(lens.max(initial=0)))
    return last_inputs(by_token, by_position, batch, rows, lens, count)


def delta_outputs(content: Content, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, STATE_WIDTH] in `dtype`: the layer's output for each new token."""
    rows, lens = batch.token_rows, batch.positions + 1
    states = delta_states(content, batch, rows, lens).to(dtype)
    seen = delta_conv_rows(content, batch, rows, lens, CONV_WIDTH).to(dtype)[..., :POSITIONS]
    query = unit_queries(seen)
    read = states.view(-1, STATE_WIDTH, POSITIONS) @ query[..., None] * POSITIONS**-0.5
    return normed(read.view(-1, HEADS, HEAD_WIDTH), NORM_EPSILON)
