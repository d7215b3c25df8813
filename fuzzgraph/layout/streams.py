"""Which token stands at which position of which request, hashed from the case's seed."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from fuzzgraph.case import Case
from fuzzgraph.content import token_ids
from fuzzgraph.world import IntArray

_SHARED_PREFIX = 1 << 21
"""Stands for "any request" where prefixes share tokens; above every request id."""
ENCODER = 1 << 22
MROPE = 1 << 23
BRANCHES = 1 << 24
"""Each names a stream of tokens of its own, when added to a request id."""


def token_streams(
    case: Case, lengths: dict[int, int], prefix: int, salt: int
) -> dict[int, IntArray]:
    """Token ids of the first `lengths[request]` positions of each request, hashed in one go.

    Requests agree on the first `prefix` positions. `salt` picks the stream.
    """
    if not lengths:
        return {}
    offsets = [0, *accumulate(lengths.values())]
    counts = ints(list(lengths.values()))
    positions = np.arange(offsets[-1]) - np.repeat(ints(offsets[:-1]), counts)
    names = np.repeat(ints(list(lengths)), counts)
    if prefix:
        names[positions < prefix] = _SHARED_PREFIX
    tokens = token_ids(case.seed, names + salt, positions)
    return {
        name: tokens[start:stop]
        for name, start, stop in zip(lengths, offsets[:-1], offsets[1:], strict=True)
    }


def longest_lens(case: Case) -> tuple[dict[int, int], dict[int, int]]:
    """Per request: the largest seq_len of the case, and its encoder length."""
    found: dict[int, int] = {}
    encoder: dict[int, int] = {}
    for step in case.steps:
        for row in step.rows:
            if row.seq_len > found.get(row.request, 0):
                found[row.request] = row.seq_len
            encoder[row.request] = max(row.encoder_len, encoder.get(row.request, 0))
    return found, encoder


def ints(values: list[int]) -> IntArray:
    """int64 array of these numbers."""
    return np.array(values, dtype=np.int64)
