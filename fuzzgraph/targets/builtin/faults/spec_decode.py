"""Shapes of speculative decoding: ragged accept lengths."""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.runners.base import StaticBatch
from fuzzgraph.targets.builtin.runners.speculation import DraftExtendRunner


class FixedStride(MetadataBuilder):
    def write_query_offsets(self, view: BuiltView) -> None:
        if self.mode != "draft_extend":
            super().write_query_offsets(view)


class EagerKeepsOffsets(DraftExtendRunner):
    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        before = None if view.qo_indptr is None else view.qo_indptr.clone()
        built = super().build_metadata(static, view)
        if static is self.eager_static and view.qo_indptr is not None and before is not None:
            view.qo_indptr.copy_(before)
        return built


FAULTS = (
    Fault(
        name="sglang-pr-21987-fixed-stride-query-offsets",
        source="sglang PR 21987: draft_extend is captured with offsets of a fixed stride, accept"
        " lengths vary",
        kind="spec-decode shape",
        clause="computes",
        trigger="a draft_extend whose accept lengths differ from the draft width",
        components=engine(builder=FixedStride),
    ),
    Fault(
        name="sglang-pr-36915-eager-query-offsets-stale",
        source="sglang PR 36915: the eager draft_extend uses stale qo_indptr, the graph is right",
        kind="capture and replay disagree",
        clause="computes",
        trigger="a draft_extend whose accept lengths differ from the draft width",
        components=engine(draft_extend=EagerKeepsOffsets),
    ),
)
