"""Bugs whose trigger is rare by chance are found soon: each engine here is wrong in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzzgraph.faults import FAULTS
from fuzzgraph.faults.scoring import find_fault
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.faults.fault import engine
from fuzzgraph.targets.builtin.metadata.builder import BuiltView
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.registry import GraphSlot
from fuzzgraph.targets.builtin.runners.base import GraphRunner, StaticBatch
from fuzzgraph.targets.builtin.runners.prefill import PiecewiseRunner
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.targets.builtin.trees import ancestors

SEEDS = (2, 3)


class OneContextForEagerPrefill(PiecewiseRunner):
    """Its eager buffers hold one full context, however many requests are prefilled at once."""

    def largest_eager(self) -> Extent:
        rows = self.config.req_pool_size
        return Extent(rows, rows + self.config.max_context_len)


class TakesNewcomersForTheirPredecessors(GraphRunner):
    """Where a row of the pool is one token longer than before, its older slots are not read anew.

    That is right while the same request grows, and wrong for one that got its row.
    """

    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        built = super().build_metadata(static, view)
        if self.outputs and view.kv is not None and static is not self.eager_static:
            self.reuse(view)
        return built

    def reuse(self, view: BuiltView) -> None:
        assert view.kv is not None
        known = vars(self).setdefault("known", {})
        offsets = view.kv.indptr.tolist()
        for row, first, end in zip(
            view.kv.request_rows.tolist(), offsets, offsets[1:], strict=False
        ):
            slots, before = view.kv.indices[first:end], known.get(row)
            if before is not None and len(before) == len(slots) - 1:
                slots[:-1] = before
            known[row] = slots.clone()


class SeesPastTheWindow(Slots):
    """Drafts see all of their ancestors, also those that the window has left behind."""

    def tree_mask(self) -> GraphSlot:
        return replace(super().tree_mask(), source=lambda batch: ancestors(batch.tree_parents))


ENGINES: dict[str, Components] = {
    "an eager prefill far above the ladder": engine(piecewise=OneContextForEagerPrefill),
    "a newcomer one token longer": engine(decode=TakesNewcomersForTheirPredecessors),
    "a window shorter than a draft tree": engine(slots=SeesPastTheWindow),
    "recurrent state": FAULTS["tensorrt-llm-pr-9873-repeated-state-index"].components,
    "the runner on the CPU": FAULTS["sglang-stale-req-pool-indices-cpu-graph"].components,
}


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ENGINES)
def test_a_rare_trigger_is_drawn_within_two_hundred_cases_of_one_of_two_seeds(
    trigger: str,
) -> None:
    target = BuiltinTarget(ENGINES[trigger])
    assert any(find_fault(target, seed, 200) for seed in SEEDS)
