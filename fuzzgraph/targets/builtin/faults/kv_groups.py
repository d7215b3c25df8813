"""Two KV cache groups: one takes the other's tables, or keeps what the window has left behind."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.metadata.builder import MetadataBuilder
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.metadata.views import BuilderComponents
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import BufferRegistry, GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.context import Built
from fuzzgraph.targets.builtin.second_layer import SecondLayer
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW

_TINY = 2.0**-26
"""A softmax weight that should be 0: it moves the last bits of a float32 only."""


class StaleSecondSlots(Slots):
    def swa_out_cache_loc(self) -> GraphSlot:
        return replace(super().swa_out_cache_loc(), policy=PaddingPolicy.KEEP)


class SlotsOfFirstGroup(Slots):
    def swa_out_cache_loc(self) -> GraphSlot:
        return replace(super().swa_out_cache_loc(), source=lambda batch: batch.slot_mapping)


class SecondPlanNotRefreshed(GraphRunner):
    def build_second(self, builder: MetadataBuilder, extent: Extent) -> Built:
        all_captured = len(self.graphs) == len(self.sizes())
        if all_captured and builder is not self.eager_static.second:
            view = builder.view(extent)
            return Built(view, view.full)
        return super().build_second(builder, extent)


class PageSizeOfFirstGroup(GraphRunner):
    def make_second_builder(self, registry: BufferRegistry, second: SecondLayer) -> MetadataBuilder:
        shape = msgspec.structs.replace(second.config, page_size=self.config.page_size)
        return super().make_second_builder(registry, replace(second, config=shape))


class KeepsFreedPages(PageTable):
    """Pages that have left the window stay in their rows, as in a table that is only added to."""

    def write_table(self, view: PageView) -> None:
        before = view.table.clone()
        super().write_table(view)
        live = (view.request_rows != RESERVED_ROW).unsqueeze(1)
        freed = live & (view.table == RESERVED_PAGE) & (self._first < view.seq_lens.unsqueeze(1))
        torch.where(freed, before, view.table, out=view.table)


class ReadsBehindTheWindow(BuiltinModel):
    """The tile before the window is masked by a small weight instead of none."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        if not batch.window or batch.page_table is None or batch.qo_indptr is not None:
            return
        behind = (batch.kv_lens - 2 - batch.window).clamp(min=0).long()
        pages = batch.page_table.gather(1, (behind // batch.page_size).unsqueeze(1)).squeeze(1)
        slots = pages * batch.page_size + behind % batch.page_size
        values = self.kv.values().index_select(0, slots).to(out.dtype)
        out.add_(values.repeat_interleave(out.shape[1] // values.shape[1], dim=1), alpha=_TINY)


FAULTS = (
    Fault(
        name="sglang-pr-24743-second-groups-slots-stale",
        source="sglang PR 24743: out_cache_loc_swa is not zeroed on padding, so padded tokens write"
        " to slots of the sliding-window pool that earlier requests had",
        kind="KV cache groups",
        clause="writes",
        trigger="a smaller batch of a model with a sliding-window layer, padded",
        components=engine(slots=StaleSecondSlots),
    ),
    Fault(
        name="vllm-pr-50169-slots-of-another-group",
        source="vLLM PR 50169, 35062: a layer's new KV goes to slots that were worked out by the"
        " block table of another KV cache group",
        kind="KV cache groups",
        clause="writes",
        trigger="a model with a sliding-window layer",
        components=engine(slots=SlotsOfFirstGroup),
    ),
    Fault(
        name="tensorrt-llm-pr-18769-second-plan-not-refreshed",
        source="TensorRT-LLM PR 18769: of a model with full and sliding-window layers one plan"
        " is not refreshed before a replay",
        kind="stale plan",
        clause="computes",
        trigger="a model with a sliding-window layer, lengths other than at capture",
        components=engine(decode=SecondPlanNotRefreshed),
    ),
    Fault(
        name="vllm-pr-31540-page-size-of-another-group",
        source="vLLM PR 31540: the page size is the cache's, not that of the KV cache group",
        kind="KV cache groups",
        clause="computes",
        trigger="two groups of different page sizes, a page table",
        components=engine(decode=PageSizeOfFirstGroup),
    ),
    Fault(
        name="vllm-pr-47574-freed-pages-read",
        source="vLLM PR 47574: pages that a sliding-window group has freed are read by their old"
        " owner; here with a weight so small that no value changes beyond its last bits",
        kind="KV cache groups",
        clause="reads",
        trigger="a request that grows out of a page and the window, a page table",
        components=engine(
            model=ReadsBehindTheWindow,
            builder_components=BuilderComponents(page_table=KeepsFreedPages),
        ),
    ),
)
