"""Lengths of 0, of 1 and below, and the lengths that padded rows are given."""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.registry import BufferRegistry, GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.speculation import DraftExtendRunner, VerifyRunner
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import Slots


class StaleLengths(Slots):
    def seq_lens(self) -> GraphSlot:
        return replace(super().seq_lens(), policy=PaddingPolicy.FILL_ONCE)


class DraftFillsOne(Slots):
    def seq_len_fill_value(self) -> int:
        return 1 if self.mode == "draft" else super().seq_len_fill_value()


class SeededWithOnes(GraphRunner):
    def fill_dummies(self, registry: BufferRegistry, extent: Extent) -> None:
        super().fill_dummies(registry, extent)
        registry.view("seq_lens", extent).fill_(1)


class VerifySeededWithOnes(SeededWithOnes, VerifyRunner):
    """The same in verify."""


class DraftExtendSeededWithOnes(SeededWithOnes, DraftExtendRunner):
    """The same in draft_extend."""


class NegativePadding(Slots):
    def seq_len_fill_value(self) -> int:
        drafts = self.config.draft_tokens if self.mode == "target_verify" else 0
        return super().seq_len_fill_value() - drafts


class LengthsWithoutDrafts(Slots):
    def seq_lens(self) -> GraphSlot:
        if self.mode != "target_verify":
            return super().seq_lens()
        return replace(super().seq_lens(), source=lambda batch: batch.cached_lens)


FAULTS = (
    Fault(
        name="sglang-pr-1094-padded-lengths-stale",
        source="sglang PR 1094: the padded length used in graph replay is wrong for unused rows",
        kind="length edge",
        clause="metadata",
        trigger="a padded batch after one that was larger and longer",
        components=engine(slots=StaleLengths),
    ),
    Fault(
        name="sglang-pr-7233-draft-fills-one",
        source="sglang PR 7233: draft runners fill 1 instead of the backend's fill value",
        kind="length edge",
        clause="metadata",
        trigger="a padded draft where the fill value is 0",
        components=engine(slots=DraftFillsOne),
    ),
    Fault(
        name="sglang-pr-1469-seed-differs-from-fill",
        source="sglang PR 1469: seq_lens is seeded with ones where the fill value is 0",
        kind="length edge",
        clause="metadata",
        trigger="a graph of decode, verify or draft_extend where the fill value is 0",
        components=engine(
            decode=SeededWithOnes,
            verify=VerifySeededWithOnes,
            draft_extend=DraftExtendSeededWithOnes,
        ),
    ),
    Fault(
        name="vllm-ascend-pr-12840-negative-lengths",
        source="vllm-ascend PR 12840: padded rows of length 0 lose their draft tokens once more",
        kind="length edge",
        clause="metadata",
        trigger="a padded verify",
        components=engine(slots=NegativePadding),
    ),
    Fault(
        name="sglang-pr-36430-verify-without-drafts",
        source="sglang PR 36430: verify reads the raw seq_lens again and drops the draft tokens",
        kind="spec-decode shape",
        clause="computes",
        trigger="any verify",
        components=engine(slots=LengthsWithoutDrafts),
    ),
)
