"""A stream that does not wait for what another one writes."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.builtin.faults.fault import Fault
from fuzzgraph.targets.builtin.runners.context import Outputs, Step
from fuzzgraph.targets.builtin.runners.side_streams import SideStreamRunner, on_side_streams


class PlanBeforeInputs(SideStreamRunner):
    def fork(self, stream: Any) -> None:
        if stream is not self.plan_stream:
            super().fork(stream)


class ReplayBeforePlan(SideStreamRunner):
    def join(self, stream: Any) -> None:
        if stream is not self.plan_stream:
            super().join(stream)


class UpgradeBesideAttention(SideStreamRunner):
    def join(self, stream: Any) -> None:
        if stream is not self.side_stream:
            super().join(stream)

    def run_forward(self, step: Step) -> Outputs:
        outputs = super().run_forward(step)
        super().join(self.side_stream)
        return outputs


FAULTS = (
    Fault(
        name="sglang-issue-40025-plan-before-inputs",
        source="sglang issue 40025, PR 22113: metadata is built on a plan stream that does not wait"
        " for the copies of the inputs",
        kind="stream order",
        clause="reads",
        trigger="any decode",
        components=on_side_streams(PlanBeforeInputs),
        overlap="streams",
    ),
    Fault(
        name="vllm-pr-47404-replay-before-plan",
        source="vLLM PR 47404: a graph is replayed on a stream that does not wait for its metadata",
        kind="stream order",
        clause="reads",
        trigger="any decode",
        components=on_side_streams(ReplayBeforePlan),
        overlap="streams",
    ),
    Fault(
        name="sglang-pr-25729-upgrade-beside-attention",
        source="sglang PR 25729: metadata is upgraded on a side stream of the graph, and another"
        " one reads it without waiting",
        kind="stream order",
        clause="reads",
        trigger="a decode that upgrades metadata in its graph",
        components=on_side_streams(UpgradeBesideAttention),
        overlap="streams",
        recorded=True,
    ),
)
