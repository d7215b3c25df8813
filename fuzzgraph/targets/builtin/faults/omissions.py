"""Updates that are made on one path and forgotten on another; edges that are off by one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext, GraphSlot
from fuzzgraph.targets.builtin.slots import decode_registry
from fuzzgraph.world import RESERVED_SLOT


class KeepsOmitted(BufferRegistry):
    def neutralize(self, slot: GraphSlot, context: FillContext) -> None:
        pass


class CopiesLargerPagesOnly(PageTable):
    def write_table(self, view: PageView) -> None:
        if self.page_size > 1:
            super().write_table(view)


class WindowWithoutItself(MetadataBuilder):
    def attention_batch(self, view: BuiltView) -> AttentionBatch:
        batch = super().attention_batch(view)
        return replace(batch, window=max(batch.window - 1, min(batch.window, 1)))


class SpreadsPadding(BuiltinModel):
    def store(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        places = torch.arange(len(slots), device=slots.device) % self.config.page_size
        super().store(torch.where(slots == RESERVED_SLOT, places, slots), k, v)


FAULTS = (
    Fault(
        name="tensorrt-llm-pr-18207-omitted-mrope-kept",
        source="TensorRT-LLM PR 18207: the mrope buffer keeps old values when the input is omitted",
        kind="padded row stale",
        clause="history",
        trigger="mrope present, then absent",
        components=engine(decode_registry=partial(decode_registry, registry=KeepsOmitted)),
    ),
    Fault(
        name="sglang-pr-34833-page-table-of-larger-pages-only",
        source="sglang PR 34833: AITER's unified decode copies its page table for page_size > 1",
        kind="page granularity",
        clause="reads",
        trigger="a page table at page_size 1",
        components=metadata(page_table=CopiesLargerPagesOnly),
    ),
    Fault(
        name="sglang-pr-32087-window-off-by-one",
        source="sglang PR 32087: decode keeps as many keys as the window, elsewhere it is one more",
        kind="sliding window",
        clause="computes",
        trigger="a sequence longer than a window of at least 2",
        components=engine(builder=WindowWithoutItself),
    ),
    Fault(
        name="vllm-issue-13418-padded-tokens-written",
        source="vLLM issue 13418: the token count comes from the padded key, so that padded tokens"
        " are written too; here to the rest of the reserved page, which nobody reads",
        kind="padded row stale",
        clause="writes",
        trigger="two padded tokens at page_size > 1",
        components=engine(model=SpreadsPadding),
    ),
)
