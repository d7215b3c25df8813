"""A whole measurement: starts the host, keeps the log, goes on with one that was interrupted."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fuzzgraph import errors
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.mutants import judgements, log, report
from fuzzgraph.mutants.messages import Begin, Finished, FromHost, Refused
from fuzzgraph.mutants.operators import OPERATORS
from fuzzgraph.mutants.records import Done, Ground, Judgement, Mutant, Result, Sought
from fuzzgraph.mutants.score import Score, score
from fuzzgraph.open_target import check_names
from fuzzgraph.process.interpreter import engine_environment, module_command
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker.messages import Channel, InvalidMessage

ENGINE_LOG = "engine.log"
"""What the engine prints while it is imported and runs unchanged."""

Progress = Callable[[Ground | Result], None]


def run_mutants(
    sought: Sought,
    folder: Path,
    *,
    jobs: int = 1,
    named: Sequence[Mutant] = (),
    judged: Path | None = None,
    progress: Progress = lambda told: None,
) -> Score:
    """Measure, or finish a measurement, and write its report.

    Args:
        folder: of the log and the report; made if missing.
        jobs: mutants at a time.
        named: mutants of another run to take in place of a sample.
        judged: file of judgements; None for the one in the folder.
        progress: told what the unchanged engine gave, then each result.

    Raises:
        UsageError: a wrong name, or the folder holds another measurement.
        FuzzGraphError: the unchanged engine cannot be measured.
    """
    _check_operators(sought.operators)
    check_names(sought.setup)
    said = judged or folder / judgements.NAME
    known = judgements.read(said)  # before an hour of work
    path = folder / log.NAME
    earlier = log.read(path)
    _check_same(earlier.sought, sought, path)
    _make(folder)
    writer = log.Writer(path)
    if earlier.sought is None:
        writer.write([sought])
        earlier.add(sought)
    if not _is_whole(earlier, sought, named):
        begin = Begin(
            sought=sought,
            jobs=jobs,
            paths=_paths(sought.setup),
            ground=earlier.ground,
            done=tuple(earlier.results.values()),
            named=tuple(named),
        )
        for line in _measured(begin, folder / ENGINE_LOG):
            writer.write([line])
            earlier.add(line)
            if not isinstance(line, Done):
                progress(line)
    _check_survivors(earlier, known, said)
    judgements.add_places(said, _survivors(earlier), known)
    found = score(earlier, known)
    report.write(folder, found)
    return found


def _survivors(found: log.Log) -> list[Mutant]:
    kept = ("survived", "failed")
    return [one.mutant for one in found.results.values() if one.outcome in kept]


def _check_survivors(found: log.Log, known: dict[str, Judgement], path: Path) -> None:
    """A mutant that was found behaves differently, and a case shows it."""
    for name, said in known.items():
        result = found.results.get(name)
        excused = said.judgement in ("equivalent", "unreachable")
        if excused and result is not None and result.outcome == "found":
            raise UsageError(
                f"{path}: {name}: judgement={said.judgement!r}, but the mutant was found "
                f"({result.oracle}: {result.said[:120]}). Remove the entry."
            )


def _is_whole(found: log.Log, sought: Sought, named: Sequence[Mutant]) -> bool:
    if named:
        return all(one.id in found.results for one in named)
    return found.ground is not None and found.done >= sought.sample


def _check_operators(names: Sequence[str]) -> None:
    for name in names:
        if name not in OPERATORS:
            raise UsageError(f"operators={name!r} is unknown. Use some of: {', '.join(OPERATORS)}.")


def _check_same(earlier: Sought | None, sought: Sought, path: Path) -> None:
    """A sample may grow; everything else has to be as it was."""
    if earlier is None:
        return
    same = {"sample": sought.sample, "fuzzgraph": sought.fuzzgraph}
    for name in ("setup", "seed", "seconds", "operators", "modules"):
        was, asked = getattr(earlier, name), getattr(sought, name)
        if name not in same and was != asked:
            raise UsageError(
                f"{path} holds another measurement: {name} was {was!r} and is {asked!r}. Name "
                "another --out."
            )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out={folder}: cannot be made ({error.strerror}).") from None


def _measured(begin: Begin, said: Path) -> Iterator[Ground | Result | Done]:
    """What the host tells, until it is done."""
    setup = begin.sought.setup
    with _host(setup, said) as (channel, process):
        channel.send(begin)
        while True:
            try:
                message = channel.receive()
            except (EOFError, InvalidMessage) as error:
                code = process.wait(5)
                raise FuzzGraphError(
                    f"the process that imports target {setup.target!r} ended ({error}; exit "
                    f"code {code}); {said} has what it printed. What was measured is kept: the "
                    "same command goes on."
                ) from None
            if isinstance(message, Finished):
                return
            if isinstance(message, Refused):
                kind = getattr(errors, message.kind, FuzzGraphError)
                raise kind(message.message)
            yield message


def _paths(setup: Setup) -> tuple[str, ...]:
    from fuzzgraph.open_target import engine_paths
    from fuzzgraph.targets import open_target

    return tuple(map(str, engine_paths(setup, open_target(setup.target))))


@contextlib.contextmanager
def _host(setup: Setup, said: Path) -> Iterator[tuple[Channel[FromHost], subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with theirs, said.open("wb") as printed:
        process = subprocess.Popen(
            module_command("fuzzgraph.mutants", str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            env=engine_environment(setup.device),
        )
    channel: Channel[FromHost] = Channel(ours, FromHost)
    try:
        yield channel, process
    finally:
        channel.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
