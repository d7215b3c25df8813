"""Plans and derived metadata that are not written for this batch, or not for its graph."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.faults.fault import Fault, engine, metadata
from fuzzgraph.targets.builtin.metadata.builder import BuiltView, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.kv_indices import KvView
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.metadata.work_plan import PlanView, WorkPlan
from fuzzgraph.targets.builtin.runners.base import GraphRunner, StaticBatch


class PlannedOnce(WorkPlan):
    def write(self, view: PlanView) -> None:
        planned = vars(self).setdefault("planned", set())
        if view.extent not in planned:
            planned.add(view.extent)
            super().write(view)


class UpgradedInWarmUp(MetadataBuilder):
    def upgrade_in_graph(self, raw: RawMetadata, view: BuiltView) -> FullMetadata:
        upgraded = vars(self).setdefault("upgraded", set())
        if view.extent in upgraded:
            return view.full
        upgraded.add(view.extent)
        return super().upgrade_in_graph(raw, view)


class PaddedItemsValid(WorkPlan):
    def write(self, view: PlanView) -> None:
        super().write(view)
        view.plan.item_chunks.masked_fill_(view.plan.valid == 0, 0)
        view.plan.merge_indptr[-1] = view.plan.valid.numel()
        view.plan.valid.fill_(1)


def mirror(view: KvView) -> None:
    """List each row's keys from last to first: the same sum in another order."""
    last = view.starts + view.ends - 1
    place = last.index_select(0, view.owners) - view.lanes
    place = torch.where(view.beyond, view.lanes, place)
    view.indices.copy_(view.indices.index_select(0, place))


class RemembersLastBatch(GraphRunner):
    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        built = super().build_metadata(static, view)
        if self.outputs and view.kv is not None and view.extent.rows:
            mirror(view.kv)
        return built


class OtherSplitsInReplay(GraphRunner):
    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        built = super().build_metadata(static, view)
        if static is not self.eager_static and view.kv is not None and view.extent.rows:
            mirror(view.kv)
        return built


class LastPageLenStale(PageTable):
    def write_last_page_len(self, view: PageView) -> None:
        pass


FAULTS = (
    Fault(
        name="rtp-llm-pr-378-plan-not-re-run",
        source="rtp-llm PR 378: the plan is not run again before a replay",
        kind="stale plan",
        clause="computes",
        trigger="a split plan and lengths other than at capture",
        components=metadata(plan=PlannedOnce),
    ),
    Fault(
        name="vllm-pr-42444-plan-made-in-warm-up",
        source="vLLM PR 42444: a lazy plan is made in warm-up, so that the graph does not hold it",
        kind="stale plan",
        clause="computes",
        trigger="metadata built in the graph, on the smallest captured size",
        components=engine(builder=UpgradedInWarmUp),
    ),
    Fault(
        name="flashinfer-issue-4002-padded-items-valid",
        source="FlashInfer issue 4002: a no-split plan launches padded work items without a mask",
        kind="stale plan",
        clause="computes",
        trigger="a split plan and a row shorter than the context",
        components=metadata(plan=PaddedItemsValid),
    ),
    Fault(
        name="vllm-pr-28702-replay-splits-otherwise",
        source="vLLM PR 28702, 27128: the replay sums in another order than it reports",
        kind="capture and replay disagree",
        clause="computes",
        trigger="a decode of a few tokens",
        components=engine(decode=OtherSplitsInReplay),
    ),
    Fault(
        name="vllm-pr-25490-plan-remembers-last-batch",
        source="vLLM PR 25490: the plan depends on the batch before; here on whether there was one",
        kind="stale plan",
        clause="history",
        trigger="a second decode, of a few tokens",
        components=engine(decode=RemembersLastBatch),
    ),
    Fault(
        name="vllm-ascend-pr-10895-last-page-length-stale",
        source="vllm-ascend PR 10895: the KV length that sparse attention reads is not refreshed",
        kind="stale plan",
        clause="metadata",
        trigger="a page table",
        components=metadata(page_table=LastPageLenStale),
    ),
)
