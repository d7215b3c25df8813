"""The engine's lines that a finding is about: each is the one that did it."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

import fuzzgraph
from fuzzgraph.execution import Execution
from fuzzgraph.finding import EngineLine, Finding
from fuzzgraph.graphs import RecordedGraph, RecordedOp
from fuzzgraph.layout import plan
from fuzzgraph.memory.source_lines import innermost_source, lines_below
from fuzzgraph.open_target import open_target_object
from fuzzgraph.repro import engine_lines
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.writers import Writers
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.model import BuiltinModel, ForwardInputs
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.world import Batch
from tests.lanes.kernels import servers
from tests.unit.repro.faulty import KINDS, Kind, ReadsBeyondItsKeys, engine, once

ROOT = Path(fuzzgraph.__file__).parent.parent
BUFFER = "self.indices = torch.zeros(self.indices_capacity()"
INPUTS = "self.buffers[key] = torch.full(shape"


class OfTheTests(BuiltinTarget):
    """Its engine is this file alone, so that lines of the built-in engine are passed over."""

    engine_packages = ("test_locating",)


class Overwrites(GraphRunner):
    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        lengths = self.current().static.registry.buffers["seq_lens"]
        lengths.sub_(torch.ones_like(lengths))  # the line that breaks it
        lengths.add_(0).mean(dtype=torch.float32)


def code(line: EngineLine) -> str:
    return (ROOT / line.path).read_text().splitlines()[line.line - 1].strip()


def found(kind_name: str) -> dict[str, EngineLine]:
    kind = next(kind for kind in KINDS if kind.name == kind_name)
    lines = engine_lines(kind.case, kind.finding(), kind.target(), Setup())
    return {line.role: line for line in lines}


def first(target: BuiltinTarget) -> Finding:
    return Execution(target, cache_size=0).run_case(once(4, 3)).findings[0]


@pytest.mark.parametrize(
    ("kind", "role", "text"),
    [
        ("red-zone", "written", "torch.where(view.beyond, view.indices"),
        ("red-zone", "allocated", BUFFER),
        ("foreign-write", "written", "self.windows.index_copy_(0, places, values)"),
        ("contract", "written", "foreach_copy(targets, sources)"),
        ("contract", "allocated", INPUTS),
        ("left-over", "written", "torch.searchsorted("),
        ("computes", "written", "out.copy_(result)"),
        ("kernel-model", "written", "self.attention(q, out, metadata.attention[0])"),
        ("triton", "allocated", BUFFER),
    ],
)
def test_a_line_is_the_one_that_did_it(kind: str, role: str, text: str) -> None:
    assert code(found(kind)[role]).startswith(text)


def test_the_line_of_a_value_at_capture_is_not_that_of_a_later_replay() -> None:
    assert "prepare_replay" not in found("at-capture")["written"].function


def test_what_helps_most_comes_first() -> None:
    kind = next(kind for kind in KINDS if kind.name == "red-zone")
    lines = engine_lines(kind.case, kind.finding(), kind.target(), Setup())
    assert [line.role for line in lines] == ["written", "allocated"]
    assert lines[0].does == "writes outside of decode.kv_indices"


def test_a_path_begins_where_the_checkout_does(monkeypatch: pytest.MonkeyPatch) -> None:
    target = OfTheTests(replace(Components(), decode=Overwrites))
    monkeypatch.setitem(sys.modules, "test_locating", sys.modules[__name__])
    line, *_ = engine_lines(once(4, 3), first(target), target, Setup())
    assert (line.role, line.path) == ("written", "test_locating.py")
    text = Path(__file__).read_text().splitlines()[line.line - 1]
    assert text.strip().startswith("lengths.add_(0)")


def test_a_line_outside_of_the_engine_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    target = OfTheTests(replace(Components(), decode=Overwrites))
    finding = first(target)
    monkeypatch.setattr(OfTheTests, "engine_packages", ("no_such_package",))
    assert engine_lines(once(4, 3), finding, target, Setup()) == ()


def test_lines_have_their_usual_names_afterwards() -> None:
    before = innermost_source()
    with lines_below({str(Path(__file__).parent): "engine/of/mine"}):
        inside = innermost_source()
    assert inside.startswith("engine/of/mine/test_locating.py:")
    assert innermost_source().startswith("test_locating.py:") and before.startswith("test_loc")
    with lines_below({"/elsewhere": "x"}):
        assert innermost_source() == ""


@pytest.mark.parametrize(
    "path", ["/etc/a.py", "../a.py", "a/../b.py", "a/./b.py", "a b.py", "c:a.py"]
)
def test_a_path_that_leaves_the_checkout_is_refused(path: str) -> None:
    values = {"role": "written", "line": 1, "function": "f", "does": "writes"}
    assert msgspec.convert(values | {"path": "a/b-c.py"}, EngineLine).line == 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(values | {"path": path}, EngineLine)


def test_an_open_target_adds_the_lines_to_a_finding() -> None:
    kind = next(kind for kind in KINDS if kind.name == "red-zone")
    with closing(open_target_object(kind.target(), Setup())) as opened:
        lines = opened.located(kind.case, kind.finding()).lines
    assert code(lines[1]).startswith(BUFFER)


def test_no_report_ends_because_lines_cannot_be_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no way")

    monkeypatch.setattr("fuzzgraph.repro.locating.engine_lines", fails)
    kind = next(kind for kind in KINDS if kind.name == "red-zone")
    with closing(open_target_object(kind.target(), Setup())) as opened:
        assert opened.located(kind.case, kind.finding()) == kind.finding()
    assert "no line of the engine: RuntimeError: no way" in capsys.readouterr().err


class Constant(BuiltinModel):
    """Gives the same for every batch, from memory of the graph, and writes nowhere else."""

    def store(self, *_: object) -> None:
        pass

    def new_output(self, inputs: ForwardInputs) -> torch.Tensor:
        shape = (inputs.extent.tokens, self.config.num_q_heads, self.config.v_head_dim)
        return torch.full(shape, 7.0, dtype=self.dtype)

    def attend(self, q: torch.Tensor, out: torch.Tensor, *_: object) -> None:
        pass


class Kept(Constant):
    """The same from a buffer of its own, which nothing writes to."""

    kept: torch.Tensor | None = None

    def new_output(self, inputs: ForwardInputs) -> torch.Tensor:
        if self.kept is None:
            self.kept = torch.full((16, self.config.num_q_heads, self.config.v_head_dim), 7.0)
        return self.kept[: inputs.extent.tokens]


class WritesTheSame(Kept):
    """One whose forward, and so the capture, writes there what is there already."""

    def attend(self, q: torch.Tensor, out: torch.Tensor, *_: object) -> None:
        out.fill_(7.0)


@pytest.mark.parametrize(
    ("model", "does"),
    [
        (Constant, " and writes it"),
        (Kept, ", and nothing changed it since"),
        (WritesTheSame, ""),
    ],
)
def test_memory_is_called_untouched_only_where_neither_capture_nor_replay_wrote_to_it(
    model: type[BuiltinModel], does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = OfTheTests(replace(Components(), model=model))
    monkeypatch.setitem(sys.modules, "test_locating", sys.modules[__name__])
    shown = Execution(target, cache_size=0).run_case(once(4)).findings
    finding = next(one for one in shown if one.buffer == "attention" and one.clause == "computes")
    lines = {one.role: one for one in engine_lines(once(4), finding, target, Setup())}
    text = Path(__file__).read_text().splitlines()
    assert "torch.full(" in text[lines["allocated"].line - 1]
    assert lines["allocated"].does == f"allocates attention{does}"
    assert ("written" in lines) == (model is WritesTheSame)


def test_a_replay_while_the_engine_opens_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replays(GraphRunner):
        def capture(self) -> None:
            super().capture()
            for graph in self.graphs.values():
                graph.replay()

    def writes(runner: type[GraphRunner]) -> int:
        writers = Writers()
        target = BuiltinTarget(replace(Components(), decode=runner))
        recording = Recording.of(once(4).config, target, opening=True, watcher=writers)
        recording.opened.session.close()
        return sum(op.name == "aten.copy_.default" for op in (one.op for one in writers.writes))

    assert writes(Replays) > writes(GraphRunner)


class CallsByAlias(BuiltinModel):
    """Launches a kernel that Triton's own interpreter refuses."""

    def store(self, *args: Any) -> None:
        servers.by_alias[(2,)](torch.zeros(2), torch.zeros(2))
        super().store(*args)


@pytest.mark.parametrize("kind", ["step", "eager"])
def test_a_kernel_that_only_the_lanes_run_is_located(kind: Literal["step", "eager"]) -> None:
    target = BuiltinTarget(replace(Components(), model=CallsByAlias))
    recording = Recording.of(once(4).config, target, opening=False, over_lanes=True)
    run = recording.add(plan(once(4))[0], kind)
    recording.opened.session.close()
    assert run.failure is None
    assert any(op.name == "by_alias" for op in launches_of(run))


def test_no_exception_of_the_recording_is_told_as_the_engines() -> None:
    wrong, case = engine(model=ReadsBeyondItsKeys), once(4, 3)
    finding = Kind("", lambda: wrong, case, "reference", "attention", "").finding()
    lines = engine_lines(case, finding, wrong, Setup())
    assert lines and "raised" not in {line.role for line in lines}


def launches_of(run: Run) -> list[RecordedOp]:
    """Also those of the graphs that the run replays."""
    found: list[RecordedOp] = []
    for event in run.events:
        found += event.trace if isinstance(event, RecordedGraph) else [event]
    return [op for op in found if op.kind == "launch"]


def test_the_calls_that_lead_to_a_line_are_kept_with_it_the_nearest_first() -> None:
    for kind, role, callers in (
        ("red-zone", "written", ["write", "build", "full", "prepare", "build_metadata"]),
        ("red-zone", "allocated", ["allocate", "__init__", "make_builder"]),
        ("computes", "written", ["attention", "attend", "forward", "run_model", "run_forward"]),
        ("survival", "raised", ["build", "full", "prepare", "build_metadata"]),
    ):
        known = found(kind)[role].callers
        assert [place.function for place in known][: len(callers)] == callers
        assert all(place.path.startswith("fuzzgraph/targets/builtin/") for place in known)


class FailsAtCapture(GraphRunner):
    def capture(self) -> None:
        self.fail()

    def fail(self) -> None:
        raise RuntimeError("no capture")


def test_an_error_while_the_engine_opens_has_its_calls_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OfTheTests, "engine_packages", ("test_locating", __name__))
    target = OfTheTests(replace(Components(), decode=FailsAtCapture))
    monkeypatch.setitem(sys.modules, "test_locating", sys.modules[__name__])
    (line,) = engine_lines(once(4), first(target), target, Setup())
    assert (line.role, line.function) == ("raised", "fail")
    assert [place.function for place in line.callers] == ["capture"]
