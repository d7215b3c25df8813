"""The state of a run follows from its events alone, whether they are emitted or read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fuzzgraph.campaign import Campaign, Opened, SavedCases, Tools, run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.resume import load_run_state, resumed_spec
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import Entry, Loaded
from fuzzgraph.finding import Finding
from fuzzgraph.run.coverage import CoverageMap
from fuzzgraph.run.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Counted,
    Event,
    Exported,
    FindingAttached,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    FindingWaiting,
    Noted,
    Progress,
    ReportedFinding,
    RunSummary,
    Setup,
    decode_event,
    encode_event,
    finding_id,
)
from fuzzgraph.run.spec import Budget, RunSpec
from fuzzgraph.run.state import RunState, add_counts, join_summaries
from tests.fakes import FakeRunner, FakeTarget, case, finding, paged
from tests.unit.killing import bugs

CORPUS = [case(2, 1, page_size=16, seed=seed) for seed in range(4)]


class Killed(BaseException):
    """Stands for a kill: nothing in FuzzGraph catches it."""


def content(state: RunState) -> dict[str, Any]:
    """All that a state says."""
    return {
        "summary": state.summary(),
        "progress": state.progress,
        "unfinished": list(state.unfinished.items()),
        "waiting": list(state.waiting.items()),
        "corpus_ran": state.corpus_ran,
        "finished": state.finished,
    }


class Mirror:
    """Folds what is written, and compares it with the campaign's own state after every event."""

    def __init__(self) -> None:
        self.state = RunState()
        self.campaign: Campaign | None = None
        self.events = 0

    def start(self, campaign: Campaign) -> None:
        self.campaign = campaign

    def __call__(self, event: Event) -> None:
        self.state.apply(decode_event(encode_event(event)))
        self.events += 1
        assert self.campaign is not None
        if not isinstance(event, Progress):  # a Counted may come with it, and is applied first
            assert content(self.state) == content(self.campaign.state)


def run(out: Path, *, killed_at: int = 0, mirror: Mirror | None = None) -> RunSummary:
    """Start a run of 80 cases with four bugs, or go on with it; killed before a case."""
    mirror = mirror or Mirror()
    runner = FakeRunner()

    def killing(one: Case) -> tuple[Finding, ...]:
        if killed_at and len(runner.ran) == killed_at:
            raise Killed
        return bugs(one)

    runner.bugs = killing
    out.mkdir(exist_ok=True)
    spec = RunSpec(out=str(out), seed=2, budget=Budget(None, 80))  # two bugs show together first
    state = RunState()
    if (out / "events.jsonl").exists():
        state = load_run_state(out)
        spec = resumed_spec(state, out)
        mirror.state = load_run_state(out)
    return run_campaign(
        replace(spec, progress_seconds=0.0),
        mirror,
        seeds=Loaded([Entry(Path(f"{one.seed}.json"), one, digest(one)) for one in CORPUS]),
        opened=Opened(Setup(), FakeTarget(), runner, lambda: None),
        export=no_export,
        state=state,
        on_start=mirror.start,
    )


@pytest.mark.parametrize("kills", [(), (20,), (3, 40, 1)], ids=lambda kills: f"{len(kills)} kills")
def test_the_state_of_a_campaign_is_at_every_event_the_one_that_its_log_gives(
    kills: tuple[int, ...], tmp_path: Path
) -> None:
    mirror = Mirror()
    for kill in kills:
        with pytest.raises(Killed):
            run(tmp_path / "r", killed_at=kill, mirror=mirror)
    summary = run(tmp_path / "r", mirror=mirror)
    assert mirror.events > 150
    assert len(summary.findings) == 4
    state = RunState.load(tmp_path / "r" / "events.jsonl")
    assert state.summary() == summary == mirror.state.summary()
    assert json.loads((tmp_path / "r" / "summary.json").read_bytes())["cases"] == summary.cases


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a run that was killed once and resumed."""
    out = tmp_path_factory.mktemp("recorded") / "r"
    with pytest.raises(Killed):
        run(out, killed_at=20)
    run(out)
    return (out / "events.jsonl").read_bytes()


@given(data=st.data())
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_log_cut_at_any_byte_gives_the_state_of_its_whole_lines(
    data: st.DataObject, log: bytes, tmp_path: Path
) -> None:
    first = log.index(b"\n") + 1
    cut = data.draw(st.integers(first, len(log)))
    path = tmp_path / "events.jsonl"
    path.write_bytes(log[:cut])
    whole = log[: log.rindex(b"\n", 0, cut) + 1]
    state, wanted = RunState.load(path), RunState(map(decode_event, whole.splitlines()))
    if log[len(whole) : cut].strip():
        number = whole.count(b"\n") + 1
        line = f"events.jsonl:{number}: not an event (cut short); left out"
        with_newline = log[len(whole) : cut + 1].endswith(b"}\n")
        if not with_newline:
            wanted.apply(Noted(bad_entries=(line,)))
        else:  # all of the line but its end
            wanted.apply(decode_event(log[len(whole) : cut]))
    assert content(state) == content(wanted)


def test_the_end_of_a_run_tells_nothing_that_its_events_have_not_told(log: bytes) -> None:
    *events, end = map(decode_event, log.splitlines())
    assert isinstance(end, CampaignFinished)
    state = RunState(events)
    of_the_end = {
        name: getattr(end.summary, name)
        for name in ("reason", "seconds", "total_seconds", "cut_off", "error")
    }
    assert state.summary().reason == "killed"
    assert replace(state.summary(), **of_the_end) == end.summary


KINDS = [CaseRun, Counted, FindingNew, FindingPursued, FindingRepeated, FindingWaiting, Progress]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_kind_of_event_could_be_left_out(kind: type[Event], log: bytes) -> None:
    """The comparisons above can fail."""
    events = [decode_event(line) for line in log.splitlines()]

    def states(events: list[Event]) -> list[dict[str, Any]]:
        state, seen = RunState(), []
        for event in events:
            state.apply(event)
            seen.append(content(state))
        return seen

    without = states([event for event in events if not isinstance(event, kind)])
    assert any(state not in without for state in states(events))


ONE, TWO = finding(buffer="one"), finding(buffer="two")


def reported(of: Finding, **changes: Any) -> ReportedFinding:
    return ReportedFinding(id=finding_id(of.key), finding=of, case=case(1), digest="d", **changes)


def started() -> CampaignStarted:
    return CampaignStarted(spec=RunSpec(seed=3), started="now", fuzzgraph="0")


def coverage(*names: str) -> Any:
    covered = CoverageMap()
    covered.add(names)
    return covered.record()


def findings() -> st.SearchStrategy[Finding]:
    return st.sampled_from([ONE, TWO])


def of_finding(kind: Any, **more: Any) -> st.SearchStrategy[Event]:
    return findings().map(lambda one: kind(id=finding_id(one.key), **{**_with(one, kind), **more}))


def _with(one: Finding, kind: Any) -> dict[str, Any]:
    if kind in (FindingNew, FindingWaiting):
        return {"finding": one, "case": case(1)}
    return {"finding": one} if kind is FindingAttached else {}


counts = st.integers(0, 9)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(started()),
    st.builds(
        CaseRun,
        index=counts,
        digest=st.sampled_from("abc"),
        source=st.sampled_from(["corpus", "generated"]),
        outcome=st.sampled_from(["clean", "skipped", "finding"]),
        steps=counts,
        seconds=st.just(0.5),
        note=st.sampled_from(["", "why"]),
    ),
    of_finding(FindingNew),
    of_finding(FindingWaiting),
    of_finding(FindingAttached, finding=finding(buffer="beside")),
    st.builds(FindingRepeated, id=st.just(finding_id(ONE.key)), digest=st.just("d"), count=counts),
    of_finding(FindingFlaky, rate="1/3"),
    st.builds(
        lambda one, left, kind: kind(reported=reported(one, left=left)),
        findings(),
        st.sampled_from([(), ("shrink",), ("confirm", "shrink"), ("export",)]),
        st.sampled_from([FindingPursued, Exported]),
    ),
    st.builds(
        Progress,
        seconds=counts.map(float),
        cases=counts,
        findings=counts,
        rate=st.just(1.0),
        drawn=counts,
    ),
    st.builds(
        Counted,
        cases=counts,
        skips=st.dictionaries(st.sampled_from(["why", "other"]), counts),
        coverage=st.just(coverage("a", "b")),
    ),
    st.builds(Noted, bad_entries=st.sampled_from([("x",), ("y", "x")]), damaged=st.just(())),
)


@given(events=st.lists(EVENTS, max_size=20))
@settings(max_examples=150, deadline=None)
def test_any_events_give_one_state_and_an_end_that_changes_nothing(events: list[Event]) -> None:
    live = RunState()
    for event in (started(), *events):
        live.apply(event)
    lines = b"".join(map(encode_event, (started(), *events)))
    assert content(RunState(map(decode_event, lines.splitlines()))) == content(live)
    before = live.summary()
    live.apply(CampaignFinished(summary=before))
    assert live.summary() == before
    assert set(live.findings) == {one.id for one in before.findings}


def test_a_finding_that_was_not_shrunk_is_queued_again_by_a_resume() -> None:
    state = RunState([started(), FindingPursued(reported=reported(ONE, left=("shrink",)))])
    assert not state.unfinished
    state.apply(started())
    assert list(state.unfinished) == [finding_id(ONE.key)]
    state.apply(FindingPursued(reported=reported(ONE)))
    assert not state.unfinished


def test_counts_go_on_where_a_killed_run_had_them() -> None:
    state = RunState([started(), Counted(cases=7, skips={"why": 2}), started()])
    assert (state.summary().cases, state.summary().skips) == (7, {"why": 2})


def test_the_counts_of_shards_are_added_up_whatever_they_count() -> None:
    one = Counted(cases=1, deaths=2, skips={"a": 1}, coverage=coverage("a", "b"))
    two = Counted(cases=3, skips={"a": 1, "b": 5}, coverage=coverage("b", "c"))
    both = add_counts([one, two])
    assert (both.cases, both.deaths, both.skips) == (4, 2, {"a": 2, "b": 5})
    assert (both.coverage.cases, both.coverage.pairs) == ({"a": 1, "b": 2, "c": 1}, 2)


def test_what_one_shard_saw_beside_a_finding_of_another_is_told_with_it() -> None:
    beside = FindingAttached(id=finding_id(ONE.key), finding=TWO)
    shards = [
        RunState([started(), FindingPursued(reported=reported(ONE))]),
        RunState([started(), beside]),
    ]
    (joined,) = join_summaries([shard.summary() for shard in shards]).findings
    assert [other.buffer for other in joined.also] == ["two"]


def test_a_run_without_any_start_has_no_state() -> None:
    assert not RunState([Progress(seconds=1.0, findings=0, rate=0.0)]).begun


def test_a_campaign_can_be_run_with_nothing_but_a_spec_and_an_engine(tmp_path: Path) -> None:
    events: list[Event] = []
    spec = RunSpec(out=str(tmp_path), budget=Budget(None, 30))
    opened = Opened(Setup(), FakeTarget(), FakeRunner(paged), lambda: None)
    campaign = Campaign(spec, opened, events.append, SavedCases(), tools=Tools(no_export))
    assert campaign.run() == RunState(events).summary()
