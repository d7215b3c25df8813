"""Which LoRA adapters a pool of a few slots may hold after each step.

A pool has a slot for each adapter that a batch may have and one for requests without an adapter,
which count as one. An adapter that a batch needs comes into a free slot, or into that of another
one: never of one that the batch needs, of a pinned one, or of requests without. Which of the others
leaves, the policy says: the one that batches had least recently, or the one that came first.
Between adapters that are equally old it says nothing, so that several pools may be right.

Sources of the promise: sglang 0.5.23 arg_groups/fields/lora.py (`--lora-eviction-policy`) and
mem_pool.py, `prepare_lora_batch` (pinned adapters; requests without an adapter leave last);
lora_manager.py, `init_memory_pool` (a new pool holds the latter).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.adapters import pinned_adapters

_Pool = tuple[tuple[int, int], ...]
"""Adapter and the step by which it is as old as it is, in rising order of adapters."""
_BASE = 0
"""What stands for requests without an adapter."""


class AdapterPools:
    """Every pool that the steps so far may have left."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._stay = {_BASE, *pinned_adapters(config)}
        self._pools: set[_Pool] = {((_BASE, -1),)}

    def step(self, index: int, needed: set[int]) -> tuple[tuple[int, ...], ...]:
        """Adapters of each of them, in rising order, once a batch has those that it needs.

        >>> pools = AdapterPools(EngineConfig(max_loras=2))
        >>> [pools.step(index, needed) for index, needed in enumerate([{0, 1}, {2}, {1, 3}])]
        [((0, 1),), ((0, 1, 2),), ((0, 1, 3),)]
        """
        self._pools = {new for pool in self._pools for new in self._after(pool, index, needed)}
        held = {tuple(adapter for adapter, _ in pool) for pool in self._pools}
        return tuple(sorted(held))

    def _after(self, pool: _Pool, index: int, needed: set[int]) -> Iterator[_Pool]:
        held = dict(pool)
        used = needed if self._config.lora_eviction == "lru" else needed - held.keys()
        for leaving in self._leaving(held, needed):
            kept = {adapter: since for adapter, since in pool if adapter not in leaving}
            yield tuple(sorted({**kept, **dict.fromkeys(used, index)}.items()))

    def _leaving(self, held: dict[int, int], needed: set[int]) -> Iterator[set[int]]:
        """Each choice of those that leave: the oldest, and any of those that are as old as the
        last of them."""
        count = len(held.keys() | needed) - (self._config.max_loras + 1)
        if count <= 0:
            yield set()
            return
        may = held.keys() - needed - self._stay
        last = sorted(held[adapter] for adapter in may)[count - 1]
        older = {adapter for adapter in may if held[adapter] < last}
        tied = sorted(adapter for adapter in may if held[adapter] == last)
        for chosen in combinations(tied, count - len(older)):
            yield older | {*chosen}
