"""Numbers and addresses that keep the value they had at capture."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.metadata.page_table import PageTable
from fuzzgraph.targets.builtin.metadata.work_plan import WorkPlan
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import FillContext, GraphSlot
from fuzzgraph.targets.builtin.shape import pages_for
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import Batch


class FewerSplits(WorkPlan):
    def max_chunks(self) -> int:
        return pages_for(self.max_len, 2 * self.chunk_len)


class SourceFrozen(KvIndices):
    def first_places(self, view: KvView) -> None:
        if view.rows not in vars(self).setdefault("resolved", set()):
            super().first_places(view)
            vars(self)["resolved"].add(view.rows)


class HostPositions(Slots):
    def positions(self) -> GraphSlot:
        if self.mode != "target_verify":
            return super().positions()
        return replace(super().positions(), source=None, post_fill=self.first_of_each_row)

    def first_of_each_row(self, tokens: torch.Tensor, batch: Batch, context: FillContext) -> None:
        width = self.config.draft_tokens
        live = batch.positions[::width].copy()
        tokens[: context.raw.tokens : width].copy_(torch.from_numpy(live))


class SplitCountReadBack(BuiltinModel):
    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        longest = int(batch.kv_lens.max()) if batch.plan is not None else batch.max_kv_len
        super().attention(q, out, replace(batch, max_kv_len=longest))


class NarrowPages(PageTable):
    def page_of(self, slots: torch.Tensor) -> torch.Tensor:
        first_slots = super().page_of(slots) * self.page_size
        narrow = first_slots.to(torch.int8)  # 8 bits stand for 32: our pools are small
        return super().page_of(narrow.to(slots.dtype))


FAULTS = (
    Fault(
        name="vllm-pr-20301-frozen-split-count",
        source="vLLM PR 20301: the split factor at replay exceeds the number of splits captured",
        kind="baked scalar",
        clause="computes",
        trigger="a split plan and a sequence longer than half the context",
        components=metadata(plan=FewerSplits),
    ),
    Fault(
        name="ik-llama-pr-2136-frozen-copy-source",
        source="ik_llama.cpp PR 2136: a changed source address of a copy does not reach the graph",
        kind="baked scalar",
        clause="reads",
        trigger="any replay",
        components=metadata(kv_indices=SourceFrozen),
    ),
    Fault(
        name="tensorrt-llm-pr-17110-host-positions-frozen",
        source="TensorRT-LLM PR 17110: positions of all but a row's first token stay as captured",
        kind="baked scalar",
        clause="computes",
        trigger="a verify",
        components=engine(slots=HostPositions),
    ),
    Fault(
        name="sglang-pr-7184-split-count-read-back",
        source="sglang PR 7184: a split count that depends on the lengths is not graph-safe",
        kind="baked scalar",
        clause="survives",
        trigger="a split plan",
        components=engine(model=SplitCountReadBack),
    ),
    Fault(
        name="vllm-pr-47671-narrow-page-number",
        source="vLLM PR 47671: page number times page stride overflows its integer",
        kind="narrow integer",
        clause="reads",
        trigger="a page table and a page that starts at slot 128 or later",
        components=metadata(page_table=NarrowPages),
    ),
)
