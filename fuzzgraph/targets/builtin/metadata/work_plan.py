"""Split plan: which chunk of which query token's keys each work item computes.

The number of items is fixed per captured size, as a planned launch needs it; items beyond the last
chunk are marked invalid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.targets.builtin.attention import SplitPlan
from fuzzgraph.targets.builtin.shape import Extent, pages_for


@dataclass(slots=True)
class PlanView:
    """The parts of the buffers that a batch uses."""

    extent: Extent
    kv_lens: torch.Tensor
    """int32 [rows]"""
    qo_indptr: torch.Tensor | None
    """int32 [rows + 1]; None where row i is token i."""
    plan: SplitPlan
    tokens: torch.Tensor
    lanes: torch.Tensor


class WorkPlan:
    """Buffers of the plan, allocated once, and the writer that fills them."""

    def __init__(self, chunk_len: int, max_tokens: int, max_len: int, device: torch.device) -> None:
        self.chunk_len = chunk_len
        self.max_tokens = max_tokens
        self.max_len = max_len
        items = self.items_capacity()
        self.item_tokens = torch.zeros(items, dtype=torch.int32, device=device)
        self.item_chunks = torch.zeros(items, dtype=torch.int32, device=device)
        self.valid = torch.zeros(items, dtype=torch.uint8, device=device)
        self.merge_indptr = torch.zeros(max_tokens + 1, dtype=torch.int32, device=device)
        self._lanes = torch.arange(max(items, max_tokens), dtype=torch.int32, device=device)

    def max_chunks(self) -> int:
        """Most chunks that one token can need."""
        return pages_for(self.max_len, self.chunk_len)

    def items_capacity(self) -> int:
        return self.max_tokens * self.max_chunks()

    def view(
        self, extent: Extent, kv_lens: torch.Tensor, qo_indptr: torch.Tensor | None
    ) -> PlanView:
        items = extent.tokens * self.max_chunks()
        plan = SplitPlan(
            item_tokens=self.item_tokens[:items],
            item_chunks=self.item_chunks[:items],
            valid=self.valid[:items],
            merge_indptr=self.merge_indptr[: extent.tokens + 1],
            chunk_len=self.chunk_len,
            max_chunks=self.max_chunks(),
        )
        tokens, lanes = self._lanes[: extent.tokens], self._lanes[:items]
        return PlanView(extent, kv_lens, qo_indptr, plan, tokens, lanes)

    def write(self, view: PlanView) -> None:
        self.write_offsets(view)
        self.write_items(view)
        self.write_valid(view)

    def write_offsets(self, view: PlanView) -> None:
        """Prefix sums of the chunks each token needs; a token without keys needs none."""
        chunks = self.token_lens(view).add(self.chunk_len - 1)
        chunks.div_(self.chunk_len, rounding_mode="floor")
        torch.cumsum(chunks, 0, dtype=torch.int32, out=view.plan.merge_indptr[1:])

    def token_lens(self, view: PlanView) -> torch.Tensor:
        """Keys of each token's row; none for tokens that belong to no row."""
        if view.qo_indptr is None:
            return view.kv_lens
        rows = torch.searchsorted(view.qo_indptr[1:-1], view.tokens, right=True, out_int32=True)
        return view.kv_lens.index_select(0, rows) * (view.tokens < view.qo_indptr[-1])

    def write_items(self, view: PlanView) -> None:
        """Token and chunk of each item; items beyond the last chunk name the last token."""
        plan = view.plan
        torch.searchsorted(
            plan.merge_indptr[1:-1], view.lanes, right=True, out_int32=True, out=plan.item_tokens
        )
        first = plan.merge_indptr.index_select(0, plan.item_tokens)
        torch.sub(view.lanes, first, out=plan.item_chunks)

    def write_valid(self, view: PlanView) -> None:
        torch.lt(view.lanes, view.plan.merge_indptr[-1], out=view.plan.valid)
