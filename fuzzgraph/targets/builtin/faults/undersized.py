"""Buffers that are too small for what is written or read."""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.builder import MetadataBuilder
from fuzzgraph.targets.builtin.metadata.draft_indices import DraftKvIndices
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices
from fuzzgraph.targets.builtin.metadata.mask import TreeMask
from fuzzgraph.targets.builtin.shape import pages_for


class IndptrAtPoolSize(KvIndices):
    def indptr_capacity(self) -> int:
        return self.tokens.config.req_pool_size + 1


class IndicesInPages(KvIndices):
    def indices_capacity(self) -> int:
        return self.max_rows * pages_for(self.row_width, self.tokens.config.page_size)


class IndicesWithoutTopk(DraftKvIndices):
    def indices_capacity(self) -> int:
        return self.max_rows // self.tokens.config.spec_topk * self.row_width


class TableWithoutDrafts(MetadataBuilder):
    def table_len(self) -> int:
        speculates = self.mode in ("target_verify", "draft_extend")
        drafts = self.config.draft_tokens if speculates else 0
        return max(1, self.max_kv_len() - drafts)


class MaskWithoutDrafts(TreeMask):
    def mask_capacity(self) -> int:
        return self.max_rows * self.draft_tokens * (self.max_len - self.draft_tokens)


FAULTS = (
    Fault(
        name="sglang-pr-22598-indptr-at-pool-size",
        source="sglang PR 22598: kv_indptr stays at pool size although capture sizes are padded"
        " beyond the pool",
        kind="undersized buffer",
        clause="survives",
        trigger="a captured size above the request pool",
        components=metadata(kv_indices=IndptrAtPoolSize),
    ),
    Fault(
        name="sglang-pr-24587-kv-indices-in-pages",
        source="sglang PR 24587: cuda_graph_kv_indices is sized in pages and written in tokens",
        kind="undersized buffer",
        clause="writes",
        trigger="page_size > 1 and sequences longer than the captured rows' pages",
        components=metadata(kv_indices=IndicesInPages),
    ),
    Fault(
        name="sglang-pr-27338-draft-indices-without-topk",
        source="sglang PR 27338: the multi-step draft's kv_indices buffer lacks the topk factor",
        kind="undersized buffer",
        clause="writes",
        trigger="topk >= 2 and topk * sum(seq_lens) above max_bs * context",
        components=metadata(draft_indices=IndicesWithoutTopk),
    ),
    Fault(
        name="sglang-pr-19016-page-table-without-drafts",
        source="sglang PR 19016, 29665, 35985: the page table lacks what speculation adds",
        kind="undersized buffer",
        clause="reads",
        trigger="verify or draft_extend with a page table, near the end of the context",
        components=engine(builder=TableWithoutDrafts),
    ),
    Fault(
        name="sglang-pr-29450-mask-without-draft-columns",
        source="sglang PR 29450: the custom mask buffer lacks the columns of the draft tokens",
        kind="undersized buffer",
        clause="writes",
        trigger="verify at full context and full batch",
        components=metadata(mask=MaskWithoutDrafts),
    ),
)
