"""Dense page map for unified attention: page_table and kv_last_page_len."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.targets.builtin.pools import ReqToTokenPool
from fuzzgraph.targets.builtin.shape import pages_for


@dataclass(slots=True)
class PageView:
    """The parts of the buffers that a batch of `rows` rows uses."""

    rows: int
    request_rows: torch.Tensor
    seq_lens: torch.Tensor
    table: torch.Tensor
    """int32 [rows, pages per row]"""
    last_page_len: torch.Tensor
    """int32 [rows]"""


class PageTable:
    """Buffers of the dense page map, allocated once, and the writer that fills them."""

    def __init__(
        self, tokens: ReqToTokenPool, max_rows: int, max_len: int, device: torch.device
    ) -> None:
        self.tokens = tokens
        self.page_size = tokens.config.page_size
        self.max_rows = max_rows
        self.max_len = max_len
        self.table = torch.zeros(max_rows, self.pages_per_row(), dtype=torch.int32, device=device)
        self.last_page_len = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._first = torch.arange(self.pages_per_row(), dtype=torch.int32, device=device)
        self._first *= self.page_size

    def pages_per_row(self) -> int:
        """Columns: pages of the longest sequence, drafts included."""
        return pages_for(self.max_len, self.page_size)

    def view(self, rows: int, request_rows: torch.Tensor, seq_lens: torch.Tensor) -> PageView:
        return PageView(rows, request_rows, seq_lens, self.table[:rows], self.last_page_len[:rows])

    def write(self, view: PageView) -> None:
        self.write_table(view)
        self.write_last_page_len(view)

    def write_table(self, view: PageView) -> None:
        """Page of each page start below the length; the reserved page beyond it."""
        slots = self.tokens.page_starts.gather(view.request_rows)[:, : self.pages_per_row()]
        used = self._first < view.seq_lens.unsqueeze(1)
        torch.mul(self.page_of(slots), used, out=view.table)

    def page_of(self, slots: torch.Tensor) -> torch.Tensor:
        """Page that holds each slot."""
        return slots.div(self.page_size, rounding_mode="floor")

    def write_last_page_len(self, view: PageView) -> None:
        """Tokens in each row's last page: 1 to page_size, or 0 for an empty row."""
        torch.sub(view.seq_lens, 1, out=view.last_page_len)
        view.last_page_len.remainder_(self.page_size).add_(1)
        view.last_page_len.mul_(view.seq_lens > 0)
