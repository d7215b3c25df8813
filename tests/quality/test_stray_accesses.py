"""Accesses of kernels outside of what they were passed are findings, with the line that did it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.accesses import Access, Race
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.cli.entry import run_command
from fuzzgraph.execution import Execution, Verdict
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.layout import plan
from fuzzgraph.observation import StepRecord, ZoneHit
from fuzzgraph.oracles.footprint import Footprint
from fuzzgraph.oracles.noninterference import NonInterference
from fuzzgraph.ports import Target
from fuzzgraph.reporting import markdown
from fuzzgraph.reporting.html import html
from fuzzgraph.reporting.summary_text import run_text
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import CampaignFinished, RunSummary
from fuzzgraph.run.spec import RunSpec, Setup
from fuzzgraph.run.state import RunState, join_summaries
from fuzzgraph.targets import open_target

pytest.importorskip("triton")

FAULT = "vllm-pr-57158-gather-past-the-lengths"


def decode(*lengths: int, **config: Any) -> Case:
    rows = tuple(BatchRow(request=i, seq_len=length) for i, length in enumerate(lengths))
    return Case(
        schema_version=1,
        config=EngineConfig(capture_bs=(4,), **config),
        steps=(ReplayStep(rows=rows),),
    )


def findings(target: Target, case: Case, *, stock_kernels: bool = False) -> tuple[Finding, ...]:
    execution = Execution(target, Setup(stock_kernels=stock_kernels))
    try:
        return execution.run_case(case).findings
    finally:
        execution.close()


def test_a_load_behind_the_last_row_is_found_though_no_value_shows_it() -> None:
    first, *rest = findings(open_fault(FAULT), decode(5, 3))
    assert not rest
    assert (first.oracle, first.symptom) == ("noninterference", "stray_access")
    assert first.clause == "reads"
    assert first.detail["kernel"] == "_lengths_ahead"
    assert str(first.detail["source"]).startswith("ahead_kernel.py:")
    assert "program (0, 0, 0) at element +4" in first.message


def test_without_the_lanes_nobody_sees_it() -> None:
    assert findings(open_fault(FAULT), decode(5, 3), stock_kernels=True) == ()


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_the_healthy_engine_makes_no_stray_access(kernels: str) -> None:
    assert findings(open_target("builtin"), decode(5, 3, kernels=kernels)) == ()


def test_launches_that_fall_back_are_counted_and_said() -> None:
    verdict_of = {"printing: device_print": 3}
    summary = RunSummary(fuzzgraph="0", spec=RunSpec(seed=1), fallbacks=verdict_of)
    assert (
        "  kernels run by Triton's own interpreter, 3 times: printing: device_print"
        in run_text(join_summaries([summary])).splitlines()
    )


def verdict_of(case: Case, *, stock_kernels: bool = False) -> Verdict:
    execution = Execution(open_target("builtin"), Setup(stock_kernels=stock_kernels))
    try:
        return execution.run_case(case)
    finally:
        execution.close()


def test_kernels_that_nobody_checked_are_counted_with_the_reason() -> None:
    unchecked = verdict_of(decode(5, 3, kernels="triton"), stock_kernels=True).unchecked
    assert list(unchecked) == ["stock kernels were asked for (--stock-kernels)"]
    assert min(unchecked.values()) > 1


def test_an_untested_triton_makes_no_finding_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.__version__", "9.9.9")
    verdict = verdict_of(decode(5, 3, kernels="triton"))
    assert verdict.findings == ()
    (reason,) = verdict.unchecked
    assert reason.startswith("Triton 9.9.9 was not tested. Use Triton ")


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_where_every_launch_was_checked_nothing_is_told(kernels: str) -> None:
    assert verdict_of(decode(5, 3, kernels=kernels)).unchecked == {}


def test_the_reports_say_what_was_not_checked_and_why() -> None:
    summary = RunSummary(
        fuzzgraph="0", spec=RunSpec(seed=1), unchecked={"the kernels are compiled": 2}
    )
    line = "access and race checks are off for Triton kernels: the kernels are compiled"
    shards = join_summaries([summary, summary])
    assert f"  {line} (4 launches)" in run_text(shards).splitlines()
    for page in (markdown(summary), html(summary)):
        assert line in page
        assert "Not checked" in page
    for page in (run_text(clean()), markdown(clean()), html(clean())):
        assert "race checks" not in page


@pytest.mark.parametrize("isolation", ["on", "off"])
def test_a_run_without_the_lanes_says_so_at_its_end_and_in_its_folder(
    isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    asked = ["--target", "builtin-triton", "--stock-kernels", "--isolation", isolation]
    assert run_command(["run", *asked, "--examples", "2", "--seed", "1", "--out", str(out)]) == 0
    (reason,) = json.loads((out / "summary.json").read_text())["unchecked"]
    assert reason == "stock kernels were asked for (--stock-kernels)"
    line = "access and race checks are off for Triton kernels: stock kernels were asked for"
    assert line in capsys.readouterr().out
    assert line in (out / "report.html").read_text()
    assert line in (out / "summary.md").read_text()
    events = read_log(out / "events.jsonl").events
    killed = RunState(
        event for event in events if not isinstance(event, CampaignFinished)
    ).summary()
    assert list(killed.unchecked) == [reason]


def clean() -> RunSummary:
    return RunSummary(fuzzgraph="0", spec=RunSpec(seed=1))


def step() -> StepRecord:
    case = decode(2)
    return StepRecord(0, "engine", case.config, plan(case)[0], ())


def access(**changes: Any) -> Access:
    return Access(
        **{
            "kernel": "writer",
            "source": "utils.py:63",
            "kind": "write",
            "where": "outside",
            "buffer": "out",
            "region": "backend.kv_indices",
            "program": (3, 0, 0),
            "programs": 1,
            "offset": 16,
            "low": 16,
            "high": 20,
            "elements": 5,
            "extent": 16,
            **changes,
        }
    )


def test_a_stray_store_breaks_the_footprint_and_a_stray_load_the_reads() -> None:
    seen = step()
    seen.accesses = [access(), access(kind="read", region="", where="unmapped")]
    (store,) = Footprint().judge(seen)
    (load,) = NonInterference().judge(seen)
    assert (store.clause, store.buffer) == ("writes", "backend.kv_indices")
    assert store.message == (
        "step 0: writer at utils.py:63 stores to outside backend.kv_indices, passed as out"
        " (16 elements): program (3, 0, 0) at element +16; 5 such accesses, from +16 to +20"
    )
    assert (load.clause, load.buffer) == ("reads", "out")
    assert "loads from unmapped memory outside out" in load.message


def test_a_red_zone_hit_says_which_line_stored_and_is_told_once() -> None:
    seen = step()
    seen.zone_hits = [
        ZoneHit("backend.kv_indices", "after", 0, 5, 4, [7], "aiter.py:9", 16, "replay")
    ]
    seen.accesses = [access()]
    (finding,) = Footprint().judge(seen)
    assert finding.symptom == "red_zone_hit"
    assert finding.message.endswith("now there: 7; stored by writer at utils.py:63")


def test_programs_that_meet_break_the_footprint() -> None:
    seen = step()
    seen.races = [
        Race(
            kernel="writer",
            source="utils.py:63",
            other_source="utils.py:70",
            kind="read and write",
            buffer="out",
            region="backend.kv_indices",
            programs=((0, 0, 0), (4, 0, 0)),
            offset=3,
            elements=2,
        )
    ]
    (finding,) = Footprint().judge(seen)
    assert (finding.symptom, finding.buffer) == ("race", "backend.kv_indices")
    assert "programs (0, 0, 0) and (4, 0, 0) of writer write and read one place" in finding.message
    assert list(Footprint().judge(step())) == []
