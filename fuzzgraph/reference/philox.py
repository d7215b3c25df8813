"""Philox4x32-10: random numbers of a counter and a key, by integers alone.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). As a kernel of
sglang has it: one counter for four tokens, in it the row, the place and how many blocks came
before (markov_sample.py `_select_block`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["philox", "uniforms"]

_Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
"""What the two halves of the key grow by in each round."""
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(key: int, *counter: _Words) -> tuple[_Words, ...]:
    """Four words of 32 bits for each counter.

    Args:
        key: 64 bits.
        counter: four arrays of words, which are broadcast.

    >>> [hex(int(word[0])) for word in philox(0, *[np.zeros(1, dtype=np.uint64)] * 4)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    first, second, third, fourth = np.broadcast_arrays(*counter)
    low, high = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        left = first * np.uint64(_MULTIPLIERS[0])
        right = third * np.uint64(_MULTIPLIERS[1])
        first, third = right >> _HALF ^ second ^ np.uint64(low), left >> _HALF ^ fourth
        third = third ^ np.uint64(high)
        second, fourth = right & _LOW, left & _LOW
        low, high = low + _WEYL[0] & 0xFFFFFFFF, high + _WEYL[1] & 0xFFFFFFFF
    return first, second, third, fourth


def uniforms(key: int, count: int, rows: int, steps: int, tokens: int) -> npt.NDArray[np.float64]:
    """[rows, steps, tokens] numbers in (0, 1): (word + 1/2) / 2**32.

    Args:
        count: blocks that came before; the low 32 bits count.
        tokens: a multiple of 4.
    """
    words = philox(
        key,
        np.arange(tokens // 4, dtype=np.uint64)[None, None],
        np.arange(rows, dtype=np.uint64)[:, None, None],
        np.arange(steps, dtype=np.uint64)[None, :, None],
        np.array(count & 0xFFFFFFFF, dtype=np.uint64),
    )
    bits = np.stack(words, -1).reshape(rows, steps, tokens)
    return (bits.astype(np.float64) + 0.5) / 2.0**32
