"""Softmax attention row by row, in float64: what all models of attention kernels share.

A model translates its kernel's arguments into `Row`s; this module reads the keys and values that
they name, and writes what attention defines. Each row is computed by itself over exactly its own
keys, so its bits depend neither on the batch around it nor on the size of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["Cache", "Row", "Softmax", "attend", "below_diagonal", "rows_between"]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


# Not frozen: a step makes dozens, and making one would take three times as long.
@dataclass(slots=True, eq=False)
class Row:
    """One row of the kernel's batch: consecutive query tokens over the same keys."""

    first: int
    """Its first query token."""
    tokens: int
    """How many it has."""
    keys: tuple[Ints, ...]
    """Where its keys lie: an array [n] for each leading dimension of the cache."""
    hidden: Bools | None = None
    """[tokens, n] which keys a token does not see; None if it sees all."""
    logit_scale: Floats | None = None
    """[Hq] factor of q k^T beside `Softmax.scale`; None is 1."""
    value_scale: Floats | None = None
    """[Hq] factor of the values beside `Cache.value_scale`; None is 1."""
    into: int | None = None
    """First token of its outputs; None if they lie where its queries do."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values that `Row.keys` index, as tensors of the caller with any strides."""

    keys: torch.Tensor
    """[..., Hkv, D]; as many leading dimensions as a row's keys have arrays."""
    values: torch.Tensor
    """[..., Hkv, Dv]"""
    key_scale: float = 1.0
    """Stored keys times this are keys."""
    value_scale: float = 1.0
    names: tuple[str, str] = ("k_cache", "v_cache")
    """What the kernel calls them."""
    read: Callable[[KernelMemory, tuple[Ints, ...]], tuple[Floats, Floats]] | None = None
    """Reads keys and values at these places, where the tensors hold them in another form."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """How logits become weights."""

    scale: float
    """Factor of q k^T."""
    softcap: float = 0.0
    """Logits become softcap * tanh(logit / softcap); 0 leaves them."""
    sinks: torch.Tensor | None = None
    """[Hq] a logit of each head that takes weight and has no value."""
    empty: Literal["zeros", "undefined"] = "zeros"
    """What the kernel gives a token that sees no key."""
    lse_base: Literal["e", "2"] = "e"
    """Of the logarithm that the kernel gives."""


def attend(
    memory: KernelMemory,
    q: torch.Tensor,
    cache: Cache,
    rows: Sequence[Row],
    softmax: Softmax,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
) -> None:
    """Write softmax(q k^T) v of every row's tokens; tokens of no row stay as they are.

    Args:
        q: [T, Hq, D], Hq a multiple of Hkv.
        out: [T, Hq, Dv]; written in its own dtype, rounded once from float64.
        lse: [Hq, T] logarithm of the sum of exponentials, minus infinity without keys.
        qv: [T, Hq, Dv] queries of the values, whose products add to the logits.
    """
    memory.attends(q, cache.keys, rows, softmax)
    sinks = None if softmax.sinks is None else as_numbers(softmax.sinks)
    keys, values = _gathered(memory, cache, rows)
    given = as_numbers(q)
    start = 0
    for row in rows:
        stop = start + len(row.keys[0])
        if not row.tokens:
            start = stop
            continue
        tokens = np.arange(row.first, row.first + row.tokens)
        if row.first >= 0 and row.first + row.tokens <= len(given):
            queries = given[row.first : row.first + row.tokens]
        else:
            queries = memory.numbers("q", q, tokens)
        both = keys[start:stop]
        if qv is not None:
            queries = np.concatenate((queries, memory.numbers("qv", qv, tokens)), axis=-1)
            both = np.concatenate((both, values[start:stop]), axis=-1)
        result, sums = _row(queries, both, values[start:stop], row, softmax, sinks)
        seen: Bools | None = None
        if softmax.empty == "undefined":
            seen = np.asarray(np.isfinite(sums).any(0))
        if softmax.lse_base == "2":
            sums = sums / np.log(2.0)
        into = tokens if row.into is None else np.arange(row.into, row.into + row.tokens)
        _write(memory, out, lse, into, result, sums, seen)
        start = stop


def _gathered(memory: KernelMemory, cache: Cache, rows: Sequence[Row]) -> tuple[Floats, Floats]:
    """float64 [keys of all rows, heads, columns] keys and values, one row after the other."""
    if not rows:
        return np.empty((0, 1, 1)), np.empty((0, 1, 1))
    index = tuple(np.concatenate(parts) for parts in zip(*(row.keys for row in rows), strict=True))
    if cache.read is not None:
        return cache.read(memory, index)
    key_name, value_name = cache.names
    keys = memory.numbers(key_name, cache.keys, *index, scale=cache.key_scale)
    values = memory.numbers(value_name, cache.values, *index, scale=cache.value_scale)
    return keys, values


def _row(
    queries: Floats,
    keys: Floats,
    values: Floats,
    row: Row,
    softmax: Softmax,
    sinks: Floats | None,
) -> tuple[Floats, Floats]:
    """([tokens, Hq, Dv] outputs, [Hq, tokens] logarithms of the sums) of one row."""
    tokens, heads, columns = queries.shape
    hidden = row.hidden
    kv_heads = keys.shape[1]
    # [Hkv, group * tokens, D]: the heads of a group share their keys.
    grouped = queries.transpose(1, 0, 2).reshape(kv_heads, -1, columns)
    seen = len(keys)  # 0 in a row without keys, which numpy cannot work out by itself
    logits = np.matmul(grouped, keys.transpose(1, 2, 0)).reshape(heads, tokens, seen)
    logits = logits * softmax.scale
    if row.logit_scale is not None:
        logits = logits * row.logit_scale[:, None, None]
    if softmax.softcap:
        logits = softmax.softcap * np.tanh(logits / softmax.softcap)
    if hidden is not None:
        logits = np.where(hidden, -np.inf, logits)
    best = np.max(logits, axis=-1, initial=-np.inf)
    if sinks is not None:
        best = np.maximum(best, sinks[:, None])
    base = np.where(np.isfinite(best), best, 0.0)
    weights = np.exp(logits - base[..., None])
    total = weights.sum(-1)
    if sinks is not None:
        total = total + np.exp(sinks[:, None] - base)
    # A hidden value counts for nothing, NaN included: a kernel masks it or does not load it.
    visible = values
    if hidden is not None:
        never: Bools = np.asarray(hidden.all(0))
        visible = np.where(never[:, None, None], 0.0, values)
    flat = weights.reshape(kv_heads, heads // kv_heads * tokens, seen)
    result = np.matmul(flat, visible.transpose(1, 0, 2))
    result = result.reshape(heads, tokens, values.shape[-1])
    with np.errstate(divide="ignore"):
        sums = base + np.log(total)
    result = result / np.where(total == 0.0, 1.0, total)[..., None]
    if row.value_scale is not None:
        result = result * row.value_scale[:, None, None]
    return result.transpose(1, 0, 2), sums


def _write(
    memory: KernelMemory,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    tokens: Ints,
    result: Floats,
    sums: Floats,
    seen: Bools | None,
) -> None:
    if lse is not None:
        memory.store("lse", lse.transpose(0, 1), sums.T.copy(), tokens)
    if seen is not None:
        tokens, result = tokens[seen], result[seen]
    memory.store("out", out, np.ascontiguousarray(result), tokens)


def below_diagonal(tokens: int, keys: int, window: tuple[int, int] = (-1, -1)) -> Bools:
    """[tokens, keys] what causal attention hides, aligned at the last token and the last key.

    Args:
        window: keys that a token sees before and behind itself; -1 is no limit.
    """
    # Token i of n stands at key `keys - n + i` (bottom right).
    distance = np.arange(keys)[None, :] - (keys - tokens + np.arange(tokens))[:, None]
    left, right = window
    behind = np.inf if right < 0 else right
    before = np.inf if left < 0 else left
    hidden: Bools = (distance > behind) | (distance < -before)
    return hidden


def rows_between(offsets: Ints) -> Iterable[tuple[int, int, int]]:
    """(row, first, count) of each row of prefix sums; a decreasing one has no entries."""
    for row, (low, high) in enumerate(
        zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ):
        yield row, low, max(0, high - low)
