"""Random launches of paged attention and what each must compute, key by key in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch, SplitPlan

__all__ = ["Launch", "Shape", "draw", "expected", "split_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    q_lens: tuple[int, ...] | None = None
    kv_lens: tuple[int, ...] = (5, 0, 9)
    q_heads: int = 2
    kv_heads: int = 1
    head_dim: int = 4
    v_head_dim: int = 4
    latent: bool = False
    dtype: torch.dtype = torch.float32
    fp8: bool = False
    page_size: int = 1
    page_map: str = "csr"
    window: int = 0
    masked: bool = False
    causal: bool = True
    chunk: int = 0
    spare_tokens: int = 0
    """Query tokens past the last row, which belong to nobody."""


@dataclass(slots=True)
class Launch:
    shape: Shape
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    batch: AttentionBatch
    slots: list[list[int]]
    masks: list[torch.Tensor] = field(default_factory=list)


def split_plan(kv_lens: list[int], chunk: int, max_kv_len: int, items: int) -> SplitPlan:
    """The plan of query tokens with these numbers of keys, padded to `items` work items."""
    counts = [max(1, -(-length // chunk)) for length in kv_lens]
    tokens = np.repeat(np.arange(len(counts)), counts)
    chunks = np.concatenate([np.arange(count) for count in counts])
    pad = items - len(tokens)
    assert pad >= 0
    return SplitPlan(
        item_tokens=torch.from_numpy(np.pad(tokens, (0, pad), constant_values=10**6)).int(),
        item_chunks=torch.from_numpy(np.pad(chunks, (0, pad), constant_values=10**6)).int(),
        valid=torch.from_numpy(np.arange(items) < len(tokens)).to(torch.uint8),
        merge_indptr=torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).int(),
        chunk_len=chunk,
        max_chunks=-(-max_kv_len // chunk),
    )


def _indptr(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32)


def _inside(tensor: torch.Tensor, junk: float) -> torch.Tensor:
    """The same tensor in the middle of junk, so that an access out of bounds shows."""
    room = torch.full((tensor.numel() * 3 + 64,), junk).to(tensor.dtype)
    first = (tensor.numel() // max(1, tensor[0].numel()) + 7) * max(1, tensor[0].numel())
    view = room[first : first + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view


def draw(shape: Shape, seed: int) -> Launch:
    """A launch of this shape over shuffled pages; unowned slots hold NaN."""
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    rows, size = len(shape.kv_lens), shape.page_size
    longest = max(shape.kv_lens)
    pages_of = [-(-length // size) for length in shape.kv_lens]
    free = (random.permutation(sum(pages_of) + 2) + 1).tolist()
    pages = [[free.pop() for _ in range(count)] for count in pages_of]
    slots = [
        [pages[row][i // size] * size + i % size for i in range(length)]
        for row, length in enumerate(shape.kv_lens)
    ]
    owned = [slot for row in slots for slot in row]
    planes = []
    for columns in (shape.head_dim, shape.v_head_dim):
        plane = torch.full(
            ((len(free) + sum(pages_of) + 1) * size, shape.kv_heads, columns), math.nan
        )
        plane[owned] = torch.randn(len(owned), *plane.shape[1:], generator=generator)
        storage = torch.float8_e4m3fn if shape.fp8 else shape.dtype
        planes.append(_inside(plane.to(storage), math.nan))
    k = planes[0]
    v = k[..., : shape.v_head_dim] if shape.latent else planes[1]
    q_lens = list(shape.q_lens or [1] * rows)
    tokens = sum(q_lens) + shape.spare_tokens
    q = torch.randn(tokens, shape.q_heads, shape.head_dim, generator=generator).to(shape.dtype)
    out = torch.full((tokens, shape.q_heads, shape.v_head_dim), 77.0, dtype=shape.dtype)
    batch = AttentionBatch(
        kv_lens=torch.tensor(shape.kv_lens, dtype=torch.int32),
        max_kv_len=longest + 3,
        scale=shape.head_dim**-0.5,
        qo_indptr=None if shape.q_lens is None else _indptr(q_lens),
        max_q_len=max(q_lens),
        window=shape.window,
        causal=shape.causal,
        k_scale=0.5 if shape.fp8 else 1.0,
        v_scale=(0.5 if shape.latent else 0.25) if shape.fp8 else 1.0,
    )
    if shape.page_map == "csr":
        batch = replace(
            batch,
            kv_indptr=_indptr(list(shape.kv_lens)),
            kv_indices=_inside(torch.tensor([*owned, 0], dtype=torch.int32), 10**8),
        )
    else:
        table = torch.full((rows, longest // size + 2), 10**6, dtype=torch.int32)
        for row, own in enumerate(pages):
            table[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
        batch = replace(batch, page_table=_inside(table, 10**8), page_size=size)
    launch = Launch(shape, q, k, v, out, batch, slots)
    if shape.masked:
        launch.masks = [
            torch.rand(count, length, generator=generator) < 0.6
            for count, length in zip(q_lens, shape.kv_lens, strict=True)
        ]
        flat = torch.cat([mask.reshape(-1) for mask in launch.masks]).to(torch.uint8)
        sizes = [count * length for count, length in zip(q_lens, shape.kv_lens, strict=True)]
        launch.batch = replace(launch.batch, custom_mask=flat, mask_indptr=_indptr(sizes))
    if shape.chunk:
        lens = [n for n, count in zip(shape.kv_lens, q_lens, strict=True) for _ in range(count)]
        lens += [0] * shape.spare_tokens
        items = sum(max(1, -(-n // shape.chunk)) for n in lens) + 3
        launch.batch = replace(launch.batch, plan=split_plan(lens, shape.chunk, longest + 3, items))
    return launch


def expected(launch: Launch) -> torch.Tensor:
    """float64 [T, Hq, Dv], one key at a time; 77 where no row owns the token."""
    shape, batch = launch.shape, launch.batch
    want = torch.full(launch.out.shape, 77.0, dtype=torch.float64)
    token = 0
    for row, length in enumerate(shape.kv_lens):
        count = 1 if shape.q_lens is None else shape.q_lens[row]
        for i in range(count):
            last = length - count + i
            seen = [j for j in range(length) if not shape.causal or j <= last]
            if shape.causal and shape.window:
                seen = [j for j in seen if j >= last - shape.window]
            if shape.masked:
                seen = [j for j in range(length) if launch.masks[row][i, j]]
            for head in range(shape.q_heads):
                want[token, head] = _head(launch, row, token, head, seen, batch)
            token += 1
    return want


def _head(
    launch: Launch, row: int, token: int, head: int, seen: list[int], batch: AttentionBatch
) -> torch.Tensor:
    shape = launch.shape
    if not seen:
        return torch.zeros(shape.v_head_dim, dtype=torch.float64)
    slots = [launch.slots[row][j] for j in seen]
    kv_head = head // (shape.q_heads // shape.kv_heads)
    keys = torch.stack([launch.k[slot, kv_head].double() for slot in slots]) * batch.k_scale
    values = torch.stack([launch.v[slot, kv_head].double() for slot in slots]) * batch.v_scale
    logits = keys @ launch.q[token, head].double() * batch.scale
    return torch.softmax(logits, 0) @ values
