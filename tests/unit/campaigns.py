"""A campaign without an engine, on a clock that moves when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzgraph.campaign import Campaign, Opened, SavedCases, Tools
from fuzzgraph.campaign.export import no_export
from fuzzgraph.case import Case
from fuzzgraph.corpus import Entry
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import Event, RunSummary, Setup
from fuzzgraph.run.spec import Budget, RunSpec
from fuzzgraph.strategies import minimise
from tests.fakes import FakeRunner, FakeTarget, FakeVerdict, finding

Bugs = Callable[[Case], tuple[Finding, ...]]


class Clock:
    """Time that passes only when somebody looks."""

    def __init__(self, step: float = 0.0) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class CampaignRun:
    """A campaign with everything at hand."""

    def __init__(
        self, folder: Path, runner: FakeRunner, *, clock: Clock | None = None, **rest: Any
    ) -> None:
        self.events: list[Event] = []
        self.runner = runner
        corpus = rest.pop("corpus", ())
        tools = Tools(
            export=rest.pop("export", no_export),
            minimise=rest.pop("minimise", minimise),
            dimensions=lambda case: (),
            clock=clock or Clock(),
        )
        cut_off = rest.pop("cut_off", lambda moment: None)
        unserved = rest.pop("unserved", lambda config: "")
        budget = Budget(
            rest.pop("seconds", None), rest.pop("examples", 200), rest.pop("findings", None)
        )
        self.plan = RunSpec(out=str(folder), budget=budget, **rest)
        self.campaign = Campaign(
            self.plan,
            Opened(Setup(), FakeTarget(), runner, lambda: None, cut_off=cut_off, unserved=unserved),
            self.events.append,
            SavedCases([Entry(Path(f"{index}.json"), one, "") for index, one in enumerate(corpus)]),
            tools=tools,
        )

    def run(self) -> RunSummary:
        return self.campaign.run()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Slow(FakeRunner):
    """Every run of a case takes a second."""

    def __init__(self, bugs: Bugs, clock: Clock) -> None:
        super().__init__(bugs)
        self.clock = clock

    def run_case(self, case: Case) -> FakeVerdict:
        self.clock.now += 1.0
        return super().run_case(case)


def many_bugs(one: Case) -> tuple[Finding, ...]:
    """Ten bugs, told apart by the seed of the case."""
    return (finding(buffer=f"buffer{one.seed % 10}"),)


def endless(one: Case, still_fails: Callable[[Case], bool]) -> Case:
    while still_fails(one):
        pass
    return one
