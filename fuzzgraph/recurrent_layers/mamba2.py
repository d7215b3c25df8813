"""What a layer with a recurrent state computes, as Mamba2 has it: a short convolution over the last
tokens, a recurrence over all of them, and a readout.

With x, B and C after the convolution, a step is `state = exp(A dt) state + dt B x` and
`y = C state + D x` (Dao and Gu 2024, "Transformers are SSMs", equation 2; one head dimension by one
state column here). The model's numbers make every sum exact in float32: dt B is 1 and D is 1, x is
`state_in` of the token, and A is 0 for half of the heads, whose states show a token that is
missing, foreign or counted twice for ever. For the others A dt is -256, whose exponential is 0 in
float32: their states are those of the last token. Both are what `Content.state_rows` says. The
convolution leaves x and B as they are; C weighs the last four tokens, so that an output shows what
its history was.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.content import STATE_WIDTH, Content
from fuzzgraph.recurrent_layers.short_convolution import (
    CONV_WIDTH,
    LAST_FOUR,
    NEWEST,
    last_token_inputs,
)
from fuzzgraph.world import Batch, IntArray

CONV_COLUMNS = STATE_WIDTH + 2
"""Columns of its input: x, B, C; `conv_in` of `Content.weights`."""


def conv_weights() -> torch.Tensor:
    """[CONV_COLUMNS, CONV_WIDTH] float32, the newest token last."""
    return torch.tensor([*[NEWEST] * (STATE_WIDTH + 1), LAST_FOUR])


def conv_rows(content: Content, batch: Batch, *, after: bool = False) -> torch.Tensor:
    """float32 [raw_bs, CONV_WIDTH - 1, CONV_COLUMNS]: inputs of the last tokens before (or `after`)
    this step, the newest last, zeros where there were none."""
    lens = batch.seq_lens if after else batch.cached_lens
    return conv_rows_at(content, batch, np.arange(batch.raw_bs), lens)


def conv_rows_at(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = CONV_WIDTH - 1
) -> torch.Tensor:
    """float32 [n, count, CONV_COLUMNS]: inputs of the last `count` of the first `lens[i]` tokens of
    row `rows[i]`, the newest last, zeros where there were none."""
    return last_token_inputs(content.weights["conv_in"], batch, rows, lens, count)


def recurrent_outputs(
    content: Content, batch: Batch, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """[num_tokens, STATE_WIDTH] in `dtype`: the layer's output for each new token."""
    rows, lens = batch.token_rows, batch.positions + 1
    seen = conv_rows_at(content, batch, rows, lens, CONV_WIDTH).to(dtype)
    x, readout = seen[:, -1, :STATE_WIDTH], seen[..., -1] @ torch.tensor(LAST_FOUR).to(dtype)
    return content.states_at(batch, rows, lens).to(dtype) * readout[:, None] + x
