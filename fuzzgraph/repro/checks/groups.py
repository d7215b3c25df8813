"""Which KV cache groups keep their KV in a region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fuzzgraph.memory import Region
from fuzzgraph.repro.trace import Recording
from fuzzgraph.world import Batch


def planes_in(
    recording: Recording, batch: Batch, regions: Sequence[Region]
) -> Iterator[tuple[int, int, torch.Tensor, Batch]]:
    """(group, plane's place in it, plane, the batch as the group's layers see it)."""
    for number, group in enumerate(recording.opened.pool_writer.groups):
        for index, plane in enumerate(group.planes):
            if recording.memory.region_of(plane.tensor) in regions:
                yield number, index, plane.tensor, group.seen(batch)
