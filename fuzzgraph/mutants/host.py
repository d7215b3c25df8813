"""The host of one target: imports the engine once, and forks a child for everything that runs it.

The host itself never runs the engine, so that each child begins with the same fresh process.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError, HarnessFailed, TargetFailed, UsageError
from fuzzgraph.mutants.drawing import Candidate, candidates, in_order
from fuzzgraph.mutants.fork import Ended, Fork, Work
from fuzzgraph.mutants.messages import (
    Begin,
    Finished,
    FromChild,
    Judged,
    Lines,
    Quiet,
    Refused,
)
from fuzzgraph.mutants.planting import NotPlanted, changed_code, live_functions, plant
from fuzzgraph.mutants.records import Ground, Mutant, Result
from fuzzgraph.mutants.source import Source
from fuzzgraph.mutants.trial import Trial
from fuzzgraph.worker.messages import Channel
from fuzzgraph.worker.stages import Enter

if TYPE_CHECKING:
    from types import FunctionType

    from fuzzgraph.ports import Target

CASES = 400
"""Cases that are drawn, at most; a mutant of a fast target ends with them."""
_TRACE_SHARE, _GROUND_SHARE = 4, 4
"""Processor seconds of the trace and of the unchanged engine, for one second of a mutant."""


def serve(descriptor: int) -> None:
    """Do what the message on the socket says, and tell what comes of it."""
    channel: Channel[Begin] = Channel(socket.socket(fileno=descriptor), Begin)
    try:
        begin = channel.receive()
        try:
            Host(begin, channel.send).run()
            channel.send(Finished())
        except FuzzGraphError as error:
            channel.send(Refused(kind=type(error).__name__, message=str(error)))
    except (EOFError, BrokenPipeError, ConnectionError):
        return  # the parent is gone


class Host:
    """One measurement on one target.

    Args:
        begin: what to do.
        tell: takes every `Ground` and `Result`.
    """

    def __init__(self, begin: Begin, tell: Callable[..., None]) -> None:
        self._begin = begin
        self._sought = begin.sought
        self._tell = tell
        self._target = _loaded(begin)
        self._cases = _drawn(self._target, self._sought.seed, CASES)
        self._sources: dict[str, Source] = {}
        self._live: dict[str, list[FunctionType]] = {}
        self._known: frozenset[str] = frozenset()
        # An engine that is broken on purpose prints much.
        self._silence = os.open(os.devnull, os.O_WRONLY)

    def run(self) -> None:
        """Trace, run the unchanged engine, then mutant after mutant."""
        _refuse_threads()
        ground = self._begin.ground or self._learned()
        found = self._candidates(ground.executed)
        self._cases = self._cases[: ground.cases]
        self._known = frozenset(ground.findings)
        self._live = live_functions(self._sources)
        self._measure(self._to_try(found))

    # Before the mutants

    def _learned(self) -> Ground:
        """What the unchanged engine executes and shows."""
        from fuzzgraph.ports import engine_packages
        from fuzzgraph.run.environment import read_environment

        traced = self._traced()
        executed = {name: lines for name, lines in traced.lines.items() if self._is_chosen(name)}
        found = self._candidates(executed)
        if not found:
            raise UsageError(
                f"modules={','.join(self._sought.modules)!r}: no line of them can be changed that "
                f"target {self._target.name!r} executes. Use some of: {', '.join(traced.lines)}."
            )
        quiet = self._ask(partial(_quiet, self, _GROUND_SHARE * self._sought.seconds))
        assert isinstance(quiet, Quiet)
        environment = read_environment(engine_packages(self._target), self._sought.setup.device)
        ground = Ground(
            lines=sum(map(len, executed.values())),
            candidates=len(found),
            traced_cases=traced.cases,
            cases=quiet.cases,
            seconds=round(quiet.seconds, 2),
            findings=tuple(quiet.findings),
            shown=tuple(quiet.findings.values()),
            engine_version=environment.engine_version,
            executed=executed,
        )
        self._tell(ground)
        return ground

    def _traced(self) -> Lines:
        answer = self._ask(partial(_trace, self, _TRACE_SHARE * self._sought.seconds))
        assert isinstance(answer, Lines)
        self._import(answer.imported)
        if not answer.lines:
            raise UsageError(
                f"target {self._target.name!r}: no line of its engine runs while it captures and "
                "prepares replays. Name the engine's packages in the target's engine_packages."
            )
        return answer

    def _import(self, names: Sequence[str]) -> None:
        """Import here what the engine's functions import, once and not in each child.

        The engine's own modules are left: what they do at their import may depend on the session
        that is open then.
        """
        from fuzzgraph.ports import engine_packages

        packages = tuple(f"{name}." for name in engine_packages(self._target))
        for name in names:
            if not f"{name}.".startswith(packages) and name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)

    def _candidates(self, lines: Mapping[str, Sequence[int]]) -> list[Candidate]:
        found: list[Candidate] = []
        for module, numbers in sorted(lines.items()):
            path = _file_of(module)
            if path is None:
                continue
            source = self._sources[path] = Source.read(path)
            found += candidates(module, source, numbers, self._sought.operators)
        return found

    def _is_chosen(self, module: str) -> bool:
        chosen = self._sought.modules
        return not chosen or any(f"{module}.".startswith(f"{name}.") for name in chosen)

    def _ask(self, work: Work) -> FromChild:
        """The answer of a child in which the unchanged engine runs.

        Raises:
            TargetFailed: it died.
        """
        try:
            answer = Fork(work, 2).answer()
        except Ended as ended:
            raise TargetFailed(
                f"target {self._target.name!r}: without any change, {ended.how} at stage "
                f"{ended.stage!r}. Mend that first: fuzzgraph run --target {self._target.name}."
            ) from None
        if isinstance(answer, Refused):
            raise HarnessFailed(f"{answer.kind}: {answer.message}")
        return answer

    # The mutants

    def _to_try(self, found: list[Candidate]) -> list[Candidate]:
        """Candidates in order, those that were named in another run, or those of the seed."""
        if not self._begin.named:
            return in_order(found, self._sought.seed)
        there = {one.mutant.id: one for one in found}
        for path, source in self._missing_sources(self._begin.named, there):
            lines = range(1, len(source.lines) + 1)
            module = next(one.module for one in self._begin.named if _file_of(one.module) == path)
            there |= {one.mutant.id: one for one in candidates(module, source, lines)}
        return [there[one.id] for one in self._begin.named if one.id in there]

    def _missing_sources(
        self, named: Sequence[Mutant], there: dict[str, Candidate]
    ) -> Iterator[tuple[str, Source]]:
        """Sources of mutants in lines that this target does not execute (any more)."""
        for path in {_file_of(one.module) for one in named if one.id not in there}:
            if path is not None:
                source = self._sources.setdefault(path, Source.read(path))
                yield path, source

    def _measure(self, order: Sequence[Candidate]) -> None:
        done = {one.mutant.id: one for one in self._begin.done}
        started = 0
        running: dict[Fork, Mutant] = {}
        wanted = len(order) if self._begin.named else self._sought.sample
        waiting = iter(order)
        try:
            while True:
                while len(running) < self._begin.jobs and started + len(running) < wanted:
                    candidate = next(waiting, None)
                    if candidate is None:
                        break
                    earlier = done.get(candidate.mutant.id)
                    if earlier is not None:
                        started += earlier.outcome != "does_not_start"
                    elif self._can_plant(candidate):
                        running[self._fork(candidate)] = candidate.mutant
                if not running:
                    return
                for result in _finished(running):
                    started += result.outcome != "does_not_start"
                    self._tell(result)
        finally:
            for fork in running:
                fork.stop()

    def _can_plant(self, candidate: Candidate) -> bool:
        try:
            pairs = changed_code(self._sources[candidate.path], candidate)
        except NotPlanted:
            return False
        before = {one for one, _ in pairs}
        live = self._live.get(candidate.path, ())
        later = candidate.mutant.module not in sys.modules
        return later or any(function.__code__ in before for function in live)

    def _fork(self, candidate: Candidate) -> Fork:
        return Fork(partial(_judge, self, candidate), self._silence)

    def trial(self, enter: Enter) -> Trial:
        return Trial(self._target, self._sought.setup, self._cases, enter)

    def planted(self, candidate: Candidate) -> None:
        """Put the change in place; in a child, for the rest of its life."""
        plant(self._sources[candidate.path], candidate, self._live)

    @property
    def known(self) -> frozenset[str]:
        return self._known

    @property
    def seconds(self) -> float:
        return self._sought.seconds


def _trace(host: Host, seconds: float, enter: Enter) -> FromChild:
    return host.trial(enter).traced(seconds)


def _quiet(host: Host, seconds: float, enter: Enter) -> FromChild:
    return host.trial(enter).quiet(seconds)


def _judge(host: Host, candidate: Candidate, enter: Enter) -> FromChild:
    host.planted(candidate)
    return Judged(result=host.trial(enter).judged(candidate.mutant, host.seconds, host.known))


def _finished(running: dict[Fork, Mutant]) -> Iterator[Result]:
    """Results of children that have come to an end; waits a moment for one."""
    readable, _, _ = select.select(list(running), [], [], 0.2)
    for fork in list(running):
        try:
            message = None
            if fork in readable:
                message = fork.take()
                while message is None and fork.has_more():
                    message = fork.take()
            ended = fork.exceeded() if message is None else None
        except Ended as dead:
            message, ended = None, dead
        if ended is not None:
            yield _of_death(running.pop(fork), ended)
        elif isinstance(message, Judged):
            running.pop(fork)
            yield message.result
        elif isinstance(message, Refused):
            said = f"{message.kind}: {message.message}"[:400]
            yield Result(mutant=running.pop(fork), outcome="failed", said=said)


def _of_death(mutant: Mutant, ended: Ended) -> Result:
    """A dead process is a finding, as in a campaign; before the first step it did not start."""
    said = f"{ended.how} at stage {ended.stage!r}"
    if ended.kind == "SIGKILL":  # from outside: the machine may be out of memory
        return Result(mutant=mutant, outcome="failed", said=said)
    if ended.step < 0:
        return Result(mutant=mutant, outcome="does_not_start", said=said)
    return Result(
        mutant=mutant,
        outcome="found",
        oracle="survival",
        clause="survives",
        buffer=f"process: {ended.kind} in {ended.stage}",
        said=said,
    )


def _loaded(begin: Begin) -> Target:
    from fuzzgraph.targets import open_target
    from fuzzgraph.worker.bytecode import keep_bytecode

    keep_bytecode(begin.paths)
    sys.path[:0] = begin.paths
    gc.disable()  # an engine's imports make half a million objects that stay
    try:
        target = open_target(begin.sought.setup.target)
        load = getattr(target, "load", None)
        if load is not None:
            load()
    finally:
        gc.enable()
    from fuzzgraph.execution.process import tune_process

    tune_process()
    return target


def _drawn(target: Target, seed: int, count: int) -> list[Case]:
    """The first cases of a campaign with this seed."""
    from fuzzgraph.open_target import supports_of
    from fuzzgraph.run.spec import RunSpec
    from fuzzgraph.strategies import DEFAULT, block_size, cases, draw

    drawn: list[Case] = []
    block = 0
    spec = RunSpec(seed=seed)
    supports = supports_of(target)
    while len(drawn) < count:
        number = spec.block_seed(block)
        size = min(block_size(block), count - len(drawn))
        strategy = cases(target.capabilities, DEFAULT.at(number), supports=supports)
        draw(strategy, number, size, drawn.append)
        block += 1
    return drawn


def _file_of(module: str) -> str | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(module)
            path = spec.origin if spec is not None else None
    return path if path is not None and path.endswith(".py") else None


def _refuse_threads() -> None:
    """A fork copies only the thread that forks: a lock that another one holds stays locked.

    Raises:
        UsageError: the engine's import has started threads.
    """
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and len(list(tasks.iterdir())) > 1:
        names = sorted((task / "comm").read_text().strip() for task in tasks.iterdir())
        raise UsageError(
            f"the engine's import starts threads ({', '.join(names)}), and mutants run in forks of "
            "the process that imports it. Start them when the target opens."
        )
