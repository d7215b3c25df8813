"""Queries and keys of an indexer that selects whole groups, as Qwen's sparse attention has it.

The key of a group is the mean of its tokens' keys, normalised and rotated by the position of its
first token; a query is normalised and rotated by its own. Every number here survives that exactly:
a row's squares add up to 64 times a power of four, so that its norm is a power of two, and
positions rotate by quarter turns, each pair of columns by a digit of the position to the base of 4.

A query has two heads. One puts groups in an order by the digits of their positions, of which each
counts four times as much as the one before. The other counts how many of a group's tokens the
query's token prefers beyond half of them, and one more outweighs all digits. So no two groups of a
query are equal, and a token that is missing in a group, or another one's in its place, shows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, IntArray

__all__ = [
    "GROUP",
    "HEADS",
    "ROTATED",
    "WIDTH",
    "block_scores",
    "normed_keys",
    "query_gain",
    "raw_rows",
    "rotated",
    "rotations",
]

Floats = npt.NDArray[np.float64]

GROUP = 4
"""Tokens of a group: Qwen4-Exp's `indexer_compress_ratio`."""
HEADS = 2
WIDTH = 64
"""Columns of a query or a key: the least that kernels are compiled for."""
ROTATED = 16
"""Of them those that are rotated, the first ones, in pairs of one and the one eight behind."""
_PAIRS = ROTATED // 2
_DIGITS = 5
"""Of a group's number, of which a pair each is rotated; the pair behind them by a token's place in
its group."""
_CONSTANT = ROTATED
_CLASSES = 8
"""Of tokens, which a group's key tells apart at each of its places."""
_TOKENS = _CONSTANT + 1
_QUERY_BALLAST = slice(_TOKENS + GROUP * _CLASSES, _TOKENS + GROUP * _CLASSES + 4)
_KEY_BALLAST = slice(_QUERY_BALLAST.stop, _QUERY_BALLAST.stop + 4)
"""Columns that give rows their norm, and that only one of query and key has."""
_PLACE = 4.0**_DIGITS
"""What a query's pair for places counts, more than all digits together."""
_NORM_OF_QUERIES = 512.0
_NORM_OF_KEYS = 0.5
_GAIN = 32.0
"""By which a query's preferences are multiplied after its norm."""
_CLASS, _PREFERRED, _TURN = 41, 42, 43


def raw_rows(tokens: IntArray, places: IntArray) -> Floats:
    """[n, (HEADS + 1) * WIDTH] an indexer's queries and, behind them, keys, before their norms.

    Args:
        places: [n] of the tokens in their groups.
    """
    return np.hstack([*_raw_queries()[tokens].transpose(1, 0, 2), _raw_keys(tokens, places)])


def query_gain() -> Floats:
    """[WIDTH] what each column of a query is multiplied by after its norm."""
    found = np.ones(WIDTH)
    found[_TOKENS : _QUERY_BALLAST.start] = _GAIN
    return found


def normed_keys(tokens: IntArray, firsts: IntArray) -> Floats:
    """[n, WIDTH] the keys of groups, as they lie in an indexer's cache.

    Args:
        tokens: [n, GROUP] of each group.
        firsts: [n] position of the first one.
    """
    places = np.broadcast_to(np.arange(GROUP), tokens.shape)
    raw = _raw_keys(tokens.ravel(), places.ravel()).reshape(*tokens.shape, WIDTH)
    mean: Floats = raw.mean(1)
    return rotated(mean / _NORM_OF_KEYS, firsts)


def rotations(count: int) -> Floats:
    """[count, ROTATED] cosines and, behind them, sines of each pair, for positions from 0 on."""
    turns = _quarter_turns(np.arange(count)) * (np.pi / 2)
    return np.hstack((np.rint(np.cos(turns)), np.rint(np.sin(turns))))


def rotated(rows: Floats, positions: IntArray) -> Floats:
    """Rows [n, WIDTH] turned by their positions."""
    turns = _quarter_turns(positions) * (np.pi / 2)
    cosines, sines = np.rint(np.cos(turns)), np.rint(np.sin(turns))
    found = rows.copy()
    one, other = rows[:, :_PAIRS], rows[:, _PAIRS:ROTATED]
    found[:, :_PAIRS] = one * cosines - other * sines
    found[:, _PAIRS:ROTATED] = other * cosines + one * sines
    return found


def block_scores(
    tokens: IntArray, positions: IntArray, key_tokens: IntArray, firsts: IntArray
) -> Floats:
    """[T, G] what queries think of groups.

    Args:
        tokens, positions: [T] of the queries.
        key_tokens: [T, G, GROUP] of the groups of each query.
        firsts: [T, G] position of each group's first token.
    """
    rows = np.arange(len(tokens))[:, None]
    order = np.full(firsts.shape, 2 * _PLACE)
    pairs = _query_pairs()[tokens]
    turns = _quarter_turns(firsts) - _quarter_turns(positions)[:, None]
    for pair in range(_DIGITS + 1):
        # A key is the first direction of a pair, turned; a query's products with its four turns.
        one, other = pairs[..., 0, pair], pairs[..., 1, pair]
        products = np.stack((one, other, -one, -other), axis=1)
        order = order + products[rows, turns[..., pair] % 4]
    prefers = _preferences()[tokens[:, None, None], np.arange(GROUP), _classes()[key_tokens]]
    liked = np.maximum(_GAIN * prefers.sum(2) / GROUP / _NORM_OF_KEYS, 0)
    ordered = np.maximum(order / _NORM_OF_QUERIES / _NORM_OF_KEYS, 0)
    found: Floats = (ordered + liked) / WIDTH**0.5
    return found


def _raw_keys(tokens: IntArray, places: IntArray) -> Floats:
    found = np.zeros((len(tokens), WIDTH))
    found[:, : _DIGITS + 1] = 1
    found[:, _CONSTANT] = 1
    found[np.arange(len(tokens)), _TOKENS + _CLASSES * places + _classes()[tokens]] = 1
    # Of a group's mean, in which each token has a quarter.
    squares = _DIGITS + 2 + GROUP * (1 / GROUP) ** 2
    found[:, _KEY_BALLAST] = _ballast(WIDTH * _NORM_OF_KEYS**2 - squares)
    return found


@lru_cache(maxsize=1)
def _raw_queries() -> Floats:
    """[VOCAB, HEADS, WIDTH]"""
    found = np.zeros((VOCAB, HEADS, WIDTH))
    pairs = _query_pairs()
    found[:, 0, : _DIGITS + 1] = pairs[:, 0]
    found[:, 0, _PAIRS : _PAIRS + _DIGITS + 1] = pairs[:, 1]
    found[:, 0, _CONSTANT] = 2 * _PLACE
    preferences = _NORM_OF_QUERIES * _preferences().reshape(VOCAB, -1)
    found[:, 1, _TOKENS : _QUERY_BALLAST.start] = preferences
    for head in range(HEADS):
        squares = float((found[0, head] ** 2).sum())  # of every token alike
        found[:, head, _QUERY_BALLAST] = _ballast(WIDTH * _NORM_OF_QUERIES**2 - squares)
    return found


def _ballast(squares: float) -> Floats:
    """[4] numbers of bfloat16 whose squares add up to this, up to a rounding of the norm."""
    found = np.zeros(4)
    for at in range(len(found)):
        exponent = np.floor(np.log2(squares**0.5)) - 7
        found[at] = np.floor(squares**0.5 / 2**exponent) * 2**exponent
        squares -= found[at] ** 2
    return found


def _quarter_turns(positions: IntArray) -> IntArray:
    """[..., pairs] by how many quarters each pair is turned."""
    groups, places = positions // GROUP, positions % GROUP
    digits = groups[..., None] // GROUP ** np.arange(_DIGITS) % GROUP
    rest = np.zeros((*digits.shape[:-1], _PAIRS - _DIGITS), dtype=np.int64)
    rest[..., 0] = places
    found: IntArray = np.concatenate((digits, rest), axis=-1)
    return found


@lru_cache(maxsize=1)
def _query_pairs() -> Floats:
    """[VOCAB, 2, digits and places] a query's columns of each pair: a digit's values are -3, -1, 1
    and 3 times what it counts, in an order of the token's own."""
    found = np.zeros((VOCAB, 2, _DIGITS + 1))
    turns = _hashed(_TURN, (VOCAB, _DIGITS + 1))
    swapped = turns & 1 == 1
    signs = np.where(np.stack((turns >> 1, turns >> 2), axis=1) & 1, -1.0, 1.0)
    counts = 4.0 ** np.arange(_DIGITS)
    found[:, 0, :_DIGITS] = np.where(swapped[:, :_DIGITS], 1, 3) * counts
    found[:, 1, :_DIGITS] = np.where(swapped[:, :_DIGITS], 3, 1) * counts
    found[..., _DIGITS] = _PLACE
    result: Floats = found * signs
    return result


@lru_cache(maxsize=1)
def _preferences() -> Floats:
    """[VOCAB, GROUP, classes] 1 where a query's token prefers tokens of a class at a place, else
    -1."""
    return np.where(_hashed(_PREFERRED, (VOCAB, GROUP, _CLASSES)) & 1, -1.0, 1.0)


@lru_cache(maxsize=1)
def _classes() -> IntArray:
    """[VOCAB] the class of each token."""
    return _hashed(_CLASS, (VOCAB,)) % _CLASSES


def _hashed(seed: int, shape: tuple[int, ...]) -> IntArray:
    counters = np.arange(np.prod(shape), dtype=np.uint64).reshape(shape)
    found: IntArray = (hash_counters(seed, counters) >> np.uint64(40)).astype(np.int64)
    return found
