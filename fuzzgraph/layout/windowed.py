"""Pages of a sliding-window KV cache group: what lies wholly behind the window is given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fuzzgraph.case import BatchRow, EngineConfig
from fuzzgraph.world import RESERVED_PAGE, IntArray

Take = Callable[[int, int], list[int]]
"""(pages, request) -> as many free pages."""
GiveBack = Callable[[list[int]], None]


def slots_of(pages: list[int], page_size: int) -> IntArray:
    """Physical slot of every position that these pages hold; the reserved slot of a freed one."""
    first = np.array(pages, dtype=np.int64)
    if page_size == 1:
        return first
    slots = first[:, None] * page_size + np.arange(page_size)
    slots[first == RESERVED_PAGE] = RESERVED_PAGE
    flat: IntArray = slots.ravel()
    return flat


@dataclass(slots=True)
class WindowedPages:
    """The pages that one request has in one group, by their place; `RESERVED_PAGE` where freed."""

    config: EngineConfig
    """As the group's layers see it, see `case.group_configs`."""
    pages: list[int] = field(default_factory=list)
    slots: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def reach(self, row: BatchRow, take: Take, give_back: GiveBack) -> None:
        """Own the pages that this step reads or writes; one that got shorter keeps what it has.

        Source: vLLM SlidingWindowManager.get_num_skipped_tokens and remove_skipped_blocks: before
        a step a page is freed if no query of the step sees a token in it. A page may be needed
        again where a request goes on from an earlier length.
        """
        page, pages = self.config.page_size, self.pages
        first_query = row.seq_len - row.new_tokens
        kept = max(0, first_query - self.config.sliding_window) // page
        behind = [number for number in pages[:kept] if number != RESERVED_PAGE]
        give_back(behind)
        needed = -(-row.seq_len // page)
        pages[:kept] = [RESERVED_PAGE] * min(kept, len(pages))
        pages += [RESERVED_PAGE] * (needed - len(pages))
        missing = [at for at in range(kept, needed) if pages[at] == RESERVED_PAGE]
        for at, number in zip(missing, take(len(missing), row.request), strict=True):
            pages[at] = number
        if behind or missing or len(self.slots) != len(pages) * page:
            self.slots = slots_of(pages, page)

    def owned(self) -> list[int]:
        """The pages that are the request's."""
        return [number for number in self.pages if number != RESERVED_PAGE]
