"""A graph that uses a buffer which its engine let go of is found, and no other."""

from __future__ import annotations

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.finding import Finding
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.faults.fault import engine
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata
from fuzzgraph.targets.builtin.runners.base import GraphRunner, Outputs
from fuzzgraph.targets.builtin.runners.context import Step
from fuzzgraph.world import Batch


class Biased(GraphRunner):
    """Adds a number of zero to what attention gives, out of a buffer of its own."""

    def capture(self) -> None:
        self.bias = torch.zeros(2)
        super().capture()

    def run_model(self, step: Step, metadata: FullMetadata) -> Outputs:
        outputs = super().run_model(step, metadata)
        if "bias" in vars(self):
            outputs["attention"] = outputs["attention"] + self.bias[0]
        return outputs


class DroppedBehindCapture(Biased):
    def capture(self) -> None:
        super().capture()
        del self.bias


class KeptAsView(Biased):
    def capture(self) -> None:
        super().capture()
        self.part = self.bias[1:]
        del self.bias


class KeptElsewhere(Biased):
    def capture(self) -> None:
        super().capture()
        self.kept = lambda bias=self.bias: bias
        del self.bias


class GrowsWithoutGraph(Biased):
    """Makes the buffer anew where a batch that no graph serves needs a larger one."""

    def prepare_eager(self, batch: Batch) -> None:
        if batch.raw_bs > len(self.bias):
            self.bias = torch.zeros(batch.raw_bs)
        super().prepare_eager(batch)


class GrowsAndKeepsTheOld(GrowsWithoutGraph):
    def prepare_eager(self, batch: Batch) -> None:
        self.olds = [*vars(self).get("olds", []), self.bias]
        super().prepare_eager(batch)


class GrowsAndCppKeepsTheOld(GrowsWithoutGraph):
    def prepare_eager(self, batch: Batch) -> None:
        self.old: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self.old.set_result(self.bias)
        super().prepare_eager(batch)


class WrittenBehindCapture(GraphRunner):
    """Leaves a copy of the lengths in a buffer that it drops after the capture."""

    def capture(self) -> None:
        self.copied = torch.zeros(64, dtype=torch.int32)
        super().capture()
        del self.copied

    def run_model(self, step: Step, metadata: FullMetadata) -> Outputs:
        if "copied" in vars(self):
            lens = step.static.registry.view("seq_lens", step.padded)
            self.copied[: len(lens)].copy_(lens)
        return super().run_model(step, metadata)


class UsedByTheLargestAlone(Biased):
    def capture_size(self, size: int) -> None:
        if size == max(self.sizes()):
            super().capture_size(size)
            return
        bias = self.bias
        del self.bias
        super().capture_size(size)
        self.bias = bias

    def capture(self) -> None:
        super().capture()
        del self.bias


def decode(rows: int) -> ReplayStep:
    return ReplayStep(rows=tuple(BatchRow(request=i, seq_len=3) for i in range(rows)))


def findings_of(runner: type[GraphRunner], *rows: int, times: int = 1) -> tuple[Finding, ...]:
    """Of decodes of so many rows, with graphs of one and two rows."""
    steps = tuple(map(decode, rows))
    case = Case(schema_version=1, config=EngineConfig(capture_bs=(1, 2)), steps=steps)
    execution = Execution(BuiltinTarget(engine(decode=runner)))
    try:
        for _ in range(times):
            findings = execution.run_case(case).findings
    finally:
        execution.close()
    return findings


def test_a_buffer_that_was_dropped_behind_the_capture_is_named_with_both_lines() -> None:
    (found,) = findings_of(DroppedBehindCapture, 2)
    assert (found.oracle, found.clause) == ("noninterference", "reads")
    assert found.symptom == "freed_memory"
    assert "decode[2]" in found.message
    assert str(found.detail["allocated_at"]).endswith("in capture")
    assert str(found.detail["source"]).endswith("in run_model")


def test_a_write_to_such_a_buffer_breaks_the_clause_of_writes() -> None:
    (found,) = findings_of(WrittenBehindCapture, 1)
    assert (found.oracle, found.severity) == ("footprint", "critical")


def test_a_buffer_that_was_made_anew_is_found_in_the_next_replay() -> None:
    (found,) = findings_of(GrowsWithoutGraph, 2, 3, 1)
    assert (found.step, found.symptom, found.buffer) == (2, "freed_memory", "decode.bias")


def test_a_session_that_is_used_again_has_the_buffer_until_it_is_made_anew() -> None:
    (found,) = findings_of(GrowsWithoutGraph, 1, 3, 2, times=3)
    assert found.step == 2


def test_a_buffer_that_only_a_view_keeps_is_held() -> None:
    assert findings_of(KeptAsView, 2, 1) == ()


def test_a_buffer_that_a_function_keeps_is_held() -> None:
    assert findings_of(KeptElsewhere, 2, 1) == ()


def test_an_old_buffer_that_the_engine_keeps_in_a_list_is_held() -> None:
    assert findings_of(GrowsAndKeepsTheOld, 2, 3, 1) == ()


def test_an_old_buffer_that_cpp_alone_keeps_is_held() -> None:
    assert findings_of(GrowsAndCppKeepsTheOld, 2, 3, 1) == ()


def test_a_graph_that_does_not_use_the_buffer_is_spared() -> None:
    assert findings_of(UsedByTheLargestAlone, 1) == ()
    assert findings_of(UsedByTheLargestAlone, 2) != ()


def test_an_engine_that_never_makes_its_buffer_anew_is_spared() -> None:
    assert findings_of(GrowsWithoutGraph, 2, 2, 1) == ()
