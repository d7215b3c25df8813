"""A layer whose queries select blocks by pooled keys, and the scheduler's part in where these lie.

The engine's own backend pools keys, scores and selects. Before each step the engine's
`MiniCPMCompressedCache` gives rows slots for pooled keys and takes back those of requests that have
left, as its scheduler has it do (sglang mem_cache/allocation.py, alloc_for_decode;
memory_pool.py, free_rows). What lies in slots of no past pooled key is no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.pooled_blocks import Level, levels
from fuzzgraph.reference.pooled_keys import (
    POOLED_KEYS,
    POOLED_STRAYS,
    completed,
    in_units,
    pooled_rows,
)
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Rope, Written
from fuzzgraph.world import Batch

__all__ = ["PooledBlocksModel"]


class PooledBlocksModel(AttentionModel):
    """The layer, and which row of the engine's tables each request has."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        self._kv: Any = None
        self._requests: Any = None
        self._rows: dict[int, int] = {}
        self._before: list[torch.Tensor] = []

    def use(self, pool: Any, allocator: Any) -> None:
        super().use(pool, allocator)
        self._kv = pool

    def schedule(self, requests: Any, batch: Batch) -> None:
        """Have the engine give slots for pooled keys to the rows of a step.

        Args:
            requests: the engine's request pool, to which the backend has attached its cache.
        """
        self._requests = requests
        now = dict(zip(batch.requests.tolist(), batch.req_pool_indices.tolist(), strict=True))
        left = {*batch.finished.tolist(), *batch.preempted.tolist()}
        for request, row in list(self._rows.items()):
            if request in left or now.get(request, row) != row:
                requests._aux_cache.free(row)
                del self._rows[request]
        self._rows |= now
        requests.alloc_aux_to_lengths(
            req_pool_indices_cpu=torch.from_numpy(batch.req_pool_indices),
            target_seq_lens_cpu=torch.from_numpy(batch.seq_lens),
        )

    def past(self, batch: Batch) -> Iterator[Written]:
        """The pooled keys of earlier steps, each in its slot."""
        keys = self._planes()[0]
        reserved = self._reserved
        yield keys, reserved, torch.full((len(reserved), *keys.shape[1:]), float("nan")).to(keys)
        for row, cached in enumerate(batch.cached_lens.tolist()):
            tokens = batch.kv_tokens.row(row)[:cached], batch.kv_positions.row(row)[:cached]
            found = content_for(self._config).kv_planes(*tokens)[0]
            for number, level in enumerate(levels(self._config)):
                pooled = pooled_rows(found, level)
                yield keys, self._slots(batch, row, number)[: len(pooled)], pooled.to(keys.dtype)

    @property
    def _reserved(self) -> torch.Tensor:
        """All slots for pooled keys."""
        found: torch.Tensor = self._requests._aux_cache.reserved_slots
        return found

    def _planes(self) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.layer.layer_id
        return self._kv.get_key_buffer(layer), self._kv.get_value_buffer(layer)

    def _slots(self, batch: Batch, row: int, number: int) -> torch.Tensor:
        """Slots of a row's pooled keys of one level, as the engine's table has them."""
        pool = self._requests
        table = (pool.req_to_sparse_k1_token, pool.req_to_sparse_k2_token)[number]
        found: torch.Tensor = table[int(batch.req_pool_indices[row])].long()
        return found

    def begin(self) -> None:
        """Take down what is there before a step."""
        self._before = [plane[self._reserved].clone() for plane in self._planes()]

    def left(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left there, as `reference.pooled_keys` names it."""
        keys, reserved = self._planes()[0], self._reserved
        changed = torch.zeros(len(keys), dtype=torch.bool)
        for plane, before in zip(self._planes(), self._before, strict=True):
            differ = plane[reserved].view(torch.int16) != before.view(torch.int16)
            changed[reserved] |= differ.flatten(1).any(1)
        rows = []
        for row, length in enumerate(batch.seq_lens.tolist()):
            for number, level in enumerate(levels(self._config)):
                slot = self._newest(batch, row, number, level, length)
                rows.append(torch.zeros_like(keys[0]) if slot is None else keys[slot].clone())
                if slot is not None:
                    changed[slot] = False
        return {
            POOLED_KEYS: in_units(torch.stack(rows).view(batch.raw_bs, -1)),
            POOLED_STRAYS: torch.full((batch.raw_bs,), int(changed.sum())),
        }

    def _newest(
        self, batch: Batch, row: int, number: int, level: Level, length: int
    ) -> torch.Tensor | None:
        """The slot of the pooled key that a row's new token completes; None where it does not."""
        if not completed(length, level):
            return None
        return self._slots(batch, row, number)[level.count(length) - 1]
