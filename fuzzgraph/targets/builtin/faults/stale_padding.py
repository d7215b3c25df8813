"""Rows beyond the live ones that keep what an earlier, larger batch left there."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.case import Mode
from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.draft_indices import DraftKvIndices
from fuzzgraph.targets.builtin.metadata.kv_indices import KvView
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.registry import GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import RESERVED_ROW


class _StaleRows(Slots):
    """`req_pool_indices` of padded rows are not reset in one runner."""

    stale_in: Mode
    stale_runner = "graph"

    def req_pool_indices(self) -> GraphSlot:
        slot = super().req_pool_indices()
        if (self.mode, self.config.runner) != (self.stale_in, self.stale_runner):
            return slot
        return replace(slot, policy=PaddingPolicy.KEEP)


class StaleRowsInDecode(_StaleRows):
    stale_in = "decode"


class StaleRowsInCpuGraph(_StaleRows):
    stale_in = "decode"
    stale_runner = "cpu_graph"


class StaleRowsInDraftExtend(_StaleRows):
    stale_in = "draft_extend"


class StaleRowsInDraft(_StaleRows):
    stale_in = "draft"


class KeepsPageTableRows(PageTable):
    def write_table(self, view: PageView) -> None:
        before = view.table.clone()
        super().write_table(view)
        padded = (view.request_rows == RESERVED_ROW).unsqueeze(1)
        torch.where(padded, before, view.table, out=view.table)


class StaleCacheLoc(Slots):
    def out_cache_loc(self) -> GraphSlot:
        return replace(super().out_cache_loc(), policy=PaddingPolicy.KEEP)


class StaleDraftCacheLoc(Slots):
    def draft_cache_loc(self) -> GraphSlot:
        return replace(super().draft_cache_loc(), policy=PaddingPolicy.KEEP)


class RawLengthSum(DraftKvIndices):
    def find_places(self, view: KvView) -> None:
        super().find_places(view)
        raw_sum = (view.kv_lens * (view.request_rows != RESERVED_ROW)).sum()
        torch.ge(view.lanes, raw_sum, out=view.beyond)
        view.places.masked_fill_(view.beyond, self.tokens.flat.base)


class StaleLastTokens(Slots):
    def new_lens(self) -> GraphSlot:
        return replace(super().new_lens(), policy=PaddingPolicy.FILL_ONCE)


def _stale_rows(runner: str, where: str, slots: type[Slots]) -> Fault:
    return Fault(
        name=f"sglang-stale-req-pool-indices-{runner}",
        source=f"sglang up to 0.5.12, {where}: req_pool_indices of padded rows are not zeroed, so"
        " dummy reads follow another request's req_to_token row",
        kind="padded row stale",
        clause="reads",
        trigger="a padded batch after a larger one",
        components=engine(slots=slots),
    )


FAULTS = (
    _stale_rows("decode", "DecodeInputBuffers.populate_from_forward_batch", StaleRowsInDecode),
    _stale_rows("cpu-graph", "CPUGraphRunner.prepare_replay", StaleRowsInCpuGraph),
    _stale_rows("draft-extend", "EAGLEDraftExtendCudaGraphRunner.replay", StaleRowsInDraftExtend),
    _stale_rows("draft", "FrozenKVMTPCudaGraphRunner.replay", StaleRowsInDraft),
    Fault(
        name="lmdeploy-pr-4569-page-table-keeps-padded-rows",
        source="LMDeploy PR 4569: block_offsets of padded rows keep the previous step's blocks",
        kind="padded row stale",
        clause="reads",
        trigger="a page table, and a padded batch after a larger one",
        components=metadata(page_table=KeepsPageTableRows),
    ),
    Fault(
        name="rtp-llm-pr-1321-padded-rows-write-live-blocks",
        source="rtp-llm PR 1321 (review): padded rows keep block ids and write blocks of others",
        kind="padded row stale",
        clause="writes",
        trigger="a padded batch after a larger one",
        components=engine(slots=StaleCacheLoc),
    ),
    Fault(
        name="sglang-pr-25529-draft-cache-loc-not-padded",
        source="sglang PR 25529: the draft replay pads batch and lengths, out_cache_loc stays raw",
        kind="padded row stale",
        clause="writes",
        trigger="a padded draft after a larger one",
        components=engine(slots=StaleDraftCacheLoc),
    ),
    Fault(
        name="sglang-pr-26880-seq-lens-sum-raw",
        source="sglang PR 26880: the EAGLE draft runner pads seq_lens, but not seq_lens_sum, which"
        " cuts the list of indices short",
        kind="padded row stale",
        clause="reads",
        trigger="a padded draft",
        components=metadata(draft_indices=RawLengthSum),
    ),
    Fault(
        name="vllm-pr-39773-last-token-indices-not-padded",
        source="vLLM PR 39773: last_token_indices are not padded; here new_lens, from whose sums"
        " qo_indptr each row's last token follows",
        kind="padded row stale",
        clause="metadata",
        trigger="a padded draft_extend after a larger one",
        components=engine(slots=StaleLastTokens),
    ),
)
