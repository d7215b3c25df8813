"""Buffers replaced after capture, and results that later replays rewrite."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.runners.base import GraphRunner, Outputs
from fuzzgraph.targets.builtin.runners.prefill import BreakableRunner, PiecewiseRunner
from fuzzgraph.targets.builtin.runners.speculation import DraftRunner
from fuzzgraph.world import Batch


class TableReallocated(MetadataBuilder):
    def build(self, view: BuiltView) -> None:
        if self.pages is not None:
            self.pages.table = torch.zeros_like(self.pages.table)
            view.pages = self.pages.view(view.extent.rows, view.raw.request_rows, view.raw.seq_lens)
            view.full = self.assemble(view)
        super().build(view)


class IndptrRebuilt(KvIndices):
    def write_indptr(self, view: KvView) -> None:
        rebuilt = torch.zeros_like(self.indptr)
        torch.cumsum(view.kv_lens, 0, dtype=torch.int32, out=rebuilt[1 : view.rows + 1])
        self.indptr = rebuilt


class QueryOffsetsRebuilt(MetadataBuilder):
    def write_query_offsets(self, view: BuiltView) -> None:
        if view.qo_indptr is None or view.raw.new_lens is None:
            return
        view.qo_indptr = torch.zeros_like(view.qo_indptr)
        super().write_query_offsets(view)
        view.full = self.assemble(view)


class WorkspaceGrows(PiecewiseRunner):
    def prepare_eager(self, batch: Batch) -> None:
        if batch.num_tokens > len(self.attention_out):
            shape = (batch.num_tokens, *self.attention_out.shape[1:])
            self.attention_out = self.attention_out.new_zeros(shape)
        super().prepare_eager(batch)


class BreakableWorkspaceGrows(WorkspaceGrows, BreakableRunner):
    """The same in the other prefill runner."""


class CountRebound(GraphRunner):
    def write_local_tokens(self, registry: BufferRegistry, live: int) -> None:
        name = "num_token_non_padded"
        if name in registry.buffers:
            registry.buffers[name] = torch.full_like(registry.buffers[name], live)


class ResultsAreViews(DraftRunner):
    def handed_out(self, outputs: Outputs) -> Outputs:
        return outputs


FAULTS = (
    Fault(
        name="sglang-pr-6998-block-table-reallocated",
        source="sglang PR 6998, vllm-ascend PR 8508: the block table is allocated anew for each"
        " batch, the graph reads the one of its capture",
        kind="reallocated buffer",
        clause="metadata",
        trigger="a page table and any replay",
        components=engine(builder=TableReallocated),
    ),
    Fault(
        name="sglang-pr-26019-indptr-rebuilt-at-replay",
        source="sglang PR 26019: capture and replay share code that builds new tensors",
        kind="reallocated buffer",
        clause="metadata",
        trigger="any replay",
        components=metadata(kv_indices=IndptrRebuilt),
    ),
    Fault(
        name="rtp-llm-pr-1259-query-offsets-reallocated",
        source="rtp-llm PR 1259 (review): cu_seq_lens is allocated anew on replay",
        kind="reallocated buffer",
        clause="history",
        trigger="a replayed draft_extend whose accept lengths are not those of the capture",
        components=engine(builder=QueryOffsetsRebuilt),
    ),
    Fault(
        name="vllm-pr-55341-workspace-grows-after-capture",
        source="vLLM PR 55341, 50386, 46067: an eager batch that needs more replaces the workspace"
        " that graphs read",
        kind="reallocated buffer",
        clause="history",
        trigger="an eager prefill above the ladder, then a graph",
        components=engine(piecewise=WorkspaceGrows, breakable=BreakableWorkspaceGrows),
    ),
    Fault(
        name="pytorch-issue-114844-count-rebound",
        source="PyTorch issue 114844: binding an attribute to a new tensor is not replayed",
        kind="reallocated buffer",
        clause="metadata",
        trigger="a decode with attention-TP above 1",
        components=engine(decode=CountRebound),
    ),
    Fault(
        name="sglang-pr-23037-results-are-views",
        source="sglang PR 23037: what the draft hands out are views of its graph's output",
        kind="aliased outputs",
        clause="history",
        trigger="two drafts on one graph",
        components=engine(draft=ResultsAreViews),
    ),
)
