"""What tokens of the delta rule leave in a ring beside their state, for a later step to replay.

A step is `state = decay state; state = state + delta key^T` with
`delta = beta (value - decay state key)`: so the state behind some tokens follows from one before
them and from the delta, the key and the logarithm of the decay of each token between. Source:
sglang fused_recurrent_linear_replayssm.py, which keeps just these (`d_cache`, `k_cache`,
`g_cache`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.recurrent_layers.delta_recurrence import OfTokens
from fuzzgraph.recurrent_layers.queries_keys_values import delta_keys
from fuzzgraph.world import Batch, IntArray


@dataclass(frozen=True, slots=True)
class RingOfLayer:
    """What one layer of the delta rule brings to its ring."""

    states: OfTokens
    decays: torch.Tensor
    """float64 [VOCAB, heads, channels]."""
    gates: torch.Tensor
    """float32 [VOCAB, heads], or [VOCAB, heads, channels]: logarithms of the decays."""
    key_heads: int

    def deltas(
        self, batch: Batch, rows: IntArray, ends: IntArray, depths: IntArray, room: int
    ) -> torch.Tensor:
        """float32 [n, heads, room, columns] of the last `depths[i]` of the first `ends[i]` tokens
        of row `rows[i]`, in order; NaN behind them."""
        heads, channels = self.decays.shape[1:]
        columns = self.states(torch.zeros(0, dtype=torch.int64)).shape[2]
        found = torch.full((len(rows), heads, room, columns), torch.nan)
        for number, (row, end, depth) in enumerate(zip(rows, ends, depths, strict=True)):
            if depth:
                tokens = torch.from_numpy(batch.kv_tokens.row(row)[:end])
                states, keys = self.states(tokens), delta_keys(int(end), channels)
                for place, at in enumerate(range(end - depth, end)):
                    key = keys[at]
                    decayed = self.decays[tokens[at], :, key, None] * states[at][:, :, key]
                    found[number, :, place] = states[at + 1][:, :, key] - decayed
        return found

    def keys(
        self, batch: Batch, rows: IntArray, ends: IntArray, depths: IntArray, room: int
    ) -> torch.Tensor:
        """float32 [n, key_heads, room, channels], likewise."""
        channels = self.decays.shape[2]
        found = torch.full((len(rows), self.key_heads, room, channels), torch.nan)
        for number, (end, depth) in enumerate(zip(ends, depths, strict=True)):
            units = torch.eye(channels)[delta_keys(int(end), channels)[end - depth :]]
            found[number, :, :depth] = units
        return found

    def logs(
        self, batch: Batch, rows: IntArray, ends: IntArray, depths: IntArray, room: int
    ) -> torch.Tensor:
        """float32 [n, heads, room] or [n, heads, room, channels], likewise."""
        heads, *channels = self.gates.shape[1:]
        found = torch.full((len(rows), heads, room, *channels), torch.nan)
        for number, (row, end, depth) in enumerate(zip(rows, ends, depths, strict=True)):
            tokens = torch.from_numpy(batch.kv_tokens.row(row)[end - depth : end])
            found[number, :, :depth] = self.gates[tokens].transpose(0, 1)
        return found
