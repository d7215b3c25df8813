"""What is said of a repro's runs is what became of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzzgraph.campaign.budget import Allowance, Effort
from fuzzgraph.campaign.export import Exporting
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.errors import RunsCutOff
from fuzzgraph.reporting import finding_text
from fuzzgraph.reporting.skipped import execution_text, not_run
from fuzzgraph.run.events import Export, Setup
from tests.fakes import FakeRunner, case, finding, paged
from tests.unit.campaigns import CampaignRun
from tests.unit.reporting.runs import reported, summary


def exported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rate: str, seconds: float = 60.0
) -> Export:
    """The script of a finding whose runs are cut off, with the rate of those that ended."""

    def cut_off(*_: object, **__: object) -> str:
        raise RunsCutOff("too late", rate)

    monkeypatch.setattr("fuzzgraph.campaign.export.export_text", lambda *_, **__: "text")
    monkeypatch.setattr("fuzzgraph.campaign.export.verified_rate", cut_off)
    found = reported(finding(), case=case(1))
    allowance = Allowance(Effort.RUN, seconds)
    write = Exporting(Setup())
    (script,) = (
        one
        for one in write(found, RunFolder(folder), allowance, lambda words: None)
        if one.kind == "script"
    )
    return script


@pytest.mark.parametrize(
    ("rate", "said"),
    [("", "its runs were cut off"), ("2/2", "fails 2/2, the other runs were cut off")],
)
def test_runs_that_were_begun_and_cut_off_are_not_called_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: str, said: str
) -> None:
    script = exported(tmp_path, monkeypatch, rate)
    assert (script.rate, script.cut_off, execution_text(script)) == (rate, True, said)
    found = msgspec.structs.replace(reported(), exports=(script,))
    assert f"({said})" in finding_text(found)
    assert ("script of " + found.id, f"written, {said}: out of time") in not_run(summary(found))


def test_a_script_that_there_was_no_time_to_run_is_cut_off_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exported(tmp_path, monkeypatch, "3/3", seconds=0.0).cut_off


@pytest.mark.parametrize("cut_off", [True, False])
def test_a_script_that_was_cut_off_is_left_for_a_resumed_run(tmp_path: Path, cut_off: bool) -> None:
    def export(*_: object) -> tuple[Export, ...]:
        return (Export(kind="script", path="x", rate="2/2", cut_off=cut_off),)

    run = CampaignRun(tmp_path, FakeRunner(paged), findings=1, export=export)
    (found,) = run.run().findings
    assert found.left == (("export",) if cut_off else ())
