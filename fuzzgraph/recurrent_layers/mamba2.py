"""What a layer with a recurrent state computes, as Mamba2 has it: a short convolution over the last
tokens, a recurrence over all of them, and a readout.

With x, B and C after the convolution, a step is `state = exp(A dt) state + dt x B^T` and
`y = state C + D x` (Dao and Gu 2024, "Transformers are SSMs", equation 2), a state having a row for
each number of x and a column for each of B and C. The model's numbers make every sum exact in
float32: dt B is 1 in one column, the token's own where there are several, and 0 in the others; D is
1, x is `Content.state_inputs` of the token, and A is 0 for half of the heads, whose states show a
token that is missing, foreign or counted twice for ever. For the others A dt is -256, whose
exponential is 0 in float32: their states are those of the last token. With one column both are what
`Content.state_rows` says. The convolution leaves x and B as they are; C weighs the last four
tokens, so that an output shows what its history was.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import STATE_WIDTH, TIME_STEP, Content
from fuzzgraph.recurrent_layers.linear_heads import LinearHeads
from fuzzgraph.recurrent_layers.short_convolution import (
    CONV_WIDTH,
    LAST_FOUR,
    NEWEST,
    last_token_inputs,
)
from fuzzgraph.world import VOCAB, Batch, IntArray

NARROW = LinearHeads(keys=1, values=2, key_width=1, value_width=STATE_WIDTH // 2)
"""C and B take the places of queries and keys, x that of values."""
CONV_COLUMNS = NARROW.columns
_NEXT_COLUMN = 37
"""How far the column of a token lies behind that of the one before. It is odd, so that none have
the same one of a power of 2 that is no less than VOCAB."""


def scan_heads(config: EngineConfig) -> LinearHeads:
    """Those of the config's layers. Wide ones have half as many rows of a state as columns: 64 of
    128, as Nemotron-H and the least Falcon-H1 have them, or 128 of 256, as the large ones."""
    wide = config.linear_head_dim
    return LinearHeads(NARROW.keys, NARROW.values, wide, wide // 2) if wide else NARROW


def _columns_of_tokens(heads: LinearHeads) -> torch.Tensor:
    """int64 [VOCAB] the column of a state that a token adds to."""
    return torch.arange(VOCAB) * _NEXT_COLUMN % heads.key_width


@lru_cache(maxsize=64)
def conv_inputs(content: Content) -> torch.Tensor:
    """[VOCAB, columns] float32: x, B, C that a token brings to the convolution."""
    heads = scan_heads(content.config)
    units = torch.eye(heads.key_width)[_columns_of_tokens(heads)] / TIME_STEP
    added, weighed = content.state_inputs(heads.output), content.readout_inputs(heads.key_width)
    return torch.cat((added, units, weighed), dim=1)


def conv_weights(heads: LinearHeads = NARROW) -> torch.Tensor:
    """[columns, CONV_WIDTH] float32, the newest token last."""
    as_they_are = heads.columns - heads.key_columns
    return torch.tensor([*[NEWEST] * as_they_are, *[LAST_FOUR] * heads.key_columns])


def conv_rows(content: Content, batch: Batch, *, after: bool = False) -> torch.Tensor:
    """float32 [raw_bs, CONV_WIDTH - 1, columns]: inputs of the last tokens before (or `after`)
    this step, the newest last, zeros where there were none."""
    lens = batch.seq_lens if after else batch.cached_lens
    return conv_rows_at(content, batch, np.arange(batch.raw_bs), lens)


def conv_rows_at(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = CONV_WIDTH - 1
) -> torch.Tensor:
    """float32 [n, count, columns]: inputs of the last `count` of the first `lens[i]` tokens of row
    `rows[i]`, the newest last, zeros where there were none."""
    return last_token_inputs(conv_inputs(content), batch, rows, lens, count)


def scan_states(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    """float32 [n, numbers]: the state of row `rows[i]` behind its first `lens[i]` tokens."""
    heads = scan_heads(content.config)
    if heads == NARROW:
        return content.states_at(batch, rows, lens)
    return _wide_states(content, batch, rows, lens, heads).flatten(1)


def _wide_states(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, heads: LinearHeads
) -> torch.Tensor:
    """float32 [n, heads, rows, columns] of a state."""
    added = content.state_inputs(heads.output).view(VOCAB, heads.values, heads.value_width)
    times = _times_seen(batch, rows, lens, heads)
    by_token = (times[..., None] * added).permute(0, 2, 3, 1)
    states = by_token.new_zeros(len(rows), *heads.state)
    return states.index_add_(3, _columns_of_tokens(heads), by_token)


def _times_seen(batch: Batch, rows: IntArray, lens: IntArray, heads: LinearHeads) -> torch.Tensor:
    """float32 [n, VOCAB, heads]: how often each token counts in a state: the later half of the
    heads remember the last one alone."""
    tokens = torch.from_numpy(batch.kv_tokens.values)
    seen = torch.nn.functional.one_hot(tokens, VOCAB).float()
    sums = torch.nn.functional.pad(seen.cumsum(0), (0, 0, 1, 0))
    starts = batch.kv_tokens.offsets[rows]
    stops = torch.from_numpy(starts + lens)
    of_all = sums[stops] - sums[torch.from_numpy(starts)]
    of_last = sums[stops] - sums[torch.from_numpy(starts + np.maximum(lens - 1, 0))]
    kept = heads.values // 2
    return torch.stack([of_all] * kept + [of_last] * (heads.values - kept), dim=2)


def recurrent_outputs(
    content: Content, batch: Batch, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """[num_tokens, columns] in `dtype`: the layer's output for each new token."""
    heads = scan_heads(content.config)
    rows, lens = batch.token_rows, batch.positions + 1
    seen = conv_rows_at(content, batch, rows, lens, CONV_WIDTH).to(dtype)
    x, weighed = seen[:, -1, : heads.output], seen[..., -heads.key_width :]
    readout = (weighed * torch.tensor(LAST_FOUR).to(dtype)[:, None]).sum(1)
    states = scan_states(content, batch, rows, lens).to(dtype)
    read = states.view(len(rows), heads.output, heads.key_width) @ readout[..., None]
    return read.squeeze(-1) + x
