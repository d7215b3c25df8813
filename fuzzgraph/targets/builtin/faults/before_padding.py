"""Metadata built before the inputs are padded, or before they have arrived."""

from __future__ import annotations

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.prefill import BreakableRunner, PiecewiseRunner
from fuzzgraph.targets.builtin.runners.speculation import VerifyRunner
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.world import Batch


class PadsAfterMetadata(GraphRunner):
    def prepare_replay(self, batch: Batch) -> None:
        size = self.choose_size(batch)
        if size is None:
            return super().prepare_replay(batch)
        static, raw, padded = self.static_for(size), self.raw_extent(batch), self.extent(size)
        context = FillContext(raw, padded)
        static.registry.copy(static.registry.pairs(batch, context))
        self.start_step(static, raw, padded, size, padded.tokens)
        self.fill_inputs(static.registry, batch, context, padded.tokens)


class MetadataOfRawRows(GraphRunner):
    def attended(self, raw: Extent, padded: Extent) -> Extent:
        return raw


def lengthen_last_row(registry: BufferRegistry, context: FillContext) -> None:
    """Count the padded tokens as new ones of the last request."""
    if context.raw.rows:
        new_lens = registry.view("new_lens", context.raw)
        new_lens[-1:] += context.padded.tokens - context.raw.tokens


class PiecewisePaddedTokens(PiecewiseRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        super().fill_inputs(registry, batch, context, sharded)
        lengthen_last_row(registry, context)


class BreakablePaddedTokens(BreakableRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        super().fill_inputs(registry, batch, context, sharded)
        lengthen_last_row(registry, context)


class MetadataBeforeInputs(VerifyRunner):
    def prepare_replay(self, batch: Batch) -> None:
        size = self.choose_size(batch)
        if size is None:
            return super().prepare_replay(batch)
        static, raw, padded = self.static_for(size), self.raw_extent(batch), self.extent(size)
        self.start_step(static, raw, padded, size, padded.tokens)
        self.fill_inputs(static.registry, batch, FillContext(raw, padded), padded.tokens)


class CopyArrivesLate(GraphRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        seen = registry.view("input_ids", context.padded).clone()
        super().fill_inputs(registry, batch, context, sharded)
        registry.view("input_ids", context.padded).copy_(seen)


FAULTS = (
    Fault(
        name="vllm-pr-28579-metadata-before-padding",
        source="vLLM PR 28579, sglang PR 27752: a batch is padded after its metadata was built",
        kind="metadata built before padding",
        clause="reads",
        trigger="a padded batch after a larger one",
        components=engine(decode=PadsAfterMetadata),
    ),
    Fault(
        name="xllm-pr-1939-metadata-of-raw-rows",
        source="xLLM PR 1939: metadata for 100 sequences, a graph for 112 rows",
        kind="padded row stale",
        clause="metadata",
        trigger="a padded batch",
        components=engine(decode=MetadataOfRawRows),
    ),
    Fault(
        name="vllm-pr-36626-metadata-of-padded-tokens",
        source="vLLM PR 36626: piecewise metadata is built from the padded token count",
        kind="metadata built before padding",
        clause="computes",
        trigger="a padded prefill",
        components=engine(piecewise=PiecewisePaddedTokens, breakable=BreakablePaddedTokens),
    ),
    Fault(
        name="sglang-pr-32219-metadata-before-inputs",
        source="sglang PR 32219 (review): graph buffers are copied on the plan stream before the"
        " draft stream has written them",
        kind="order",
        clause="history",
        trigger="any replayed verify",
        components=engine(verify=MetadataBeforeInputs),
    ),
    Fault(
        name="hip-issue-3902-copy-not-seen",
        source="HIP issue 3902: a replay reads a device buffer as it was before the copy just made",
        kind="graph runtime",
        clause="metadata",
        trigger="any decode",
        components=engine(decode=CopyArrivesLate),
    ),
)
