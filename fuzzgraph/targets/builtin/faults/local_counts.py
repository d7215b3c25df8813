"""Counts of live tokens per rank, and batches without any."""

from __future__ import annotations

import numpy as np

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.prefill import BreakableRunner, PiecewiseRunner
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.world import Batch


class GlobalCountAtCapture(LocalTokens):
    def at_capture(self, padded_tokens: int) -> int:
        return padded_tokens


class WholeRankCount(LocalTokens):
    def live(self, total_live: int, padded_tokens: int) -> int:
        return min(total_live, self.per_rank(padded_tokens))


class PiecewiseKeepsCount(PiecewiseRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        registry.fill_from(batch, context)


class BreakableKeepsCount(BreakableRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        registry.fill_from(batch, context)


class IdleLastToken(GraphRunner):
    def raw_extent(self, batch: Batch) -> Extent:
        return Extent(batch.raw_bs, int(np.cumsum(batch.new_lens)[-1]))


class IdleKeepsRows(GraphRunner):
    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        if batch.raw_bs:
            super().fill_inputs(registry, batch, context, sharded)


class IdleRankNotPadded(GraphRunner):
    def size_of(self, batch: Batch) -> int:
        return super().size_of(batch) if batch.raw_bs else 0


FAULTS = (
    Fault(
        name="sglang-pr-22404-capture-token-count",
        source="sglang PR 22404: num_token_non_padded at capture is the global count, at replay"
        " the local one",
        kind="local counts",
        clause="metadata",
        trigger="attention-TP above 1",
        components=engine(local=GlobalCountAtCapture),
    ),
    Fault(
        name="sglang-pr-9107-whole-rank-count",
        source="sglang PR 9107: the count covers the whole DP rank although attention-TP shards it",
        kind="local counts",
        clause="metadata",
        trigger="a rank above 0 and fewer live tokens than padded ones",
        components=engine(local=WholeRankCount),
    ),
    Fault(
        name="sglang-pr-35588-prefill-keeps-count",
        source="sglang PR 35588: the prefill graph never gets num_token_non_padded",
        kind="local counts",
        clause="metadata",
        trigger="a prefill with attention-TP above 1",
        components=engine(piecewise=PiecewiseKeepsCount, breakable=BreakableKeepsCount),
    ),
    Fault(
        name="sglang-pr-39899-idle-rank-last-token",
        source="sglang PR 39899: an idle rank's empty batch has no last token to index",
        kind="empty batch",
        clause="survives",
        trigger="an idle step",
        components=engine(decode=IdleLastToken),
    ),
    Fault(
        name="vllm-pr-37728-idle-batch-keeps-rows",
        source="vLLM PR 37728: the rows of a dummy batch still map to the blocks of the last one",
        kind="empty batch",
        clause="writes",
        trigger="an idle step after a decode",
        components=engine(decode=IdleKeepsRows),
    ),
    Fault(
        name="vllm-pr-34064-idle-rank-not-padded",
        source="vLLM PR 34064: the dummy batch of an idle rank is not padded to the tokens that all"
        " ranks replay",
        kind="local counts",
        clause="metadata",
        trigger="an idle step while another data-parallel rank has more rows than the smallest"
        " graph",
        components=engine(decode=IdleRankNotPadded),
    ),
)
