"""The engine's lines in the reports, and a summary that fits a comment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from fuzzgraph.finding import EngineLine, Finding
from fuzzgraph.reporting.markdown import LONGEST, markdown
from fuzzgraph.reporting.plain_text import finding_text
from fuzzgraph.reporting.sarif import sarif
from fuzzgraph.repro.issue_text import issue_text
from fuzzgraph.run.environment import Environment
from fuzzgraph.run.events import RunSummary, Setup
from tests.unit.reporting.runs import history, overrun, reported, summary
from tests.unit.reporting.test_formats import SUBSET

WRITTEN = EngineLine(
    role="written", path="python/eng/kv.py", line=90, function="fill", does="writes outside"
)
ALLOCATED = EngineLine(
    role="allocated", path="python/eng/kv.py", line=57, function="__init__", does="allocates it"
)


def located(**changes: Any) -> Finding:
    """An overrun with its lines, whose message names the one that allocated."""
    message = "step 1: 2 elements written (allocated at kv.py:57 in __init__)"
    told = {"lines": (WRITTEN, ALLOCATED), "message": message}
    return msgspec.structs.replace(overrun(), **(told | changes))


def result(run: RunSummary) -> dict[str, Any]:
    log = sarif(run)
    jsonschema.validate(log, json.loads(SUBSET.read_text()))
    (found,) = log["runs"][0]["results"]
    one: dict[str, Any] = found
    return one


def places(found: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    physical = [place["physicalLocation"] for place in found]
    return [
        (
            at["artifactLocation"]["uri"],
            at["artifactLocation"]["uriBaseId"],
            at["region"]["startLine"],
        )
        for at in physical
    ]


def test_a_result_lies_at_the_line_that_tells_most_and_names_the_others() -> None:
    found = result(summary(reported(located())))
    assert places(found["locations"]) == [("python/eng/kv.py", "%SRCROOT%", 90)]
    assert places(found["relatedLocations"]) == [
        ("python/eng/kv.py", "%SRCROOT%", 57),
        ("findings/footprint-kv_indices-decode-f4df28/case.json", "RUN", 1),
    ]
    assert [place["id"] for place in found["relatedLocations"]] == [1, 2]


def test_a_result_without_a_line_lies_at_its_case() -> None:
    found = result(summary(reported()))
    assert places(found["locations"])[0][1:] == ("RUN", 1)
    assert "relatedLocations" not in found


def test_a_fingerprint_holds_no_line() -> None:
    moved = msgspec.structs.replace(WRITTEN, line=91)
    one, other = (
        result(summary(reported(located(lines=lines))))["partialFingerprints"]
        for lines in ((WRITTEN,), (moved,))
    )
    assert one == other and set(one) == {"findingKey/v1", "primaryLocationLineHash"}


@pytest.mark.parametrize("below", ["", "python/eng"])
def test_a_log_says_what_its_paths_are_relative_to(below: str) -> None:
    environment = Environment(engine="eng", engine_below=below)
    run = summary(reported(located()), environment=environment)
    said = sarif(run)["runs"][0]["originalUriBaseIds"]["%SRCROOT%"]
    assert ("checkout" in said["description"]["text"]) == bool(below)
    assert "uri" not in said


def test_no_folder_of_this_machine_is_in_the_log() -> None:
    here = Path.cwd()
    replay = f"cd {here} && fuzzgraph replay /o/r/case.json --source /s/t --corpus {Path.home()}/c"
    finding = located(
        message=f"step 1: raised at /usr/lib/x/a.py, see https://example.org/a/b, {here}"
    )
    run = summary(
        reported(finding, replay=replay),
        setup=Setup(target="x", source="/s/t"),
        out="/o/r",
        error="/o/rest/of/it",
    )
    text = json.dumps(sarif(run))
    assert "cd . && fuzzgraph replay RUN/case.json --source . --corpus ~/c" in text
    assert "raised at .../a.py, see https://example.org/a/b, ." in text
    assert ".../it" in text and str(here) not in text


def test_a_text_names_each_line_once_by_its_whole_path() -> None:
    text = finding_text(reported(located()))
    assert text.count("python/eng/kv.py:57 in __init__") == text.count("kv.py:57") == 1
    assert "  lines    python/eng/kv.py:90 in fill writes outside\n" in text
    issue = issue_text(history(), located(), Setup())
    assert issue.count("kv.py:57") == issue.count("kv.py:90") == 1


def test_a_line_within_a_longer_one_is_left_alone() -> None:
    message = "step 1: at old_kv.py:57 in __init__, kv.py:57 in __init__2 and kv.py:57 in __init__"
    text = finding_text(reported(located(message=message)))
    told = "at old_kv.py:57 in __init__, kv.py:57 in __init__2 and python/eng/kv.py:57 in __init__"
    assert told in text


def test_a_summary_fits_a_comment_and_says_what_is_cut() -> None:
    many = [reported(located(buffer=f"buffer{number}")) for number in range(300)]
    run = summary(
        *many, error="e" * 90_000, bad_entries=("b" * 90_000,) * 50, mended=("m" * 90_000,)
    )
    page = markdown(run)
    assert LONGEST - 2_000 < len(page) <= LONGEST == 65_536
    told = page.count("\n## ") - page.count("\n## Tolerated") - page.count("\n## What did not")
    assert f"the text of {300 - told} of 300 findings; `report.html` has all." in page
    assert "more lines; `report.html` has all." in page


def test_a_short_summary_is_whole_and_begins_with_its_findings() -> None:
    page = markdown(summary(reported(located())))
    assert "| `python/eng/kv.py:90` | footprint |" in page
    assert "report.html` has all" not in page
    assert page.index("\n## ") < page.index("| target |")
