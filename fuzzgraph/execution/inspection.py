"""Runs a target on healthy cases and reports what it shows, what it hides and what it costs.

Each case runs twice in fresh sessions: a target whose two runs differ would accuse any engine.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from fuzzgraph.case import Case, EngineConfig, digest, driven_inputs
from fuzzgraph.execution.execution import Execution
from fuzzgraph.execution.graph_reads import hidden_tensors, untouched_pools
from fuzzgraph.execution.session import OpenSession
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.handover import excuses_needed
from fuzzgraph.ports import GraphEngine, Session, Target, excuses_of
from fuzzgraph.run.spec import DEFAULT_SETUP, Setup
from fuzzgraph.target_report import Cost, HiddenTensor, TargetReport
from fuzzgraph.world import Batch


def inspect_target(
    target: Target,
    cases: Sequence[Case],
    setup: Setup = DEFAULT_SETUP,
) -> TargetReport:
    """What a target shows on these cases, each run twice.

    Raises:
        TargetFailed: the target itself is at fault; UsageError: its engine is missing.
    """
    inspection = _Inspection(target, setup)
    for case in cases:
        inspection.run_twice(case)
    return inspection.report()


class _Inspection(Execution):
    """An execution that collects what it sees for the report."""

    def __init__(self, target: Target, setup: Setup) -> None:
        self._clock = _Clock()
        timed: Any = _TimedTarget(target, self._clock)
        # No cache: `open` and `capture` are timed in every case, and both runs of a case start
        # fresh.
        super().__init__(timed, setup, cache_size=0)
        self._seen = setup.graphs == "recorder"
        self._bits: list[str] = []
        self._cases = self._steps = self._captured = 0
        self._skipped: Counter[str] = Counter()
        self._outputs: dict[str, tuple[str, ...]] = {}
        self._declared: dict[str, bool] = {}
        self._hidden: dict[tuple[str, str], HiddenTensor] = {}
        self._findings: dict[tuple[str, ...], str] = {}
        self._unstable: list[str] = []
        self._untouched: dict[str, None] = {}
        self._driven: dict[str, tuple[str, ...]] = {}
        self._shown_inputs: set[str] = set()
        self._excuses: dict[str, int] = dict.fromkeys(map(str, excuses_of(target)), 0)

    def run_twice(self, case: Case) -> None:
        """Run a case in two fresh sessions, and note what differs between them."""
        runs = [self._once(case) for _ in range(2)]
        (first, bits), (second, bits_again) = runs
        if first.skipped:
            self._skipped[first.skipped] += 1
            return
        self._cases += 1
        self._driven |= driven_inputs(case)
        self._findings.update({found.key: found.message for found in first.findings})
        if {found.key for found in first.findings} != {found.key for found in second.findings}:
            self._unstable.append(f"case {digest(case)}: two runs found different things")
        elif bits != bits_again:
            self._unstable.append(f"case {digest(case)}: {_first_difference(bits, bits_again)}")
        elif first.nondeterministic:
            self._unstable.append(f"case {digest(case)}: a step repeated in the same world")

    def _once(self, case: Case) -> tuple[Verdict, list[str]]:
        self._bits = []
        return self.run_case(case), self._bits

    def report(self) -> TargetReport:
        """Everything noted so far."""
        shown = [name for name, seen in self._declared.items() if seen]
        return TargetReport(
            target=self.target.name,
            cases=self._cases,
            steps=self._steps,
            skipped=dict(self._skipped),
            graphs=self._captured,
            seen=self._seen,
            outputs=self._outputs,
            shown=tuple(sorted(shown)),
            never_shown=tuple(sorted(self._declared.keys() - set(shown))),
            unshown={
                name: inputs
                for name, inputs in self._driven.items()
                if self._shown_inputs.isdisjoint(inputs)
            },
            excuses=self._excuses,
            hidden=tuple(self._hidden[key] for key in sorted(self._hidden)),
            findings=tuple(self._findings.values()),
            unstable=tuple(self._unstable),
            untouched=tuple(self._untouched),
            cost=self._clock.cost(),
        )

    def _open(self, config: EngineConfig) -> OpenSession:
        with self._clock.timing("open"):
            return super()._open(config)

    def _run_steps(self, case: Case, batches: Sequence[Batch], opened: OpenSession) -> Verdict:
        with self._clock.timing("judged", len(batches)):
            verdict = super()._run_steps(case, batches, opened)
        self._steps += verdict.steps
        self._captured += opened.graphs.captured
        # After a failure the session may be half done, and its buffers prove nothing.
        if not any(found.oracle == "survival" for found in verdict.findings):
            self._look(opened)
        return verdict

    def _look(self, opened: OpenSession) -> None:
        """Note what the session declares, and what its graphs read besides."""
        for name in (field.name for field in opened.session.fields):
            self._declared.setdefault(name, False)
        for mode in opened.config.modes:
            promised = (*self._outputs.get(mode, ()), *opened.session.promised_outputs(mode))
            self._outputs[mode] = tuple(dict.fromkeys(promised))
        for tensor in hidden_tensors(opened):
            known = self._hidden.setdefault((tensor.name, tensor.allocated_at), tensor)
            # One case in which it changes is enough: a constant may change in none.
            if tensor.changes and not known.changes:
                self._hidden[tensor.name, tensor.allocated_at] = tensor
        if self._seen and opened.graphs.captured and any(self._outputs.values()):
            self._untouched.update(dict.fromkeys(untouched_pools(opened)))

    def _judge(self, step: StepRecord) -> tuple[Finding, ...]:
        if "replay" in step.runs:
            self._bits += _bits_of(step.index, step.runs["replay"])
            for name in step.runs["replay"].metadata:
                self._declared[name] = True
            self._shown_inputs |= _names_shown(step)
            for excuse in excuses_needed(step):
                self._excuses[str(excuse)] += 1
        return super()._judge(step)


def _names_shown(step: StepRecord) -> set[str]:
    """Names, and what live entries repeat, of all that a replay showed or was handed."""
    seen = step.runs["replay"]
    truths = {field.truth for field in step.fields if field.name in seen.metadata}
    paths = [path for each in seen.handovers for path in each.tensors]
    return {*seen.metadata, *truths, *(path.rpartition(".")[2] for path in paths)}


def _bits_of(step: int, seen: Observation) -> Iterator[str]:
    """One line with the content of each tensor and plan value that a step showed."""
    for name, tensor in {**seen.outputs, **seen.metadata}.items():
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        sum_of = hashlib.blake2b(raw.numpy().tobytes(), digest_size=8).hexdigest()
        yield f"step {step}: {name} {list(tensor.shape)} {sum_of}"
    for name, value in seen.plan.items():
        if isinstance(value, int | float | str | bool | None):
            yield f"step {step}: plan {name} {value}"


def _first_difference(one: Sequence[str], two: Sequence[str]) -> str:
    pairs = zip(one, two, strict=False)
    line = next((a for a, b in pairs if a != b), "one run showed more than the other")
    return " ".join(line.split()[:4])


class _Clock:
    """Collects the seconds spent on each kind of work."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    @contextmanager
    def timing(self, what: str, parts: int = 1) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds.setdefault(what, []).append((time.perf_counter() - begin) / max(parts, 1))

    def cost(self) -> Cost:
        # Medians, because the first case of a process also pays for imports and tables.
        """Medians in milliseconds."""
        spent = {what: 1000 * median(seconds) for what, seconds in self._seconds.items()}
        return Cost(
            open_ms=round(spent.get("open", 0.0), 3),
            capture_ms=round(spent.get("capture", 0.0), 3),
            step_ms=round(spent.get("prepare", 0.0) + spent.get("replay", 0.0), 3),
            judged_step_ms=round(spent.get("judged", 0.0), 3),
        )


class _TimedTarget:
    """A target whose sessions are timed; everything else is the target's own."""

    def __init__(self, target: Any, clock: _Clock) -> None:
        self.unwrapped = getattr(target, "unwrapped", target)
        self._target, self._clock = target, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        return _TimedSession(self._target.open(config, graphs), self._clock)


class _TimedSession:
    """A session whose calls are timed."""

    def __init__(self, session: Session, clock: _Clock) -> None:
        self.unwrapped = getattr(session, "unwrapped", session)
        self._session, self._clock = session, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def capture(self) -> None:
        with self._clock.timing("capture"):
            self._session.capture()

    def prepare_replay(self, batch: Batch) -> None:
        with self._clock.timing("prepare"):
            self._session.prepare_replay(batch)

    def replay(self, batch: Batch) -> None:
        with self._clock.timing("replay"):
            self._session.replay(batch)
