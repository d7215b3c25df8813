"""Judges what a runner hands its backend, and a backend its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from fuzzgraph.case import DIMENSIONS, EngineConfig
from fuzzgraph.finding import Clause, Finding, Stage, Symptom
from fuzzgraph.handover import Excuse
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.handover.breach import Breach, Pair
from fuzzgraph.oracles.handover.calls import forms_match
from fuzzgraph.oracles.handover.capture import against_capture
from fuzzgraph.oracles.handover.kernels import kernel_breaches
from fuzzgraph.oracles.handover.padding import padding_is_fresh
from fuzzgraph.oracles.handover.runs import against, fields_shown
from fuzzgraph.oracles.handover.shown import leaf, of_watch, plans, unread_in, watches


def _is_effect(breach: Breach) -> bool:
    """Whether it tells what a kernel as a whole does, and not which argument is wrong."""
    return breach.rule == "keys" or (breach.rule == "meaning" and "." not in breach.name)


def _argument_of(kernel: str, told: set[str]) -> bool:
    return any(name.startswith(f"{kernel}.") for name in told)


class Handovers:
    """Live parts mean the same in replay and eager run; sizes, addresses and sides hold."""

    name = "handover"
    clause: Clause = "metadata"
    needs: frozenset[RunKind] = frozenset({"replay", "eager"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        found = [breach for breach in breaches(step) if not excused(step, breach)]
        told: set[str] = set()
        memory: set[int] = set()
        strayed = {access.kernel for access in step.accesses}
        for breach in sorted(found, key=_is_effect):
            # One name for one thing: a kernel's wrong argument comes from the metadata, and what
            # the kernel then reads is its effect.
            known = breach.name in told or breach.address in memory
            if known or (
                _is_effect(breach) and (breach.name in strayed or _argument_of(breach.name, told))
            ):
                continue
            told.add(breach.name)
            memory |= {breach.address} - {0}
            yield self._finding(step, breach)

    def _finding(self, step: StepRecord, breach: Breach) -> Finding:
        symptom: Symptom = "missing" if breach.rule == "missing" else "broken_contract"
        return claim(
            step, self.name, self.clause, buffer=breach.name, symptom=symptom,
            message=breach.message, stage=breach.stage, rule=breach.rule,
        )  # fmt: skip


def excused(step: StepRecord, breach: Breach) -> bool:
    """Whether the target excuses it."""
    return any(_covers(excuse, breach, step) for excuse in step.excuses)


def excuses_needed(step: StepRecord) -> list[Excuse]:
    """The target's excuses without which the step had findings."""
    found = list(breaches(step)) if step.excuses else []
    return [
        excuse for excuse in step.excuses if any(_covers(excuse, breach, step) for breach in found)
    ]


def _covers(excuse: Excuse, breach: Breach, step: StepRecord) -> bool:
    if not _holds_with(excuse, step.config):
        return False
    replay = step.runs["replay"]
    at = replay.handed_at_capture if breach.stage == "capture" else replay.handovers
    return excuse.covers(breach.name, breach.rule, unread_in(at))


def _holds_with(excuse: Excuse, config: EngineConfig) -> bool:
    """Whether it is meant for such a config."""
    name = excuse.only_with
    if not name:
        return True
    value = getattr(config, name)
    return value in excuse.only_as if excuse.only_as else value != DIMENSIONS[name].default


def breaches(step: StepRecord) -> Iterator[Breach]:
    """Every rule that is broken, excused or not, the most telling first."""
    replay, eager = step.runs.get("replay"), step.runs.get("eager")
    if replay is None:
        return
    step = _in_rows_of_engine(step, replay)
    if eager is not None and eager.order != replay.order:
        eager = None
    stage: Stage | None = None
    for run, seen in (("replay", replay), ("eager", eager)):
        if seen is not None:
            stage = "eager" if run == "eager" else None
            yield from kernel_breaches(step, seen, stage)
    # The kernels of a part are given rows of a part, which another run may cut elsewhere.
    if step.batch.via == "graph" and not replay.declined and not replay.parts:
        for watch in watches(replay):
            yield from against_capture(step, of_watch(replay, watch))
        if eager is not None:
            places = [plans(seen.handovers) for seen in step.runs.values()]
            pair = Pair(step, replay, eager, "the eager run", frozenset().union(*places))
            yield from fields_shown(pair)
            for watch in watches(replay):
                yield from _watched(pair, watch)


def _watched(pair: Pair, watch: int) -> Iterator[Breach]:
    """What one watch took down in both runs."""
    pair = pair._replace(replay=of_watch(pair.replay, watch), other=of_watch(pair.other, watch))
    if pair.other.handovers:
        yield from against(pair)
        yield from forms_match(pair)
        yield from _screened(pair, watch)


def _in_rows_of_engine(step: StepRecord, replay: Observation) -> StepRecord:
    """The step with its batch in the engine's order of rows: what is handed over has that order."""
    if replay.order is None:
        return step
    return replace(step, batch=step.batch.with_rows(np.argsort(np.array(replay.order, dtype=int))))


def _screened(pair: Pair, watch: int) -> Iterator[Breach]:
    """The same graph without the past and in another world: two replays do not tell which entries
    are live, an eager run does."""
    screen = pair.step.runs.get("screen")
    if screen is not None and screen.handovers and screen.order == pair.replay.order:
        screen = of_watch(screen, watch)
        yield from padding_is_fresh(pair, screen)
        # Without its past a request may rightly be told otherwise.
        by_right = {field.name for field in pair.step.fields if field.past}
        called = f"{pair.called} with its past"
        for breach in against(pair._replace(replay=screen, called=called)):
            if leaf(breach.name) not in by_right:
                yield breach
