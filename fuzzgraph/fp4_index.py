"""What an indexer that scores in FP4 has as queries and keys: DeepSeek V4.1's.

A number of FP4 has one bit behind its first, too few for what `Content.index_queries` holds. So a
query has several heads, each with a weight of its own. One says which tokens' keys it prefers. The
others take one octal digit of a key's position each, and put the eight digits in an order that
follows from the query's position. A digit counts 16 times as much as the next, whose numbers add up
to less than the least difference between two of its own: no two keys of a query are equal. All
numbers are exact in FP4 with one scale for 32 columns, all scores in float32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, IntArray

__all__ = ["HALF", "HEADS", "head_weights", "key_places", "key_tokens", "query_heads", "scores"]

HALF = 64
"""Columns of a query or a key that follow from its token; as many from its position."""
HEADS = 8
"""One for tokens, one for each digit; the others have no weight."""
_BASE, _DIGITS = 8, 5
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Of FP4 (e2m1)."""
_TOKENS_WEIGH = 8.0
"""More than all digits together."""
_NEXT_DIGIT = 1 / 16
_PREFERRED, _ORDER = 31, 32

Floats = npt.NDArray[np.float64]


def key_tokens() -> Floats:
    """[VOCAB, HALF] a key's columns by its token."""
    return np.eye(VOCAB, HALF)


def key_places(positions: IntArray) -> Floats:
    """[n, HALF] a key's columns by its position, which is that of its group's first token."""
    found = np.zeros((len(positions), HALF))
    for digit, value in enumerate(_digits(positions).T):
        found[np.arange(len(positions)), _BASE * digit + value] = 1
    return found


def query_heads(tokens: IntArray, positions: IntArray) -> Floats:
    """[n, HEADS, 2 * HALF] the queries of tokens at positions."""
    found = np.zeros((len(tokens), HEADS, 2 * HALF))
    found[:, 0, :VOCAB] = _preferred()[tokens]
    orders = _orders(positions)
    for digit in range(_DIGITS):
        start = HALF + _BASE * digit
        found[:, 1 + digit, start : start + _BASE] = orders[:, digit]
    return found


def head_weights() -> Floats:
    """[HEADS] what each head counts."""
    digits = [_NEXT_DIGIT**digit for digit in range(_DIGITS)]
    return np.array([_TOKENS_WEIGH, *digits, *[0.0] * (HEADS - 1 - _DIGITS)])


def scores(
    tokens: IntArray, positions: IntArray, key_tokens: IntArray, key_positions: IntArray
) -> Floats:
    """[T, L] what queries think of keys.

    Args:
        tokens, positions: [T] of the queries.
        key_tokens, key_positions: [T, L] of the keys of each query.
    """
    found = _TOKENS_WEIGH * _preferred()[tokens[:, None], key_tokens]
    orders, digits = _orders(positions), _digits(key_positions)
    rows = np.arange(len(tokens))[:, None]
    for digit in range(_DIGITS):
        found = found + orders[rows, digit, digits[..., digit]] * _NEXT_DIGIT**digit
    return found


def _digits(positions: IntArray) -> IntArray:
    """[..., digits] of positions, the smallest first."""
    powers: IntArray = _BASE ** np.arange(_DIGITS)
    return positions[..., None] // powers % _BASE


@lru_cache(maxsize=1)
def _preferred() -> npt.NDArray[Any]:
    """[VOCAB, VOCAB] 1 where a query's token prefers keys of a token, else 0."""
    counters = np.arange(VOCAB)[:, None] * VOCAB + np.arange(VOCAB)
    hashed = hash_counters(_PREFERRED, counters.astype(np.uint64))
    return (hashed >> np.uint64(40)).astype(np.int64) % 2


def _orders(positions: IntArray) -> Floats:
    """[n, digits, 8] what each value of a digit counts for queries at these positions."""
    values = np.arange(_DIGITS * _BASE).reshape(_DIGITS, _BASE)
    counters = positions[:, None, None] * (1 << 24) + values
    order = hash_counters(_ORDER, counters.astype(np.uint64)).argsort(axis=2, kind="stable")
    found: Floats = _MAGNITUDES[order]
    return found
