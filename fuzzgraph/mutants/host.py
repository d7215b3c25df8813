"""The host of one target: imports the engine once, and forks a child for everything that runs it.

The host itself never runs the engine, so that each child begins with the same fresh process.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

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
from fuzzgraph.mutants.opening import draw_cases, file_of, load_target
from fuzzgraph.mutants.planting import NotPlanted, changed_code, live_functions, plant
from fuzzgraph.mutants.records import Done, Ground, Result
from fuzzgraph.mutants.source import Source
from fuzzgraph.mutants.trial import Known, Trial
from fuzzgraph.mutants.trials import run_all
from fuzzgraph.worker.messages import Channel
from fuzzgraph.worker.stages import Enter

if TYPE_CHECKING:
    from types import FunctionType

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
        tell: takes each line of the log.
    """

    def __init__(self, begin: Begin, tell: Callable[..., None]) -> None:
        self._begin = begin
        self._sought = begin.sought
        self._tell = tell
        self._target = load_target(begin.sought.setup, begin.paths)
        self._cases = draw_cases(self._target, self._sought.seed, CASES)
        self._sources: dict[str, Source] = {}
        self._live: dict[str, list[FunctionType]] = {}
        self._known = Known()
        # An engine that is broken on purpose prints much.
        self._silence = os.open(os.devnull, os.O_WRONLY)

    def run(self) -> None:
        """Trace, run the unchanged engine, then mutant after mutant."""
        named = self._named()
        ground = self._begin.ground or self._learned()
        self._cases = self._cases[: ground.cases]
        self._known = Known.of(ground)
        order = named or in_order(self._candidates(ground.executed), self._sought.seed)
        self._live = live_functions(self._sources)
        run_all(
            order,
            self._start,
            self._tell,
            jobs=self._begin.jobs,
            wanted=len(named) or self._sought.sample,
            done={one.mutant.id: one for one in self._begin.done},
        )
        self._tell(Done(sample=self._sought.sample))

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
            tried=quiet.tried,
            shown_by=quiet.shown_by,
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
        for name in names:
            if not self._is_engines(name) and name not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(name)

    def _candidates(self, lines: Mapping[str, Sequence[int]]) -> list[Candidate]:
        found: list[Candidate] = []
        for module, numbers in sorted(lines.items()):
            path = file_of(module)
            if path is None:
                continue
            source = self._sources.setdefault(path, Source.read(path))
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

    def _named(self) -> list[Candidate]:
        """The candidates that were named in another run, whether their lines are executed or not.

        Raises:
            UsageError: the engine has not all of them.
        """
        named = self._begin.named
        there: dict[str, Candidate] = {}
        # Somebody else may have written the log: no other module is looked up, since that imports
        # the packages above it.
        for module in sorted({one.module for one in named}):
            if self._is_engines(module):
                there |= {one.mutant.id: one for one in self._of_whole_module(module)}
        missing = [one for one in named if one.id not in there]
        if missing:
            raise UsageError(
                f"{len(missing)} of {len(named)} mutants are not of this engine, for example that "
                f"of {missing[0].module}:{missing[0].line}. Name a run on the same release."
            )
        return [there[one.id] for one in named]

    def _is_engines(self, module: str) -> bool:
        from fuzzgraph.ports import engine_packages

        packages = engine_packages(self._target)
        return any(f"{module}.".startswith(f"{name}.") for name in packages)

    def _of_whole_module(self, module: str) -> Iterator[Candidate]:
        path = file_of(module)
        if path is not None:
            source = self._sources.setdefault(path, Source.read(path))
            yield from candidates(module, source, range(1, len(source.lines) + 1))

    def _start(self, candidate: Candidate) -> Fork | Result | None:
        """A child at work; where the change cannot be put in place, None or, if it was asked for
        by name, the reason."""
        why = self._obstacle(candidate)
        if not why:
            return Fork(partial(_judge, self, candidate), self._silence)
        if not self._begin.named:
            return None
        said = f"cannot be put in place: it {why}"
        return Result(mutant=candidate.mutant, outcome="failed", said=said)

    def _obstacle(self, candidate: Candidate) -> str:
        try:
            pairs = changed_code(self._sources[candidate.path], candidate)
        except NotPlanted as error:
            return str(error)
        before = {one for one, _ in pairs}
        live = self._live.get(candidate.path, ())
        later = candidate.mutant.module not in sys.modules
        if later or any(function.__code__ in before for function in live):
            return ""
        return "belongs to no function that is there"

    def trial(self, enter: Enter) -> Trial:
        return Trial(self._target, self._sought.setup, self._cases, enter)

    def planted(self, candidate: Candidate) -> None:
        """Put the change in place; in a child, for the rest of its life."""
        plant(self._sources[candidate.path], candidate, self._live)

    @property
    def known(self) -> Known:
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
