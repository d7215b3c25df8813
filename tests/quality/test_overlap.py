"""With the host a step ahead, late copies are found that no other run shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.cli.entry import run_command
from fuzzgraph.execution import Execution, Verdict
from fuzzgraph.execution.ahead import Ahead
from fuzzgraph.faults import FAULTS, open_fault
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine, Target
from fuzzgraph.repro import NotStandalone, standalone_script
from fuzzgraph.run.spec import Graphs, Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.targets.builtin.faults.late_copies import OneSet
from fuzzgraph.targets.builtin.registry import FillContext
from fuzzgraph.targets.builtin.session import BuiltinSession
from fuzzgraph.targets.builtin.staging import MirroredRegistry, staged_by
from fuzzgraph.targets.builtin.target import BuiltinTarget
from fuzzgraph.text.finding_text import headline
from fuzzgraph.world import Batch
from tests.quality.test_oracles_find_their_faults import case_of, decode
from tests.quality.test_planted_faults import stored

LATE = [name for name, fault in FAULTS.items() if fault.overlap]
TWO_BATCHES = case_of(decode(4), decode(5))


def ran(
    target: Target, case: Case, graphs: Graphs = "recorder", *, overlap: bool = True
) -> Verdict:
    setup = Setup(overlap=overlap, graphs=graphs)
    with closing(Execution(target, setup, cache_size=0)) as execution:
        return execution.run_case(case)


@pytest.mark.parametrize("name", LATE)
def test_a_fault_of_late_copies_shows_only_with_the_host_a_step_ahead(name: str) -> None:
    assert {each.oracle for each in ran(open_fault(name), stored(name)).findings} == {"overlap"}
    assert ran(open_fault(name), stored(name), overlap=False).findings == ()


def test_the_finding_names_the_line_that_gave_the_copy() -> None:
    verdict = ran(open_fault(LATE[0]), TWO_BATCHES)
    told = headline(verdict.findings[0])
    assert "seq_lens may come from the next step" in told and "staging.py" in told


def test_it_has_no_script_since_torch_alone_copies_at_once() -> None:
    finding = ran(open_fault(LATE[0]), TWO_BATCHES).findings[0]
    with pytest.raises(NotStandalone, match="late by chance"):
        standalone_script(TWO_BATCHES, finding, open_fault(LATE[0]))


def led_on(target: Target, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, list[str]]:
    """As a device is led, here where every copy runs at once; and what its session was asked."""
    calls: list[str] = []

    class Noted(BuiltinSession):
        def prepare_replay(self, batch: Batch) -> None:
            calls.append(f"prepare {batch.step}")
            super().prepare_replay(batch)

        def observe(self, batch: Batch) -> Observation:
            calls.append(f"observe {batch.step}")
            return super().observe(batch)

    monkeypatch.setattr("fuzzgraph.targets.builtin.target.BuiltinSession", Noted)
    monkeypatch.setattr(Ahead, "_run_late", Ahead._run_held)
    return ran(target, TWO_BATCHES, "emulated"), calls


def test_a_device_is_looked_at_behind_its_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a target reads there would end the lead before the next step is prepared."""
    verdict, calls = led_on(BuiltinTarget(overlap="pinned"), monkeypatch)
    assert verdict.findings == () and verdict.unrepeatable == 0
    assert ["prepare 0", "prepare 1", "observe 0"] in [
        calls[at : at + 3] for at in range(len(calls))
    ]


def test_what_a_device_gives_otherwise_without_a_lead_too_is_counted_and_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the next step's preparation changes what a step is looked at by."""

    class Forgets(BuiltinSession):
        def observe(self, batch: Batch) -> Observation:
            seen = super().observe(batch)
            seen.outputs = {name: each + self.led for name, each in seen.outputs.items()}
            return seen

        led = 0

        def prepare_replay(self, batch: Batch) -> None:
            super().prepare_replay(batch)
            type(self).led = int(batch.step)

    monkeypatch.setattr("fuzzgraph.targets.builtin.target.BuiltinSession", Forgets)
    monkeypatch.setattr(Ahead, "_run_late", Ahead._run_held)
    monkeypatch.setattr("fuzzgraph.execution.steps.StepRunner._run_comparisons", _only_ahead)
    verdict = ran(BuiltinTarget(overlap="pinned"), TWO_BATCHES, "emulated")
    assert "overlap" not in {each.oracle for each in verdict.findings}
    assert verdict.unrepeatable == 1


def _only_ahead(*_: object) -> None:
    """No other run, which would be looked at by another step as well."""


def test_an_engine_that_waits_for_a_step_is_given_no_lead() -> None:
    class Waits(BuiltinTarget):
        def open(self, config: EngineConfig, graphs: GraphEngine) -> BuiltinSession:
            session = super().open(config, graphs)
            session.overlaps = False  # type: ignore[attr-defined]
            return session

    assert ran(Waits(staged_by(OneSet)), TWO_BATCHES).findings == ()
    assert ran(BuiltinTarget(staged_by(OneSet)), TWO_BATCHES).findings


def test_a_step_that_does_not_repeat_itself_is_counted_and_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if work of the device had been missed: that of the graph is not done again.
    monkeypatch.setattr("fuzzgraph.graphs.late_stream.LateStream.give", lambda stream, work: work())
    verdict = ran(open_fault(LATE[0]), TWO_BATCHES)
    assert verdict.findings == () and verdict.unrepeatable == 1


def test_the_finding_names_the_line_whose_copy_the_host_read_too_early() -> None:
    told = headline(ran(open_fault("sglang-pr-16493-mirror-read-at-once"), TWO_BATCHES).findings[0])
    assert "positions may come from what memory of the host held before" in told
    assert "write_positions" in told


def test_an_engine_that_fails_on_what_it_reads_too_early_is_told_which_copy_it_was() -> None:
    class Refuses(MirroredRegistry):
        def wait_for_mirror(self) -> None: ...

        def write_positions(self, context: FillContext) -> None:
            lens = self.view("seq_lens", context.raw).to("cpu", non_blocking=True)
            if (lens.numpy() < 2).any():
                raise ValueError("a decode without a past")

    (finding,) = ran(BuiltinTarget(staged_by(Refuses)), TWO_BATCHES).findings
    assert finding.oracle == "survival" and "a decode without a past" in finding.message
    assert "before a copy to the host arrived, given at test_overlap.py" in finding.message


@pytest.mark.parametrize("graphs", ["recorder", "emulated"])
@pytest.mark.parametrize("healthy", ["builtin-pinned", "builtin-mirrored", "builtin-streams"])
def test_the_healthy_twin_gives_late_copies_and_no_finding(healthy: str, graphs: Graphs) -> None:
    target, verdicts = open_target(healthy), []
    with closing(Execution(target, Setup(overlap=True, graphs=graphs))) as execution:
        note: Callable[[Case], None] = lambda case: verdicts.append(execution.run_case(case))  # noqa: E731
        draw(cases(target.capabilities, DEFAULT), 7, 12, note)
    assert not any(verdict.findings or verdict.unrepeatable for verdict in verdicts)
    assert sum(sum(verdict.late_copies.values()) for verdict in verdicts) > 100


def test_an_engine_without_such_copies_gives_none() -> None:
    assert ran(open_target("builtin"), TWO_BATCHES).late_copies == {}


Said = Callable[..., str]


@pytest.fixture
def said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    """What `fuzzgraph replay` of two decodes says with some options."""
    case = tmp_path / "case.json"
    case.write_bytes(msgspec.json.encode(TWO_BATCHES))

    def call(*options: str) -> str:
        run_command(["replay", str(case), *options])
        out, err = capsys.readouterr()
        return out + err

    return call


def test_a_replay_says_how_many_copies_ran_late(said: Said) -> None:
    out = said("--target", "builtin-pinned", "--overlap")
    assert "copies and side streams ran late" in out and "given at staging.py" in out


def test_a_replay_says_that_nothing_was_shown_where_none_did(said: Said) -> None:
    assert "no copy of pinned memory and no side stream could run late" in said("--overlap")
    assert "pinned" not in said()


def test_such_a_fault_is_refused_without_the_option(said: Said) -> None:
    assert "Add --overlap" in said("--fault", LATE[0])


@pytest.mark.parametrize("isolation", ["on", "off"])
def test_a_run_has_the_late_copies_in_its_record_and_its_reports(
    isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    asked = ["--target", "builtin-pinned", "--overlap", "--isolation", isolation]
    budget = ["--examples", "2", "--seed", "1", "--corpus", str(tmp_path)]
    assert run_command(["run", *asked, *budget, "--out", str(out)]) == 0
    (line,) = json.loads((out / "summary.json").read_text())["late_copies"]
    assert "staging.py" in line
    assert "copies and side streams ran late" in capsys.readouterr().out
    assert "copies and side streams ran late" in (out / "report.html").read_text()
