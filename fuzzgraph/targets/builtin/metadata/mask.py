"""Custom attention mask of a verify step: flat uint8, row after row, with mask_indptr.

Within a row the mask is [draft tokens, kv_len], row-major. A draft token sees the whole prefix
(or the window's part of it) and its ancestors in the draft tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.targets.builtin.raw_addressing import reach


@dataclass(slots=True)
class MaskView:
    """The parts of the buffers that a batch of `rows` rows uses."""

    rows: int
    seq_lens: torch.Tensor
    tree: torch.Tensor
    """int32 [rows * draft * draft], 1 where a draft token sees another."""
    positions: torch.Tensor
    """int64 [rows * draft] model positions of the draft tokens."""
    indptr: torch.Tensor
    """int32 [rows + 1]"""
    mask: torch.Tensor
    """uint8, from the first element to where the longest rows could end, past the buffer too."""
    lanes: torch.Tensor


class TreeMask:
    """Buffers of the mask, allocated once, and the writer that fills them."""

    def __init__(
        self, draft_tokens: int, window: int, max_rows: int, max_len: int, device: torch.device
    ) -> None:
        self.draft_tokens = draft_tokens
        self.window = window
        self.max_rows = max_rows
        self.max_len = max_len
        self.indptr = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self.mask = torch.zeros(self.mask_capacity(), dtype=torch.uint8, device=device)
        self._lanes = torch.arange(
            max_rows * draft_tokens * max_len, dtype=torch.int32, device=device
        )

    def mask_capacity(self) -> int:
        """Every row at its longest, draft columns included."""
        return self.max_rows * self.draft_tokens * self.max_len

    def view(
        self, rows: int, seq_lens: torch.Tensor, tree: torch.Tensor, positions: torch.Tensor
    ) -> MaskView:
        mask = reach(self.mask, rows * self.draft_tokens * self.max_len)
        return MaskView(
            rows,
            seq_lens,
            tree.view(-1),
            positions,
            self.indptr[: rows + 1],
            mask,
            self._lanes[: mask.numel()],
        )

    def write(self, view: MaskView) -> None:
        self.write_indptr(view)
        self.write_mask(view)

    def write_indptr(self, view: MaskView) -> None:
        """Prefix sums of draft_tokens * kv_len."""
        sizes = view.seq_lens * self.draft_tokens
        torch.cumsum(sizes, 0, dtype=torch.int32, out=view.indptr[1:])

    def write_mask(self, view: MaskView) -> None:
        """mask[indptr[r] + q * kv_len + c] = whether draft token q of row r sees position c."""
        rows = torch.searchsorted(view.indptr[1:-1], view.lanes, right=True, out_int32=True)
        offset = view.lanes - view.indptr.index_select(0, rows)
        lens = view.seq_lens.index_select(0, rows)
        query = offset.div(lens.clamp(min=1), rounding_mode="floor")
        column = offset - query * lens
        beyond = view.lanes >= view.indptr[-1]
        token = (rows * self.draft_tokens + query).masked_fill_(beyond, 0)
        draft = column - (lens - self.draft_tokens)
        seen = self.sees_prefix(view, token, column) & (draft < 0)
        seen |= self.sees_draft(view, token, draft)
        torch.where(beyond, view.mask, seen.to(torch.uint8), out=view.mask)

    def sees_prefix(
        self, view: MaskView, token: torch.Tensor, column: torch.Tensor
    ) -> torch.Tensor:
        """Whether the window of each lane's token reaches the position `column`."""
        if not self.window:
            return torch.ones_like(column, dtype=torch.bool)
        return view.positions.index_select(0, token) - column <= self.window

    def sees_draft(self, view: MaskView, token: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
        """Whether each lane's token has draft token number `draft` among its ancestors."""
        place = token * self.draft_tokens + draft.clamp(0, self.draft_tokens - 1)
        return view.tree.index_select(0, place).bool() & (draft >= 0)
