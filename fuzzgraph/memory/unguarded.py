"""Counts what a device's allocator hands out and no guard covers, stage by stage.

The guard sees what goes through torch's dispatcher while it is active. What compiled code asks for
below it (workspaces, results of a library) lies in the allocator's own blocks, and so does all that
is asked for in a step, when the guard is not active: an overrun there hits no red zone. Memory that
an extension takes from the driver itself is not in the allocator's count, and not in this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import torch

Asked = Callable[[], int]
"""Bytes that the allocator was asked for since the process began."""
MeteredStage = Literal["open", "warmup", "capture", "prepare", "replay"]

_ROWS_OF_POISON = 4096
"""Bytes of a stage that are not told: the guard's own rows of poison, one for each dtype."""


class _Guard(Protocol):
    asked: Asked | None
    seen_bytes: int


def asked_of_allocator(device: torch.device) -> Asked | None:
    """The count of a device's allocator; None for a CPU, whose allocator keeps none."""
    if device.type == "cpu":
        return None

    def asked() -> int:
        return int(torch.cuda.memory_stats(device)["requested_bytes.all.allocated"])

    return asked


class UnguardedBytes:
    """Those of one session.

    Args:
        guard: counts what it saw of the same requests, and what the harness asked for itself.
    """

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard
        self._found: Counter[str] = Counter()

    @contextmanager
    def during(self, stage: MeteredStage) -> Iterator[None]:
        """Count what is asked for inside; where it raises, nothing is counted."""
        guard = self._guard
        if guard.asked is None:
            yield
            return
        before = guard.asked() - guard.seen_bytes
        yield
        more = guard.asked() - guard.seen_bytes - before
        if more > _ROWS_OF_POISON:
            self._found[stage] += more

    def take(self) -> dict[str, int]:
        """Stage -> bytes since the last call."""
        found = dict(self._found)
        self._found.clear()
        return found
