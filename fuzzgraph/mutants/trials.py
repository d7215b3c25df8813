"""Runs mutants in forks, several at a time, until enough of them have started."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator, Mapping

from fuzzgraph.mutants.drawing import Candidate
from fuzzgraph.mutants.fork import Ended, Fork
from fuzzgraph.mutants.messages import Judged, Refused
from fuzzgraph.mutants.records import Mutant, Result


def run_all(
    order: Iterable[Candidate],
    start: Callable[[Candidate], Fork | Result | None],
    tell: Callable[[Result], None],
    *,
    jobs: int,
    wanted: int,
    done: Mapping[str, Result],
) -> None:
    """Run candidates in order, as many as are wanted that start.

    Args:
        start: puts one to work; a result where that needs no work, None for one that is none.
        tell: takes each new result.
        jobs: children at a time. No more are begun than may still be wanted, so that the mutants
            that are run are the same for any number of jobs.
        done: results of an interrupted run, by id.
    """
    running: dict[Fork, Mutant] = {}
    waiting = iter(order)
    started = 0
    try:
        while True:
            while len(running) < jobs and started + len(running) < wanted:
                candidate = next(waiting, None)
                if candidate is None:
                    break
                begun = done.get(candidate.mutant.id) or start(candidate)
                if isinstance(begun, Fork):
                    running[begun] = candidate.mutant
                elif begun is not None:
                    started += begun.outcome != "does_not_start"
                    if candidate.mutant.id not in done:
                        tell(begun)
            if not running:
                return
            for result in _finished(running):
                started += result.outcome != "does_not_start"
                tell(result)
    finally:
        for fork in running:
            fork.stop()


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
    if not ended.started:
        return Result(mutant=mutant, outcome="does_not_start", said=said)
    return Result(
        mutant=mutant,
        outcome="found",
        oracle="survival",
        clause="survives",
        buffer=f"process: {ended.kind} in {ended.stage}",
        said=said,
    )
