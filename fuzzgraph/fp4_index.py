"""What an indexer that scores in FP4 has as queries and keys: DeepSeek V4.1's.

A number of FP4 has one bit behind its first, too few for what `Content.index_queries` holds. So a
query has several heads, each with a weight of its own. One says which tokens' keys it prefers. The
others take one octal digit of a key's position each, and put the eight digits in an order that
follows from the query's position. A digit counts 16 times as much as the next, whose numbers add up
to less than the least difference between two of its own: no two keys of a query are equal. All
numbers are exact in FP4 with one scale for 32 columns, all scores in float32.

A layer that selects among candidates has scores in bfloat16, with eight bits. There a key's third
digit and whether its token is preferred choose one of 16 powers of eight, and the first two digits
what it is multiplied by, which has seven bits. Heads are two for each power; those of another power
than the key's own have no score. Positions from 512 on have the scores of lower ones.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, IntArray

__all__ = [
    "CANDIDATE_HEADS",
    "CANDIDATE_POSITIONS",
    "HALF",
    "HEADS",
    "candidate_heads",
    "candidate_scores",
    "candidate_weights",
    "head_weights",
    "key_places",
    "key_tokens",
    "query_heads",
    "scores",
]

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
_POWERS = 2 * _BASE
CANDIDATE_HEADS = 2 * _POWERS
"""Of a query of a layer that selects among candidates."""
CANDIDATE_POSITIONS = _BASE**3
"""Positions whose keys such a query tells apart."""
_BASED = 1
"""What stands before the digits, so that no two powers have a score in common."""
_COARSE = 16
"""What the second digit counts beside the first."""
_NOT_OF_PLACE, _NOT_OF_TOKEN = -6, -12
"""More than a head's digits together, for keys of another power."""
_SEED_OF_CANDIDATES = 1 << 20
"""Added to a query's position, so that this layer has other orders than the one before."""

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


def candidate_heads(tokens: IntArray, positions: IntArray) -> Floats:
    """[n, CANDIDATE_HEADS, 2 * HALF] the queries of a layer that selects among candidates."""
    found = np.zeros((len(tokens), 2, _POWERS, 2 * HALF))
    orders, powers = _candidate_orders(positions), np.arange(_POWERS)
    kept = _preferred()[tokens][:, None, :] == (powers // _BASE)[None, :, None]
    found[..., :VOCAB] = np.where(kept, 0, _NOT_OF_TOKEN)[:, None]
    own = _ranks(positions)[:, None, :] == (powers % _BASE)[None, :, None]
    for head, (digit, based) in enumerate(((1, _BASED), (0, 0))):
        found[:, head, :, _columns_of(digit)] = orders[:, None, digit]
        found[:, head, :, _columns_of(2)] = np.where(own, based, _NOT_OF_PLACE)
    return found.reshape(len(tokens), CANDIDATE_HEADS, 2 * HALF)


def candidate_weights() -> Floats:
    """[CANDIDATE_HEADS] what each head of such a query counts."""
    powers = float(_BASE) ** np.arange(_POWERS)
    return np.concatenate((_COARSE * powers, powers))


def candidate_scores(
    tokens: IntArray, positions: IntArray, key_tokens: IntArray, key_positions: IntArray
) -> Floats:
    """[T, L] what queries of a layer that selects among candidates think of keys; of `scores`."""
    rows = np.arange(len(tokens))[:, None]
    orders, digits = _candidate_orders(positions), _digits(key_positions)
    power = _BASE * _preferred()[tokens[:, None], key_tokens]
    power = power + _ranks(positions)[rows, digits[..., 2]]
    found = _COARSE * (_BASED + orders[rows, 1, digits[..., 1]]) + orders[rows, 0, digits[..., 0]]
    result: Floats = found * float(_BASE) ** power
    return result


def _columns_of(digit: int) -> slice:
    return slice(HALF + _BASE * digit, HALF + _BASE * (digit + 1))


def _candidate_orders(positions: IntArray) -> Floats:
    return _orders(positions + _SEED_OF_CANDIDATES)


def _ranks(positions: IntArray) -> IntArray:
    """[n, 8] which of eight powers each value of the third digit has, for queries at positions."""
    found: IntArray = np.searchsorted(_MAGNITUDES, _candidate_orders(positions)[:, 2])
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
