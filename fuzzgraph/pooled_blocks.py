"""Blocks of keys that a layer's own queries select by means of keys, as MiniCPM's attention does.

A pooled key is the mean of consecutive keys, at two levels: the finer one has a key for every
quarter of a block, of half a block's keys each, the coarser one keys of four times as many, four
times as far apart. A block is as good as the best finer key that begins or ends in it. Source:
sglang 0.5.19 to 0.5.23, minicpm/sparse_utils.py and fuse_kernel.py; MiniCPM-SALA's blocks have 64
keys, here they have few.

Scores are logits of the layer itself, so that what tells blocks apart must leave every key a weight
that shows. All query heads of a KV head think the same of a pooled key, and other things of single
ones. One half of a block bears its number, and outweighs all else by as much as tokens may differ,
so that the finer key of just this half is its block's best: of these no two have equal scores,
since a preferred token more outweighs all numbers, and numbers are in an order. They are further
apart than a score is rounded. Which half it is differs from block to block, so that a score of the
key before or behind belongs to another block somewhere. Pooled keys are exact in every dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.config_rules import POOLED_BLOCKS
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, IntArray

__all__ = ["FIRST_BLOCKS", "NEWEST_BLOCKS", "Level", "levels", "overlay_places", "overlay_tokens"]

Floats = npt.NDArray[np.float64]

FIRST_BLOCKS = 1
"""That a row always selects, from its first key on."""
NEWEST_BLOCKS = 2
"""That a row always selects: that of its newest key, and the one before (a window of one block)."""
_CLASSES = 8
"""Of tokens, which keys tell apart."""
_NUMBERS = slice(_CLASSES, _CLASSES + POOLED_BLOCKS)
_BEST = _NUMBERS.stop
_TURNS = slice(_BEST + 1, _BEST + 4)
_PATTERNS = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
"""By place: a mean over four places from an even one on is 0."""
_HALVES = np.array([0, 1, 2, 1])
"""Quarter of a block with which its best half begins, by the block's number: no half that ends a
block lies beside one that begins the next, which one finer key would hold together."""
_UNIT = 1 / 16
_CLASS, _PREFERRED, _ORDER = 51, 52, 53


@dataclass(frozen=True, slots=True)
class Level:
    """Pooled keys of one level."""

    size: int
    """Keys of which each is the mean."""
    stride: int
    """Keys from one to the next."""

    def count(self, length: int) -> int:
        """Pooled keys of a row of so many keys: those whose keys are all there.

        >>> [Level(4, 2).count(length) for length in (3, 4, 5, 6)]
        [0, 1, 1, 2]
        """
        return max(0, (length - self.size) // self.stride + 1)


def levels(config: EngineConfig) -> tuple[Level, Level]:
    """The finer level and the coarser one (sglang minicpm/backend.py, `k1_kernel_size` to
    `k2_kernel_stride`)."""
    stride = config.pooled_block // 4
    return Level(2 * stride, stride), Level(8 * stride, 4 * stride)


def overlay_tokens(query: Floats, key: Floats, block: int) -> None:
    """Give a token's part of queries and keys what tells blocks apart, in place.

    Args:
        query: [VOCAB, KV heads, query heads of each, columns]; what turns with places stays.
        key: [VOCAB, KV heads, columns]; what no query looks at stays, as whole numbers.
        block: keys of one.
    """
    pooled = block // 2
    preferred = _hashed(_PREFERRED, (VOCAB, query.shape[1], _CLASSES)) & 1
    _clear_queries(query)
    # A pooled key in which one token more is preferred is better than any by its number.
    query[..., :_CLASSES] = pooled * POOLED_BLOCKS * _UNIT * preferred[:, :, None]
    query[..., _BEST] = (pooled * POOLED_BLOCKS + POOLED_BLOCKS // 2) * _UNIT
    _exact_means(key)
    key[np.arange(VOCAB), :, _hashed(_CLASS, (VOCAB,)) % _CLASSES] = 1


def overlay_places(query: Floats, key: Floats, block: int) -> None:
    """The same of a place's part, in whose shapes places stand first."""
    places = np.arange(len(query))
    numbers, inside = places // block, places % block
    _clear_queries(query)
    query[..., _NUMBERS] = _UNIT * _orders(*query.shape[:2])[:, :, None]
    first = _HALVES[numbers % len(_HALVES)] * (block // 4)
    best = (inside >= first) & (inside < first + block // 2)
    _exact_means(key)
    key[..., _BEST] = np.where(best, 1, -1)[:, None]
    key[..., _TURNS] = _PATTERNS[:, places % 4].T[:, None]
    numbered = np.flatnonzero(best & (numbers < POOLED_BLOCKS))
    key[numbered, :, _NUMBERS.start + numbers[numbered]] = 1


def _clear_queries(query: Floats) -> None:
    query[..., : _TURNS.start] = 0
    query[..., _TURNS.stop :] = 0


def _exact_means(key: Floats) -> None:
    # Whole numbers have means that every dtype holds as they are: kernels of Triton cut bits off on
    # a CPU where they round on a GPU.
    np.rint(key, out=key)
    key[..., : _TURNS.stop] = 0


@lru_cache(maxsize=8)
def _orders(places: int, heads: int) -> IntArray:
    """[places, heads, POOLED_BLOCKS] the numbers of blocks in an order of each place and head."""
    found: IntArray = _hashed(_ORDER, (places, heads, POOLED_BLOCKS)).argsort(-1, kind="stable")
    return found


def _hashed(seed: int, shape: tuple[int, ...]) -> IntArray:
    # Neither depends on how many heads or places there are.
    index = np.indices(shape).astype(np.uint64)
    strides = (1 << 24, 1 << 12, 1)[-len(shape) :]
    counters = sum(part * np.uint64(stride) for part, stride in zip(index, strides, strict=True))
    bits = hash_counters(seed, np.asarray(counters, dtype=np.uint64)) >> np.uint64(40)
    found: IntArray = bits.astype(np.int64)
    return found
