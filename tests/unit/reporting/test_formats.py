"""SARIF, JUnit and JSON: valid, and the same verdict in each."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest

from fuzzgraph.campaign.reports import write_reports
from fuzzgraph.finding import CLAUSES
from fuzzgraph.reporting.junit import junit
from fuzzgraph.reporting.sarif import sarif
from fuzzgraph.reporting.trend import trend
from fuzzgraph.run.events import RunSummary, Setup
from tests.unit.reporting.runs import history, overrun, reported, summary

SUBSET = Path(__file__).with_name("sarif-2.1.0-subset.schema.json")


def test_sarif_has_the_shape_that_code_hosts_read() -> None:
    schema = json.loads(SUBSET.read_text())
    found = (
        reported(),
        reported(overrun("b"), status="tolerated", issue="https://example.org/1"),
        reported(overrun("c"), status="known"),
        reported(msgspec.structs.replace(overrun("d", step=-1), confirmed="1/3")),
    )
    log = sarif(summary(*found, error="it broke", bad_entries=("x.json: bad",)))
    jsonschema.validate(log, schema)
    results = log["runs"][0]["results"]
    assert [one["level"] for one in results] == ["error", "note", "error", "warning"]
    assert [one["baselineState"] for one in results] == ["new", "new", "unchanged", "new"]
    assert "suppressions" in results[1]


def test_the_strict_subset_of_sarif_can_refuse() -> None:
    schema = json.loads(SUBSET.read_text())
    log = sarif(summary(reported()))
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["line"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(log, schema)


def test_every_rule_of_sarif_is_a_sentence() -> None:
    (run,) = sarif(summary(reported()))["runs"]
    texts = {one["id"]: one["shortDescription"]["text"] for one in run["tool"]["driver"]["rules"]}
    assert texts["history"] == "A replay gives the same, whatever was replayed before it."
    assert texts["survives"] == "Every run comes back with a result."
    assert texts["metadata"] == "Metadata and capture tell the truth."
    assert texts.keys() == CLAUSES.keys()


def test_a_finding_keeps_its_fingerprint_whatever_the_case() -> None:
    one = sarif(summary(reported()))["runs"][0]["results"][0]
    other = sarif(summary(reported(case=history(5), digest="f")))["runs"][0]["results"][0]
    assert one["partialFingerprints"] == other["partialFingerprints"]


def test_junit_counts_what_decides_the_exit_code() -> None:
    found = (
        reported(),
        reported(overrun("b"), status="tolerated", issue="https://example.org/1"),
    )
    (suite,) = ElementTree.fromstring(junit(summary(*found, error="it broke")))
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "1"}
    failed = [
        test.get("name") for test in suite.iter("testcase") if test.find("failure") is not None
    ]
    assert failed == [found[0].id]


def test_junit_holds_what_xml_cannot() -> None:
    nasty = msgspec.structs.replace(overrun("b\x00\x1b[31m"), message="bad \ud800 \x07")
    (suite,) = ElementTree.fromstring(junit(summary(reported(nasty))))
    (failure,) = suite.iter("failure")
    assert str(failure.get("message")).startswith("A decode replay writes 2 elements past the end")
    assert "bad" in str(failure.text)


def test_nights_tell_new_from_seen_before_and_gone() -> None:
    one, two = reported(overrun("a")), reported(overrun("b"))
    earlier = [
        summary(one, started="2026-01-01T01:00:00+00:00"),
        summary(one, started="2025-12-31T01:00:00+00:00", setup=Setup(target="other")),
    ]
    first, last = trend(summary(two), earlier)
    assert (first.fresh, first.gone) == ((one.id,), ())
    assert (last.fresh, last.gone, last.here) == ((two.id,), (one.id,), True)


def test_the_json_report_holds_summary_and_nights(tmp_path: Path) -> None:
    write_reports(tmp_path / "r", summary(reported()), kinds=("json",))
    record = json.loads((tmp_path / "r" / "report.json").read_text())
    assert record["report"] == 1
    assert msgspec.convert(record["summary"], RunSummary) == summary(reported())
    assert [night["here"] for night in record["nights"]] == [True]
