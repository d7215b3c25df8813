"""A small decode engine of the block-table kind: paged cache, ladder of graphs, its own padding.

It knows nothing of FuzzGraph; `block_target.py` brings the two together. On a GPU it captures
device graphs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

SCRATCH_BLOCK = 0
"""Never handed out. Tokens without a slot are written to its first slot, and nobody reads them."""
NO_SLOT = -1


@dataclass
class Request:
    """One sequence whose last token is to be computed."""

    last_token: int
    length: int
    """Tokens, the last one included."""
    blocks: list[int]
    """Cache blocks that hold them, in order."""


class DeviceGraph:
    """What the engine needs of a graph: capture a forward once, replay it."""

    def __init__(self, forward: Callable[[], torch.Tensor]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.outputs = forward()

    def replay(self) -> None:
        self._graph.replay()


class BlockCache:
    """Keys and values of every slot: slot = block * block_size + offset."""

    def __init__(
        self,
        blocks: int,
        block_size: int,
        key: torch.Size,
        value: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.keys = torch.zeros(blocks * block_size, *key, dtype=dtype, device=device)
        self.values = torch.zeros(blocks * block_size, *value, dtype=dtype, device=device)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store one token a row; rows without a slot go to the scratch block."""
        slots = slots.clamp(min=SCRATCH_BLOCK * self.block_size)
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)

    def slots_of(self, block_tables: torch.Tensor) -> torch.Tensor:
        """[rows, blocks * block_size] slot of every position."""
        first = block_tables[..., None] * self.block_size
        within = torch.arange(self.block_size, device=block_tables.device)
        return (first + within).flatten(1)


class Model:
    """Embedding of token and position to packed q, k, v; then attention over the cache."""

    def __init__(self, tokens: torch.Tensor, positions: torch.Tensor, q_shape: torch.Size) -> None:
        self.tokens, self.positions, self.q_shape = tokens, positions, q_shape

    def project(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: BlockCache
    ) -> list[torch.Tensor]:
        """Query, key and value of each row: [rows, heads, columns]."""
        packed = self.tokens.index_select(0, ids) + self.positions.index_select(0, positions)
        shapes = (self.q_shape, cache.keys.shape[1:], cache.values.shape[1:])
        parts = packed.split([shape.numel() for shape in shapes], dim=1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def paged_attention(
    query: torch.Tensor, cache: BlockCache, block_tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """[rows, query heads, value columns]; a row of length 0 gets zeros."""
    slots = cache.slots_of(block_tables)
    group = query.shape[1] // cache.keys.shape[1]
    keys = cache.keys[slots].repeat_interleave(group, dim=2)
    values = cache.values[slots].repeat_interleave(group, dim=2)
    scores = torch.einsum("rhd,rlhd->rhl", query, keys) * query.shape[-1] ** -0.5
    seen = torch.arange(slots.shape[1], device=slots.device) < lengths[:, None]
    weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(lengths[:, None, None] == 0, 0.0)
    return torch.einsum("rhl,rlhd->rhd", weights, values)


class Inputs:
    """What a forward reads, and how a batch is written into it."""

    def __init__(self, rows: int, max_blocks: int, cache: BlockCache) -> None:
        self.block_size, device = cache.block_size, cache.keys.device
        self.input_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.slot_mapping = torch.full((rows,), NO_SLOT, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(rows, max_blocks, dtype=torch.int32, device=device)

    def fill(self, requests: Sequence[Request], rows: int) -> None:
        """Write a batch, padded to `rows`."""
        self.reset(slice(len(requests), rows))
        for row, request in enumerate(requests):
            place, offset = divmod(request.length - 1, self.block_size)
            self.input_ids[row] = request.last_token
            self.positions[row] = request.length - 1
            self.slot_mapping[row] = request.blocks[place] * self.block_size + offset
            self.lengths[row] = request.length
            self.block_tables[row] = SCRATCH_BLOCK
            self.block_tables[row, : len(request.blocks)] = torch.tensor(request.blocks)

    def reset(self, padded: slice) -> None:
        """What padded rows hold: no slot, no length, the scratch block."""
        self.slot_mapping[padded] = NO_SLOT
        self.lengths[padded] = 0
        self.block_tables[padded] = SCRATCH_BLOCK


class DecodeRunner:
    """Static inputs and one graph for each batch size of the ladder; eager above it."""

    inputs_class = Inputs

    def __init__(
        self,
        model: Model,
        cache: BlockCache,
        sizes: Sequence[int],
        max_blocks: int,
        make_graph: Callable[..., DeviceGraph] = DeviceGraph,
    ) -> None:
        self.model, self.cache, self.make_graph = model, cache, make_graph
        self.sizes, self.max_blocks = sorted(sizes), max_blocks
        self.static = self.inputs_class(self.sizes[-1], max_blocks, cache)
        self.graphs: dict[int, DeviceGraph] = {}

    def forward(self, inputs: Inputs, rows: int) -> torch.Tensor:
        """Attention of the first `rows` rows."""
        ids, positions = inputs.input_ids[:rows], inputs.positions[:rows]
        query, keys, values = self.model.project(ids, positions, self.cache)
        self.cache.write(inputs.slot_mapping[:rows], keys, values)
        tables, lengths = inputs.block_tables[:rows], inputs.lengths[:rows]
        return paged_attention(query, self.cache, tables, lengths)

    def capture(self) -> None:
        for rows in reversed(self.sizes):
            self.forward(self.static, rows)
            self.graphs[rows] = self.make_graph(partial(self.forward, self.static, rows))

    def graph_size(self, live: int) -> int | None:
        """The smallest graph that holds so many requests; None where none does."""
        return next((size for size in self.sizes if size >= live), None)

    def eager(self, requests: Sequence[Request]) -> tuple[Inputs, torch.Tensor]:
        inputs = self.inputs_class(len(requests), self.max_blocks, self.cache)
        inputs.fill(requests, len(requests))
        return inputs, self.forward(inputs, len(requests))

    def decode(self, requests: Sequence[Request]) -> torch.Tensor:
        """One step for a batch."""
        size = self.graph_size(len(requests))
        if size is None:
            return self.eager(requests)[1]
        self.static.fill(requests, size)
        self.graphs[size].replay()
        return self.graphs[size].outputs[: len(requests)]
