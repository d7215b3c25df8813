"""Batches of rows over scattered pages for FlashInfer's wrappers, and attention over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.kernel_models.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
)
from tests.kernel_models.dense import dense_attention

HEADS, KV_HEADS, COLUMNS = 4, 2, 8
WORKSPACE = 1 << 20
Visible = Callable[[int, int, int, int], bool]
"""(row, query of the row, key of the row, where the query stands) -> whether it sees the key."""


def offsets(counts: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


@dataclass
class Pages:
    """Rows of keys in pages that are scattered over a cache, and queries behind them."""

    lens: Sequence[int]
    news: Sequence[int]
    page: int = 1
    layout: str = "NHD"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        counts = [-(-n // self.page) for n in self.lens]
        pages = sum(counts) + 3
        self.indices = (torch.randperm(pages - 1)[: sum(counts)] + 1).int()
        self.indptr = offsets(counts)
        last = [n - (count - 1) * self.page for n, count in zip(self.lens, counts, strict=True)]
        self.last = torch.tensor(last).int()
        shape = (pages, self.page, KV_HEADS, COLUMNS)
        self.k, self.v = torch.randn(shape).to(self.dtype), torch.randn(shape).to(self.dtype)
        self.qo = offsets(self.news)
        self.q = torch.randn(sum(self.news), HEADS, COLUMNS)

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.layout == "NHD":
            return self.k, self.v
        return self.k.transpose(1, 2).contiguous(), self.v.transpose(1, 2).contiguous()

    def row(self, cache: torch.Tensor, row: int) -> torch.Tensor:
        used = self.indices[self.indptr[row] : self.indptr[row + 1]].long()
        return cache[used].flatten(0, 1)[: self.lens[row]]

    def expected(
        self, visible: Visible, *, scale: float, softcap: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(float64 [T, Hq, D], [T, Hq] to base 2) of all rows, one after the other."""
        outs, sums = [], []
        for row, (length, new) in enumerate(zip(self.lens, self.news, strict=True)):
            seen = torch.zeros(new, length, dtype=torch.bool)
            for query in range(new):
                for key in range(length):
                    seen[query, key] = visible(row, query, key, length - new + query)
            first = int(self.qo[row])
            out, lse = dense_attention(
                self.q[first : first + new], self.row(self.k, row), self.row(self.v, row), seen,
                scale=scale, softcap=softcap,
            )  # fmt: skip
            outs.append(out)
            sums.append(lse.T / torch.log(torch.tensor(2.0)))
        return torch.cat(outs), torch.cat(sums)


def workspace() -> torch.Tensor:
    return torch.empty(WORKSPACE, dtype=torch.uint8)


def decode_wrapper(batch: Pages, room: int = 64, **given: Any) -> Any:
    """A wrapper for a graph of the batch's size, whose buffers hold nothing of it yet."""
    rows = len(batch.lens)
    return BatchDecodeWithPagedKVCacheWrapper(
        workspace(), batch.layout, use_cuda_graph=True,
        paged_kv_indptr_buffer=torch.zeros(rows + 1, dtype=torch.int32),
        paged_kv_indices_buffer=torch.zeros(room, dtype=torch.int32),
        paged_kv_last_page_len_buffer=torch.ones(rows, dtype=torch.int32), **given,
    )  # fmt: skip


def prefill_wrapper(batch: Pages, room: int = 64, **given: Any) -> Any:
    """The same for several queries in a row."""
    rows = len(batch.lens)
    return BatchPrefillWithPagedKVCacheWrapper(
        workspace(), batch.layout, use_cuda_graph=True,
        qo_indptr_buf=torch.zeros(rows + 1, dtype=torch.int32),
        paged_kv_indptr_buf=torch.zeros(rows + 1, dtype=torch.int32),
        paged_kv_indices_buf=torch.zeros(room, dtype=torch.int32),
        paged_kv_last_page_len_buf=torch.ones(rows, dtype=torch.int32), **given,
    )  # fmt: skip


def plan_decode(wrapper: Any, batch: Pages, **given: Any) -> None:
    wrapper.plan(
        batch.indptr, batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, batch.page,
        q_data_type=batch.q.dtype, kv_data_type=batch.dtype, **given,
    )  # fmt: skip


def plan_prefill(wrapper: Any, batch: Pages, **given: Any) -> None:
    wrapper.plan(
        batch.qo, batch.indptr, batch.indices, batch.last, HEADS, KV_HEADS, COLUMNS, batch.page,
        q_data_type=batch.q.dtype, kv_data_type=batch.dtype, **given,
    )  # fmt: skip
