"""Experts whose weights are FP8 or INT8: what a checkpoint holds, and what tokens bring to them.

A weight is a small number times a scale: one scale for each block of rows and columns
(DeepSeek-AI 2024, "DeepSeek-V3", section 3.3.2), for each row, or for each matrix. Engines quantise
what the two products take as well: by groups of columns or by the whole row, with a scale that
makes the largest number of these the largest of the dtype, or by one scale of the checkpoint.

All numbers are chosen so that nothing of this rounds. So the truth is that of the weights alone,
and its tolerance as narrow as without quantisation:

- scales of weights are powers of two, and what they scale has at most four significant bits;
- in each group of columns a token has one number that is the dtype's largest times a power of two,
  and larger than what attention gives. All others of its own are powers of two or zero;
- before the activation gates are 16, 0 or -16, of which silu makes 16, 0 and less than the dtype
  can show. So what the second product takes is 16 times what stands beside the gate, and in each
  group of it one number is the largest as above.

The powers of two differ from token to token, group to group, row to row and expert to expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import torch

from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH, OWN, quarters
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, IntArray

GROUP = 32
"""Columns, and rows, that share a scale where blocks do; fewer would be no step of a product of
FP8 (Triton's tl.dot)."""
INNER = 2 * GROUP
"""Columns between the two products of an expert."""
_LARGEST_AT = (0, GROUP)
"""Columns with the largest number of a group."""
_ORDINARY = OWN - len(_LARGEST_AT)
"""Columns of a token's own beside them."""
_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_LARGEST = {"fp8": 448.0 / 128.0, "int8": 127.0 / 32.0}
"""The dtype's largest number times a power of two; more than attention gives."""
_GATE = 16.0
_PASSED = (1, -1, 2, -2, 4, -4, 0, 1)
"""What a row passes on, before its activation in sixteenths."""
_SMALLEST: Mapping[str, float] = MappingProxyType({"gate": 0.25, "up": 2.0**-6, "down": 2.0**-4})
"""The least scale of a product's weights."""
_BOUND = 96.0
"""More than any number that an expert gives."""
Matrix = torch.Tensor


@dataclass(frozen=True, slots=True)
class Quantised:
    """The weights of one matrix of one expert."""

    weight: torch.Tensor
    """[rows, columns] in the dtype of the checkpoint."""
    scale: torch.Tensor
    """float32 [rows / GROUP, columns / GROUP] of blocks, [rows, 1] of rows, [] of the matrix."""

    def whole(self) -> torch.Tensor:
        """float64 [rows, columns] what they stand for."""
        return self.weight.double() * _of_numbers(self.scale.double())


def _of_numbers(scale: torch.Tensor) -> torch.Tensor:
    """Scales as they are multiplied with: one for each number where they are those of blocks."""
    if scale.dim() and scale.shape[1] > 1:
        return scale.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    return scale


def dtype_of(kind: str) -> torch.dtype:
    """What the weights of a kind are stored in."""
    return _DTYPES[kind.partition("_")[0]]


def largest_result() -> float:
    """More than any number that an expert gives."""
    return _BOUND


def column_of_id(token: int) -> int:
    """The column that is 1 for a token: those behind the first group make room for its largest."""
    first = 1 + _ORDINARY
    return first + token if first + token < GROUP else first + token + 1


def quantised_rows(kind: str) -> torch.Tensor:
    """[VOCAB, EXPERT_WIDTH - ATTENDED] float32: what each token brings to its experts."""
    found = torch.zeros(VOCAB, EXPERT_WIDTH - ATTENDED)
    found[:, 1 : 1 + _ORDINARY] = 4 * quarters(11_000, VOCAB, _ORDINARY)
    for token in range(VOCAB):
        found[token, column_of_id(token)] = 1.0
        for column, power in zip(_LARGEST_AT, _powers(kind, token), strict=True):
            found[token, column] = _largest(kind) * 2.0**power
    return found


def _powers(kind: str, token: int) -> tuple[int, int]:
    """By how much the largest number of each group of a token differs; not at all where INT8 holds
    both, for half of its largest number is no whole one."""
    first = token % 3
    return first, first if kind.startswith("int8") else token // 3 % 3


def _largest(kind: str) -> float:
    return _LARGEST[kind.partition("_")[0]]


@lru_cache(maxsize=512)
def gates_and_ups(kind: str, expert: int) -> tuple[Quantised, Quantised]:
    """W1 and W3, [INNER, EXPERT_WIDTH] each."""
    tokens = quantised_rows(kind)
    gates, ups = _drawn((_GATE, 0.0, -_GATE), 2 * expert), _drawn(_PASSED, 2 * expert + 1)
    gate = _that_gives(gates, 12_000 + 2 * expert, tokens)
    up = _that_gives(ups, 12_001 + 2 * expert, tokens)
    for group in range(INNER // GROUP):
        row = GROUP * group + (5 * expert + 9 * group) % GROUP
        gate[row], up[row] = 0.0, 0.0
        gate[row, [column_of_id(token) for token in range(VOCAB)]] = _GATE
        same = kind.startswith("int8") or (expert + group) % 2
        up[row, _LARGEST_AT[0]] = 4.0 if same else 2.0
    return _quantised(kind, "gate", expert, gate), _quantised(kind, "up", expert, up / _GATE)


def down(kind: str, expert: int) -> Quantised:
    """W2, [EXPERT_WIDTH, INNER]."""
    return _quantised(kind, "down", expert, quarters(9701 + 2 * expert, EXPERT_WIDTH, INNER))


def _bits(key: int, *shape: int) -> IntArray:
    counters = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = hash_counters(key, counters) >> np.uint64(40)
    return np.asarray(bits, dtype=np.int64).reshape(shape)


def _drawn(among: Sequence[float], key: int) -> Matrix:
    """[INNER, VOCAB] float32: what each row gives for each token."""
    values = np.asarray(among, dtype=np.float32)
    return torch.from_numpy(values[_bits(13_000 + key, INNER, VOCAB) % len(values)])


def _that_gives(wanted: Matrix, key: int, tokens: torch.Tensor) -> Matrix:
    """[INNER, EXPERT_WIDTH] float32 weights that give what is wanted: two of a token's own columns,
    and the column of its id for the rest."""
    found = torch.zeros(INNER, EXPERT_WIDTH)
    bits = _bits(14_000 + key, INNER, 2)
    for row in range(INNER):
        for place in bits[row] % _ORDINARY:
            found[row, 1 + int(place)] = 2.0 if (int(place) + row) % 2 else -2.0
    rest = wanted - found[:, : tokens.shape[1]] @ tokens.T
    found[:, [column_of_id(token) for token in range(VOCAB)]] = rest
    return found


def _quantised(kind: str, product: str, expert: int, weight: Matrix) -> Quantised:
    rows, columns = weight.shape
    shape = {
        "blocks": (rows // GROUP, columns // GROUP), "channels": (rows, 1), "tensors": (),
        "dynamic": (),
    }[kind.partition("_")[2]]  # fmt: skip
    key = 15_000 + 3 * expert + (*_SMALLEST,).index(product)
    powers = torch.from_numpy(np.asarray(_bits(key, *shape) % 3))
    scale = _SMALLEST[product] * 2.0 ** powers.float()
    return Quantised((weight / _of_numbers(scale)).to(dtype_of(kind)), scale)


def input_scale(product: str, place: int) -> float:
    """What a checkpoint says of the numbers that a product takes, by the expert's place among those
    of its rank. Engines take the largest, which just holds them all."""
    return {"gate": 2.0**-5, "down": 2.0**-3}[product] / (1 + place % 2)
