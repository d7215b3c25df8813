"""What a short convolution between two gates computes, as LFM2 has it in place of attention.

With B, C and x of a token by one projection, `h = B x` goes to a convolution over the last three
tokens, a weight for each column and tap, and `y = C conv(h)` to another projection (Liquid AI 2025,
"LFM2 Technical Report", gated short convolution blocks; transformers modeling_lfm2.py
`Lfm2ShortConv.slow_forward`). There is no activation and no recurrence: what is kept of a request
is h of its last two tokens. The model's numbers are exact in half precision: x are multiples of
1/16 up to 2, gates and weights powers of 2 with a sign, in an order of their own for each token and
column, so that a column, a tap, a gate or a token in the place of another one shows.
"""

from __future__ import annotations

import torch

from fuzzgraph.content import Content
from fuzzgraph.recurrent_layers.short_convolution import last_token_inputs
from fuzzgraph.world import VOCAB, Batch, IntArray

GATED_COLUMNS = 32
"""Of x, of both gates and of an output."""
GATED_TAPS = 3
"""Tokens that the convolution sees, its own included: `conv_L_cache` of every LFM2."""
_BEFORE = (1.0, -2.0, 0.5, -1.0, 2.0)
_BEHIND = (2.0, 1.0, -1.0, 0.5, -2.0, -0.5, 4.0)
_TAPS = (0.5, -1.0, 2.0, 1.0, -0.5)


def _drawn(numbers: tuple[float, ...], by_row: int, by_column: int, rows: int) -> torch.Tensor:
    """[rows, GATED_COLUMNS] float32 entries of `numbers`, in an order that both decide."""
    places = by_row * torch.arange(rows)[:, None] + by_column * torch.arange(GATED_COLUMNS)
    return torch.tensor(numbers)[places % len(numbers)]


def gates_before() -> torch.Tensor:
    """[VOCAB, GATED_COLUMNS] float32: B of each token."""
    return _drawn(_BEFORE, 2, 3, VOCAB)


def gates_behind() -> torch.Tensor:
    """[VOCAB, GATED_COLUMNS] float32: C of each token."""
    return _drawn(_BEHIND, 3, 5, VOCAB)


def values_between(content: Content) -> torch.Tensor:
    """[VOCAB, GATED_COLUMNS] float32: x of each token."""
    added = content.weights["state_in"]
    return added.repeat(1, GATED_COLUMNS // added.shape[1])


def tap_weights() -> torch.Tensor:
    """[GATED_COLUMNS, GATED_TAPS] float32, the newest token last."""
    return _drawn(_TAPS, 2, 1, GATED_TAPS).T.contiguous()


def gated_conv_rows(
    content: Content, batch: Batch, rows: IntArray, lens: IntArray, count: int = GATED_TAPS - 1
) -> torch.Tensor:
    """float32 [n, count, GATED_COLUMNS]: B x of the last `count` of the first `lens[i]` tokens of
    row `rows[i]`, the newest last, zeros where there were none."""
    by_token = gates_before() * values_between(content)
    return last_token_inputs(by_token, batch, rows, lens, count)


def gated_conv_outputs(content: Content, batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, GATED_COLUMNS] in `dtype`: C conv(B x) of each new token."""
    rows, lens = batch.token_rows, batch.positions + 1
    seen = gated_conv_rows(content, batch, rows, lens, GATED_TAPS).to(dtype)
    mixed = (seen * tap_weights().T.to(dtype)).sum(1)
    return mixed * gates_behind()[torch.from_numpy(batch.input_ids)].to(dtype)
