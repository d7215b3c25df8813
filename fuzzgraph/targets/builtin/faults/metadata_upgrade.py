"""Metadata of the wrong type, of the wrong size, or of the wrong graph."""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.runners.base import StaticBatch
from fuzzgraph.targets.builtin.runners.prefill import PiecewiseRunner
from fuzzgraph.targets.builtin.runners.speculation import DraftExtendRunner, VerifyRunner
from fuzzgraph.world import Batch


class PiecewiseStaysRaw(PiecewiseRunner):
    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        if self.config.metadata == "full" or not self.records or static is self.eager_static:
            return super().build_metadata(static, view)
        return static.builder.raw(view)


class UpgradeFrozen(MetadataBuilder):
    def prepare(self, view: BuiltView) -> RawMetadata | FullMetadata:
        if self.config.metadata != "raw_out_graph" or self.mode == "prefill":
            return super().prepare(view)
        return self.raw(view)

    def in_forward(self, metadata: RawMetadata | FullMetadata, view: BuiltView) -> FullMetadata:
        return super().in_forward(metadata, view) if self.upgrades_in_graph() else view.full


class CapturesLargestOnly(VerifyRunner):
    def capture_size(self, size: int) -> None:
        if size == max(self.sizes()):
            super().capture_size(size)


class SizedByTokens(DraftExtendRunner):
    def size_of(self, batch: Batch) -> int:
        return max(1, batch.num_tokens // self.config.draft_tokens)


FAULTS = (
    Fault(
        name="sglang-pr-26742-upgrade-dropped",
        source="sglang PR 26742 (review): the piecewise replay lost the call that upgrades its raw"
        " metadata",
        kind="metadata upgrade missing",
        clause="survives",
        trigger="a piecewise prefill on a graph with raw metadata",
        components=engine(piecewise=PiecewiseStaysRaw),
    ),
    Fault(
        name="sglang-pr-35275-upgrade-frozen",
        source="sglang PR 35275: the upgrade is hooked on another backend, and the forward goes on"
        " with the metadata upgraded before",
        kind="metadata upgrade missing",
        clause="metadata",
        trigger="metadata upgraded before the graph",
        components=engine(builder=UpgradeFrozen),
    ),
    Fault(
        name="sglang-pr-26665-no-metadata-of-this-size",
        source="sglang PR 26665: capture goes another way, what is kept per size stays empty",
        kind="metadata upgrade missing",
        clause="survives",
        trigger="a verify on a captured size below the largest",
        components=engine(verify=CapturesLargestOnly),
    ),
    Fault(
        name="vllm-issue-53051-graph-chosen-by-token-count",
        source="vLLM issue 53051: batches are told apart by their token count, and one that"
        " happens to have another's is sent to the other's graph",
        kind="wrong graph dispatched",
        clause="computes",
        trigger="a draft_extend of several requests with short accept lengths",
        components=engine(draft_extend=SizedByTokens),
    ),
)
