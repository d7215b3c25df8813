"""Runs one case from start to end.

Open the target in guarded memory -> warm up and capture every size -> for each step: write its
state into the engine's pools, let the engine's own code prepare the replay, replay, observe, check
memory, run the comparisons, judge -> verdict.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import msgspec
import torch

from fuzzgraph.capabilities import unsupported_case
from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import (
    ArenaFull,
    DeviceUnavailable,
    EngineError,
    HarnessFailed,
    KernelNotCompiled,
    KernelNotModelled,
    NotInRelease,
    TargetFailed,
)
from fuzzgraph.execution.failures import Border, SessionFailed
from fuzzgraph.execution.kernels import take_fallbacks, take_unchecked
from fuzzgraph.execution.open_session import open_session
from fuzzgraph.execution.process import tune_process
from fuzzgraph.execution.session import OpenSession
from fuzzgraph.execution.sessions import SessionCache, held_bytes, reservable_bytes
from fuzzgraph.execution.steps import StepRunner
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.layout import plan
from fuzzgraph.memory import Room
from fuzzgraph.observation import RunFailure, RunKind, StepRecord
from fuzzgraph.oracles import ORACLES
from fuzzgraph.ports import Oracle, Target, is_isolated, why_unserved
from fuzzgraph.process.device_faults import fault_in, unusable_in
from fuzzgraph.process.interrupts import noting_interrupts
from fuzzgraph.run.spec import DEFAULT_SETUP, Setup
from fuzzgraph.world import Batch


class Execution:
    """Runs cases on one target, with one graph engine, and lets the oracles judge.

    Args:
        target: the engine under test.
        setup: graphs, device, and which further runs each step gets. The engine is `target`,
            whatever the setup names.
        oracles: who judges; findings come in their order, so the most telling oracle comes first.
        cache_size: captured sessions kept; 0 opens a fresh one for each case.
    """

    def __init__(
        self,
        target: Target,
        setup: Setup = DEFAULT_SETUP,
        *,
        oracles: Sequence[Oracle] = ORACLES,
        cache_size: int = 24,
    ) -> None:
        tune_process()
        self.target = target
        self._setup = setup
        self._oracles = tuple(oracles)
        self._needs: frozenset[RunKind] = frozenset().union(*(oracle.needs for oracle in oracles))
        self._sessions = SessionCache(
            max(cache_size, 1),
            held_bytes(setup.device),
            self._open,
            reserved_bytes=reservable_bytes(setup.device),
        )
        self._opening = False
        self._cached = cache_size > 0
        self._rooms = Room(), Room()
        self._without_grad = _mode_of(target)

    def run_case(self, case: Case) -> Verdict:
        """Run the steps in order, until one of them has findings.

        Raises:
            InvalidCase: the case contradicts itself or its pools.
            AdapterUnavailable: the target cannot be opened here at all.
            DeviceUnavailable: the device failed by itself, or outside of the engine's work.
            TargetFailed, HarnessFailed: the target or FuzzGraph itself is at fault.
        """
        with self._without_grad(), noting_interrupts(), self._sparing_the_innocent():
            return self._run_case(case)

    @contextmanager
    def _sparing_the_innocent(self) -> Iterator[None]:
        """Where a device is lost, no code is at fault that only happened to ask it next.

        Raises:
            DeviceUnavailable: it is lost.
        """
        try:
            yield
        except (HarnessFailed, TargetFailed, RuntimeError) as error:
            lost = _lost(str(error)) if self._setup.graphs != "recorder" else ""
            if not lost:
                raise
            raise DeviceUnavailable(
                f"the device was lost outside of the engine's work: {lost}. This says nothing "
                "about the engine."
            ) from error

    def _run_case(self, case: Case) -> Verdict:
        with Border(self.target).crossing("open"):
            reason = self.target.unsupported(case.config) or unsupported_case(
                self.target.capabilities, case
            )
        if reason:
            return Verdict(case, self.target.name, skipped=reason)
        batches = plan(case)
        if not self._cached:
            # The last case may have left its session open, see below.
            self._sessions.abandon()
        try:
            opened = self._sessions.get(case.config)
            verdict = self._run_opened(case, batches, opened)
            # An error of `close` is a finding of this case. An engine that has findings already is
            # left to `abandon`, which ignores such errors: they would add nothing.
            if not (self._cached or verdict.findings):
                self._sessions.clear()
            return verdict
        except SessionFailed as lost:
            self._require_an_able_device(lost.failure)
            return self._lost_outside_steps(case, batches[0], lost)
        except (ArenaFull, KernelNotModelled, KernelNotCompiled, NotInRelease) as left_out:
            # Half a step was run, unless nothing was opened; the next case gets a fresh session.
            self._sessions.forget(case.config)
            return Verdict(case, self.target.name, skipped=str(left_out))

    def _run_opened(self, case: Case, batches: Sequence[Batch], opened: OpenSession) -> Verdict:
        # Damage done while opening would show in every step: judge it before the first one.
        if opened.damaged_while_opening:
            return Verdict(case, self.target.name, self._opening_findings(case, batches[0], opened))
        verdict = self._run_steps(case, batches, opened)
        if not (opened.opening_misuses or opened.opening_accesses):
            return verdict
        # What a kernel was given wrongly at capture, or read elsewhere, leaves steps as they are.
        shown = [_access_of(one) for one in verdict.findings]
        before = [
            one
            for one in self._opening_findings(case, batches[0], opened)
            if (access := _access_of(one)) is None or access not in shown
        ]
        return replace(verdict, findings=(*verdict.findings, *before))

    def run_bare(self, case: Case) -> None:
        """Run a case without checks, with the same cached sessions: a yardstick of speed."""
        with self._without_grad():
            opened = self._sessions.get(case.config)
            rooms = self._rooms
            runner = StepRunner(opened, self.target.name, frozenset(), DEFAULT_SETUP, rooms)
            for batch in plan(case):
                runner.run_bare(batch)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """The same finding with its rate in fresh sessions, e.g. confirmed='3/3'."""
        fresh = Execution(self.target, self._setup, oracles=self._oracles, cache_size=0)
        seen = 0
        for _ in range(times):
            found = {other.key for other in fresh.run_case(case).findings}
            seen += finding.key in found
        fresh.close()
        why = self.unserved(case.config)
        return msgspec.structs.replace(finding, confirmed=f"{seen}/{times}", unserved=why)

    def unserved(self, config: EngineConfig) -> str:
        """Why no server of the engine has this config; '' where one may.

        Raises:
            TargetFailed: the target cannot say.
        """
        return why_unserved(self.target, config)

    def close(self) -> None:
        """Close every cached session.

        Raises:
            EngineError: an engine raised while it closed; that belongs to no case.
        """
        try:
            self._sessions.clear()
        except SessionFailed as lost:
            raise EngineError(
                f"target {self.target.name!r}: close raised {lost.failure.error} at "
                f"{lost.failure.where}. Earlier findings remain valid."
            ) from lost

    def _open(self, config: EngineConfig) -> OpenSession:
        if self._opening and self._setup.device != "cpu":
            gc.collect()  # what the last opening left when it failed: a device misses its arena
        self._opening = True
        opened = open_session(self.target, config, self._setup)
        self._opening = False
        return opened

    def _run_steps(self, case: Case, batches: Sequence[Batch], opened: OpenSession) -> Verdict:
        runner = StepRunner(
            opened,
            self.target.name,
            self._needs,
            self._setup,
            self._rooms,
        )
        findings: tuple[Finding, ...] = ()
        count = 0
        nondeterministic = False
        for count, batch in enumerate(batches, start=1):
            following = batches[count] if count < len(batches) else None
            step = runner.run(batch, following)
            nondeterministic |= step.nondeterministic
            findings = self._judge(step)
            # An engine that raised may be in any state. The next case gets a fresh session.
            if step.failures:
                self._sessions.forget(case.config)
                self._require_an_able_device(*step.failures)
            if findings:
                break
        unguarded = opened.unguarded.take()
        return Verdict(
            case,
            self.target.name,
            _beside_unguarded(findings, unguarded),
            count,
            nondeterministic=nondeterministic,
            fallbacks=take_fallbacks(opened.memory),
            unchecked=take_unchecked(opened.memory),
            unguarded=unguarded,
            late_copies=runner.late_copies,
            unrepeatable=runner.unrepeatable,
        )

    def _require_an_able_device(self, *failures: RunFailure) -> None:
        """An error of hardware that an engine met is none of the engine's.

        Raises:
            DeviceUnavailable: the device failed by itself.
        """
        if self._setup.graphs == "recorder":
            return
        for failure in failures:
            if line := unusable_in(failure.error):
                raise DeviceUnavailable(
                    f"the device failed by itself at stage {failure.stage!r}: {line}. This says "
                    "nothing about the engine."
                )

    def _judge(self, step: StepRecord) -> tuple[Finding, ...]:
        return tuple(finding for oracle in self._oracles for finding in oracle.judge(step))

    def _lost_outside_steps(self, case: Case, batch: Batch, lost: SessionFailed) -> Verdict:
        step = self._before_any_step(case.config, batch)
        step.failures.append(lost.failure)
        return Verdict(case, self.target.name, self._judge(step))

    def _opening_findings(
        self, case: Case, batch: Batch, opened: OpenSession
    ) -> tuple[Finding, ...]:
        step = self._before_any_step(case.config, batch)
        step.zone_hits, step.foreign_writes = opened.opening_hits, opened.opening_writes
        step.accesses, step.misuses = opened.opening_accesses, opened.opening_misuses
        # No step has run, so the record has no outputs; that they are missing is not a finding.
        return tuple(f for f in self._judge(step) if f.symptom != "missing")

    def _before_any_step(self, config: EngineConfig, batch: Batch) -> StepRecord:
        return StepRecord(-1, self.target.name, config, batch, ())


def _access_of(finding: Finding) -> tuple[object, ...] | None:
    """Which access of which kernel a finding is about, whatever buffer it met; None for others."""
    kernel, source = (finding.detail.get(name) for name in ("kernel", "source"))
    return None if kernel is None else (finding.symptom, kernel, source)


def _beside_unguarded(
    findings: tuple[Finding, ...], unguarded: Mapping[str, int]
) -> tuple[Finding, ...]:
    """The findings with how much memory no guard covered as they were made."""
    if not unguarded:
        return findings
    total = sum(unguarded.values())
    return tuple(
        msgspec.structs.replace(one, detail={**one.detail, "unguarded": total}) for one in findings
    )


def _lost(said: str) -> str:
    """The line by which a driver says that the device is lost; '' for none."""
    fault = fault_in(said)
    return fault.line if fault is not None else unusable_in(said)


def _mode_of(target: Target) -> Callable[[], AbstractContextManager[None]]:
    """How the target runs without gradients.

    Inference mode saves the version counting of views and writes, an eighth of a case's time. A
    released engine keeps the mode that its server runs in (sglang's is `no_grad`).
    """
    return torch.no_grad if is_isolated(target) else torch.inference_mode
