"""What people read: findings, tables, progress, the end of a run; compared as snapshots."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.reporting import (
    finding_text,
    markdown,
    progress_on,
    run_text,
    verdict_line,
)
from fuzzgraph.reporting.terminal import LiveProgress, PlainProgress, progress_line, start_line
from fuzzgraph.run.events import (
    CampaignStarted,
    Event,
    Export,
    FindingNew,
    Progress,
    ReportedFinding,
    RunSummary,
    Setup,
    Shrunk,
)
from fuzzgraph.run.spec import Budget, RunSpec
from fuzzgraph.run.state import join_summaries
from fuzzgraph.text.case_text import case_table
from tests.fakes import case, finding


def history() -> Case:
    """Grow, go through eager, verify, prefill, idle."""
    rows = tuple(BatchRow(request=request, seq_len=3 + request) for request in range(3))
    verify = (BatchRow(request=0, seq_len=5, new_tokens=2),)
    prefill = (BatchRow(request=0, seq_len=9, new_tokens=5, encoder_len=0),)
    config = EngineConfig(
        modes=("decode", "target_verify", "prefill"),
        capture_bs=(1, 2),
        capture_tokens=(4, 8),
        page_size=16,
        kv_dtype="float8_e4m3fn",
    )
    steps = (
        ReplayStep(rows=rows),
        ReplayStep(rows=rows[:1], finish=(1, 2), mrope=True),
        ReplayStep(mode="target_verify", rows=verify),
        ReplayStep(mode="prefill", rows=prefill, via="eager"),
        ReplayStep(mode="prefill", rows=prefill),
        ReplayStep(mode="idle"),
    )
    return Case(schema_version=1, config=config, steps=steps)


TABLE = """\
  step mode          via   raw/padded rows (request:seq_len)
  0    decode        eager 3          0:3 1:4 2:5
> 1    decode        graph 1/1        0:3  after finishing 1,2  with mrope
  2    target_verify graph 1/1        0:5+2
  3    prefill       eager 5 tokens   0:9+5
  4    prefill       graph 5/8 tokens 0:9+5
  5    idle          graph 0          -
"""


def test_a_case_is_a_table_of_steps() -> None:
    assert "\n".join(case_table(history(), mark=1)) + "\n" == TABLE


def test_a_table_with_many_rows_says_how_many_it_leaves_out() -> None:
    (_, line) = case_table(case(15))
    assert line.endswith("10:1 11:1  ... 3 more")


def reported(confirmed: str = "3/3") -> ReportedFinding:
    return ReportedFinding(
        id="footprint-kv_indices-decode-f9ab92",
        finding=finding(confirmed=confirmed, step=1),
        case=case(2, 1, page_size=16),
        digest="0123456789ab",
        also=(finding("reference", "computes", "attention"),),
        after_cases=41,
        after_seconds=3.25,
        shrink_tries=57,
        shrink_seconds=0.84,
        case_path="r/findings/x/case.json",
        exports=(
            Export(kind="script", path="r/findings/x/repro.py", rate="3/3"),
            Export(kind="pytest", path="r/findings/x/t.py", error="could not be executed: exit"),
            Export(kind="issue", path="", error="ValueError: no words"),
        ),
        replay="fuzzgraph replay r/findings/x/case.json --target fake",
    )


FINDING = """\
FINDING [critical] A decode replay writes memory past the end of kv_indices
  observed 16 elements changed in the red zone after kv_indices (+0..+15)
  rule     a replay writes only what its batch owns (oracle footprint)
  where    at step 1 (decode), stage replay, target fake
  sure     shows in 3 of 3 fresh sessions

    step mode   via   raw/padded rows (request:seq_len)
    0    decode graph 2/2        0:1 1:1
  > 1    decode graph 1/1        0:1

  config   capture_bs=[1,2,4] page_size=16
  also     A decode replay writes memory past the end of attention (oracle reference)
  id       footprint-kv_indices-decode-f9ab92
  found    after 41 cases, 3.2 s; shrunk in 57 tries, 0.8 s
  case     r/findings/x/case.json
  script   repro.py (fails 3/3)
  pytest   t.py (could not be executed: exit)
  issue    none: ValueError: no words
  replay   fuzzgraph replay r/findings/x/case.json --target fake"""


def test_a_finding_reads_its_sentence_first_then_the_case_then_what_to_do() -> None:
    assert finding_text(reported()) == FINDING


def test_a_flaky_finding_says_so_with_its_rate() -> None:
    assert "FLAKY, shows in 1 of 3 fresh sessions" in finding_text(reported("1/3"))


@pytest.mark.parametrize(
    ("seconds", "total", "words"),
    [(2.0, 47.0, "47s (2s of search)"), (60.0, 60.2, "1m00s"), (60.0, 0.0, "1m00s")],
    ids=["mostly scripts", "mostly search", "without a total"],
)
def test_a_run_ends_with_its_time_by_the_clock(seconds: float, total: float, words: str) -> None:
    line = verdict_line(summary(seconds=seconds, total_seconds=total))
    assert f" cases, {words}, " in line


def test_what_is_done_for_a_finding_is_told_as_soon_as_it_changes() -> None:
    stream = io.StringIO()
    progress = progress_on(stream)
    first, second = "running repro.py 1/3 of x", "running repro.py 2/3 of x"
    for doing in ("fuzzing", "writing repro.py of x", first, first, second, "fuzzing", "done"):
        progress(msgspec.structs.replace(TOLD, seconds=2.0, doing=doing))
    assert stream.getvalue().splitlines() == [
        "    2s  writing repro.py of x",
        "    2s  running repro.py 1/3 of x",
        "    2s  running repro.py 2/3 of x",
    ]


def test_one_of_anything_is_one() -> None:
    one = summary(cases=1, quarantined={"x": 1}, fallbacks={"k": 1})
    assert not re.search(r"\b1 (cases|times|elements|tries|examples)\b", run_text(one))
    (told,) = progress_line(msgspec.structs.replace(TOLD, cases=1, findings=1)).splitlines()
    assert "  1 case  " in told and told.endswith("1 finding")


def summary(*findings: ReportedFinding, **changes: object) -> RunSummary:
    record = RunSummary(
        fuzzgraph="0.1.0",
        spec=RunSpec(setup=Setup(fault="short-kv"), seed=7, out="reports/runs/x"),
        seconds=60.0,
        cases=6000,
        corpus_cases=12,
        steps=18000,
        skipped=3,
        findings=findings,
        repeats={"footprint-kv_indices-decode-f9ab92": 250},
    )
    return msgspec.structs.replace(record, **changes)


END = """\
nothing found in 6000 cases, 1m00s, 100 cases/s
  12 from the corpus, 3.0 steps each, 3 cases skipped; seed 7; \
builtin with planted fault short-kv, recorder on cpu
  stopped: time is up; report in reports/runs/x
  environment: unknown: the run did not record it"""


def test_a_run_ends_with_its_figures() -> None:
    assert run_text(summary()) == END


def test_a_run_of_which_every_case_was_skipped_checked_nothing_and_says_why() -> None:
    blind = summary(
        cases=9, corpus_cases=2, skipped=9, steps=0, skips={"no model of k": 7, "modes": 2}
    )
    text = run_text(blind)
    assert text.startswith("nothing was checked in 9 cases")
    assert "\n  skipped 7 cases: no model of k" in text
    assert blind.exit_code == 3


def test_a_run_without_a_case_checked_nothing() -> None:
    assert "\n  no case came to its end; give the run more time" in run_text(
        summary(cases=0, corpus_cases=0, skipped=0, steps=0)
    )


def test_generated_cases_that_were_skipped_tell_why() -> None:
    some = {"cases": 20, "corpus_cases": 2, "skipped": 9, "skips": {"no model of k": 9}}
    assert "\n  skipped 9 cases: no model of k" in run_text(summary(**some))
    assert "skipped 9 cases" not in run_text(summary(**{**some, "corpus_cases": 9}))


def test_the_end_of_a_run_shows_its_findings_before_the_figures() -> None:
    text = run_text(summary(reported(), reported("1/3")))
    assert text.startswith("FINDING [critical] A decode replay writes")
    assert "\n2 findings (probably 1 cause, 1 flaky) in 6000 cases" in text


def test_what_went_wrong_beside_the_findings_is_said_too() -> None:
    text = run_text(summary(bad_entries=("a.json: not valid JSON",), error="RuntimeError: x"))
    assert "  ignored: a.json: not valid JSON\n" in text
    assert text.startswith("the run failed, nothing found in 6000 cases")
    assert text.endswith("  run failed: RuntimeError: x")


def test_the_markdown_page_has_the_table_and_every_finding_in_full() -> None:
    page = markdown(summary(reported()))
    assert page.startswith("# FuzzGraph run: 1 finding in 6000 cases, 1m00s, 100 cases/s\n")
    assert (
        "| [footprint-kv_indices-decode-f9ab92]"
        "(findings/footprint-kv_indices-decode-f9ab92/case.json) "
        "| critical | a replay writes only what its batch owns | `kv_indices` "
        "|  | footprint | 2 | 3/3 | 251 | 1 |"
    ) in page
    assert f"```text\n{FINDING}\n```" in page


def test_the_shards_of_a_run_add_up() -> None:
    one = join_summaries([summary(reported()), summary(seconds=61.0)])
    assert (one.cases, one.corpus_cases, one.seconds) == (12000, 24, 61.0)
    assert one.repeats == {"footprint-kv_indices-decode-f9ab92": 500}
    assert (len(one.findings), one.exit_code, one.rate) == (1, 1, 196.7)


STARTED = CampaignStarted(spec=RunSpec(seed=1, budget=Budget(60.0)), corpus_cases=4)
TOLD = Progress(seconds=12.0, cases=1200, steps=3600, findings=1, rate=101.4, seconds_left=48.0)


def test_the_start_says_what_is_about_to_run() -> None:
    assert start_line(STARTED) == (
        "fuzzing builtin, recorder on cpu; seed 1; 1m00s, 4 corpus cases first"
    )


def test_progress_says_rate_cases_time_left_and_findings() -> None:
    assert progress_line(TOLD) == "   12s  1200 cases  101/s  48s left  1 finding"


def events() -> list[Event]:
    early = msgspec.structs.replace(TOLD, seconds=1.0)
    return [
        STARTED,
        early,
        FindingNew(id="footprint-kv_indices-decode-f9ab92", finding=finding(), case=case(1)),
        TOLD,
        msgspec.structs.replace(TOLD, seconds=13.0),
        Shrunk(
            id="footprint-kv_indices-decode-f9ab92",
            before="a",
            after="b",
            steps=2,
            requests=1,
            tries=57,
            seconds=0.8,
        ),
        msgspec.structs.replace(TOLD, seconds=60.0, doing="done"),
    ]


PLAIN = """\
fuzzing builtin, recorder on cpu; seed 1; 1m00s, 4 corpus cases first
found NAME: A decode replay writes memory past the end of kv_indices
   12s  1200 cases  101/s  48s left  1 finding
shrunk NAME to 2 steps, 1 request
""".replace("NAME", "footprint-kv_indices-decode-f9ab92")


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    stream = io.StringIO()
    progress = progress_on(stream)
    assert isinstance(progress, PlainProgress)
    for event in events():
        progress(event)
    progress.close()
    assert stream.getvalue() == PLAIN


def test_a_terminal_gets_a_moving_line_and_keeps_the_findings() -> None:
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, width=100))
    for event in events():
        progress(event)
    progress.close()
    text = stream.getvalue()
    assert "1200 cases  101/s  48s left" in text
    assert ": A decode replay writes memory past the end of kv_indices" in text
    assert "[critical]" not in text  # which is known once the case is shrunk


@pytest.mark.parametrize("left", [None, 40])
def test_progress_leaves_out_what_has_no_limit(left: int | None) -> None:
    line = progress_line(
        Progress(seconds=1, cases=1, steps=1, findings=0, rate=1, examples_left=left)
    )
    assert ("40 examples left" in line) == (left is not None)
