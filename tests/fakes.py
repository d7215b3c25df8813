"""A runner without an engine: what it finds is a plain function of the case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fuzzgraph.campaign import Opened
from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.finding import Clause, Finding
from fuzzgraph.run.events import Setup

if TYPE_CHECKING:
    from fuzzgraph.ports import GraphEngine, Session


def finding(
    oracle: str = "footprint",
    clause: Clause = "writes",
    buffer: str = "kv_indices",
    *,
    step: int = 0,
    mode: str = "decode",
    target: str = "fake",
    confirmed: str = "",
    message: str = "16 elements changed in the red zone after kv_indices (+0..+15)",
) -> Finding:
    return Finding(
        oracle=oracle,
        clause=clause,
        target=target,
        step=step,
        mode=mode,
        buffer=buffer,
        symptom="red_zone_hit",
        stage="replay",
        message=message,
        confirmed=confirmed,
    )


def case(*batches: int, page_size: int = 1, seed: int = 0) -> Case:
    """A decode case with the given batch sizes, one step each."""
    steps = tuple(
        ReplayStep(rows=tuple(BatchRow(request=request) for request in range(raw_bs)))
        for raw_bs in batches
    )
    config = EngineConfig(capture_bs=(1, 2, 4), page_size=page_size)
    return Case(schema_version=1, config=config, steps=steps, seed=seed)


@dataclass(frozen=True)
class FakeVerdict:
    findings: tuple[Finding, ...] = ()
    steps: int = 1
    skipped: str = ""
    nondeterministic: bool = False
    fallbacks: dict[str, int] = field(default_factory=dict)
    unchecked: dict[str, int] = field(default_factory=dict)
    unguarded: dict[str, int] = field(default_factory=dict)
    late_copies: dict[str, int] = field(default_factory=dict)
    unrepeatable: int = 0
    branches: frozenset[str] = frozenset()


@dataclass
class FakeRunner:
    """Finds what `bugs` finds, in `rate` of the fresh sessions."""

    bugs: Callable[[Case], tuple[Finding, ...]] = lambda case: ()
    rate: str = ""
    ran: list[Case] = field(default_factory=list)

    def run_case(self, case: Case) -> FakeVerdict:
        self.ran.append(case)
        return FakeVerdict(self.bugs(case), steps=len(case.steps))

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        seen = any(other.key == finding.key for other in self.bugs(case))
        rate = self.rate or f"{times if seen else 0}/{times}"
        return msgspec.structs.replace(finding, confirmed=rate)

    def unserved(self, config: EngineConfig) -> str:
        return ""


class FakeTarget:
    """What strategies ask of a target."""

    name = "fake"
    capabilities = Capabilities(page_sizes=(1, 16))

    def unsupported(self, config: EngineConfig) -> str | None:
        return None

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        raise AssertionError("a fake engine is not opened")


def opener(runner: FakeRunner) -> Callable[[Setup], Opened]:
    """Stands for `open_setup`: whatever is asked for, this runner answers."""

    def open_setup(setup: Setup) -> Opened:
        return Opened(setup, FakeTarget(), runner, lambda: None)

    return open_setup


def no_exporting(setup: Setup, *known: object) -> Callable[..., tuple[()]]:
    """Stands for `Exporting`: writes no repro."""
    return lambda *_: ()


def paged(one: Case) -> tuple[Finding, ...]:
    """A bug at page sizes above one, in the second step or later."""
    if one.config.page_size > 1 and len(one.steps) > 1:
        return (finding(step=1),)
    return ()
