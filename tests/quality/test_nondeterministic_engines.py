"""An engine that differs from itself in the same world is judged by its live outputs, loosely."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.context import Outputs


class Wavers(GraphRunner):
    """The last bits of what it hands out change from replay to replay, as with atomic sums."""

    replays = 0

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        Wavers.replays += 1
        bits = 1 + Wavers.replays % 5 * torch.finfo(torch.float32).eps
        return {**outputs, "attention": outputs["attention"] * bits}


class Alternates(GraphRunner):
    """The last bit has two values, one after the other."""

    replays = 0

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        Alternates.replays += 1
        attention = outputs["attention"]
        towards = torch.full_like(attention, 1e9 if Alternates.replays % 2 else -1e9)
        return {**outputs, "attention": torch.nextafter(attention, towards)}


class KeepsItsExpertsToItself(Wavers):
    """Hands out one output less than the truth has."""

    def run_graph(self, size: int) -> Outputs:
        return {"attention": super().run_graph(size)["attention"]}

    def promised_outputs(self) -> tuple[str, ...]:
        return ("attention",)


class ReadsAStranger(Wavers):
    """Beside that, a live value depends on a slot that belongs to nobody."""

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        outputs["attention"][0] += self.model.kv.values()[-1].float().sum()
        return outputs


class LosesAnOutput(Wavers):
    """Beside that, whether it hands out a result depends on a slot that belongs to nobody."""

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        if self.model.kv.values()[-1].float().sum() < 0:
            del outputs["moe"]
        return outputs


class WaversOnce(GraphRunner):
    """One replay in its life comes out otherwise: the second one, in another world."""

    replays = 0

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        WaversOnce.replays += 1
        late = 5.0 if WaversOnce.replays == 2 else 0.0
        return {**outputs, "attention": outputs["attention"] + late}


class NeedsBoth(GraphRunner):
    """A live value depends on a slot that belongs to nobody, but only straight after capture."""

    replayed = 0

    def run_graph(self, size: int) -> Outputs:
        outputs = super().run_graph(size)
        self.replayed += 1
        stranger = self.model.kv.values()[-1].float().sum()
        wrong = 5.0 if self.replayed == 1 and stranger < 0 else 0.0
        return {**outputs, "attention": outputs["attention"] + wrong}


def run(
    runner: type[GraphRunner], capture_bs: tuple[int, ...] = (4,), steps: int = 1
) -> tuple[set[tuple[str, str]], bool]:
    """Oracle and buffer of each finding, and whether the engine was seen to be nondeterministic."""
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=2), BatchRow(request=1, seq_len=3)))
    case = Case(
        schema_version=1,
        config=EngineConfig(capture_bs=capture_bs, max_context_len=4, attn_tp_size=2),
        steps=(step,) * steps,
    )
    verdict = Execution(BuiltinTarget(replace(Components(), decode=runner))).run_case(case)
    found = {(one.oracle, one.buffer) for one in verdict.findings}
    return found, verdict.nondeterministic


@pytest.mark.parametrize("capture_bs", [(2,), (4,)], ids=["full", "padded"])
@pytest.mark.parametrize("runner", [Wavers, Alternates])
def test_last_bits_that_change_by_themselves_are_no_finding(
    runner: type[GraphRunner], capture_bs: tuple[int, ...]
) -> None:
    assert run(runner, capture_bs) == (set(), True)


def test_an_output_that_the_engine_never_promised_is_not_missed() -> None:
    assert run(KeepsItsExpertsToItself) == (set(), True)


def test_a_live_value_of_a_stranger_is_found_all_the_same() -> None:
    found, nondeterministic = run(ReadsAStranger)
    assert nondeterministic
    assert ("noninterference", "attention") in found


def test_an_output_that_comes_in_one_world_only_is_found_all_the_same() -> None:
    found, nondeterministic = run(LosesAnOutput)
    assert nondeterministic
    assert ("noninterference", "moe") in found


def test_a_difference_that_never_comes_again_is_reported_as_nondeterministic() -> None:
    WaversOnce.replays = 0
    assert run(WaversOnce) == (set(), True)


def test_what_takes_foreign_memory_and_no_past_at_once_is_found() -> None:
    found, nondeterministic = run(NeedsBoth, steps=2)
    assert found == {("noninterference", "attention")}
    assert not nondeterministic
