"""What is timed: decode attention, kv-indices writers, and every kernel of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from timing import Make, bytes_of

from tests.lanes.kernels import arithmetic, attention, hazards, indices, tutorials

HEADS, KV_HEADS, DIM, SPLITS = 8, 2, 16, 8
"""As a small model has them; the block of keys is 32, as in sglang."""


def history(
    batch: int, context: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Lengths, kv_indptr and shuffled kv_indices of a ragged batch, and the number of slots."""
    generator = torch.Generator().manual_seed(seed)
    lens = torch.randint(1, context + 1, (batch,), generator=generator)
    lens[0] = context
    indptr = torch.zeros(batch + 1, dtype=torch.int32)
    indptr[1:] = lens.cumsum(0)
    slots = batch * context + 1
    places = torch.randperm(slots - 1, generator=generator)[: int(lens.sum())] + 1
    return lens.int(), indptr, places, slots


def decode(batch: int, context: int) -> Make:
    """Both stages of paged decode attention."""
    lens, indptr, places, slots = history(batch, context)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(batch, HEADS, DIM, generator=generator)
    k, v = (torch.randn(slots, KV_HEADS, DIM, generator=generator) for _ in range(2))
    splits = torch.full((batch,), SPLITS, dtype=torch.int32)

    def make() -> tuple[Callable[[], None], Callable[[], list[bytes]]]:
        partial = torch.zeros(batch, HEADS, SPLITS, DIM)
        lse = torch.zeros(batch, HEADS, SPLITS)
        out = torch.zeros(batch, HEADS, DIM)

        def call() -> None:
            attention.decode_stage1[(batch, HEADS, SPLITS)](
                q, k, v, indptr, places, partial, lse, splits, DIM**-0.5,
                q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                GROUP=HEADS // KV_HEADS, DIM=DIM, BLOCK_DIM=DIM, BLOCK_KEYS=32, SPLITS=SPLITS,
                HEADS=HEADS, CAP=0,
            )  # fmt: skip
            attention.decode_stage2[(batch, HEADS)](
                partial, lse, out, indptr, splits, q,
                HEADS=HEADS, SPLITS=SPLITS, KEYS=32, DIM=DIM, BLOCK_DIM=DIM, SINK=False,
            )  # fmt: skip

        return call, lambda: bytes_of([partial, lse, out])

    return make


def kv_writer(kernel: Any, batch: int, context: int, **constants: int) -> Make:
    """A writer of kv_indices, ours or an engine's with the same arguments."""
    lens, indptr, _, _ = history(batch, context)
    table = torch.randint(0, 1 << 20, (batch + 1, context), dtype=torch.int32)
    rows = torch.arange(batch) + 1

    def make() -> tuple[Callable[[], None], Callable[[], list[bytes]]]:
        out = torch.zeros(int(indptr[-1]), dtype=torch.int32)

        def call() -> None:
            kernel[(batch,)](table, rows, lens, indptr, None, out, context, **constants)

        return call, lambda: bytes_of([out])

    return make


def random_launches(draw: Any, name: str, count: int) -> Make:
    """The first launches that the tests draw for a kernel, one after the other."""
    drawn = [draw(np.random.default_rng([seed, *name.encode()])) for seed in range(count)]

    def make() -> tuple[Callable[[], None], Callable[[], list[bytes]]]:
        copies = [launch.copy() for launch in drawn]

        def call() -> None:
            for launch in copies:
                launch.run()

        return call, lambda: [part for launch in copies for part in launch.memory()]

    return make


def test_kernels() -> Iterator[tuple[str, Any]]:
    for module in (attention, indices, arithmetic, tutorials, hazards):
        yield from module.DRAWS.items()
