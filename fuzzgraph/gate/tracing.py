"""In a process of its own: runs drawn cases on a tree and notes which functions are called."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import msgspec

from fuzzgraph.errors import AdapterUnavailable, FuzzGraphError, InvalidCase
from fuzzgraph.gate.changes import read_source
from fuzzgraph.gate.executed import Traced, TraceRequest
from fuzzgraph.mutants.opening import draw_cases, load_target
from fuzzgraph.run.spec import Setup
from fuzzgraph.text.escaping import one_line
from fuzzgraph.worker.messages import Channel

if TYPE_CHECKING:
    from fuzzgraph.ports import Target

_CASES = 60
_LEAST = 6
"""Cases that run whatever they take."""
_SEED = 0
_LONGEST = 300
"""Characters of the reason why a target does not run."""


def serve(descriptor: int) -> None:
    """Answer the one request on the socket.

    The engine is imported once. Each target runs in a fork, which begins where the import ended.
    """
    channel: Channel[TraceRequest] = Channel(socket.socket(fileno=descriptor), TraceRequest)
    try:
        request = channel.receive()
        why = _imported_once(request)
        for target in request.targets:
            if why or not _in_fork(request, target, channel.send):
                died = why or "the process that records it ended before it had an answer"
                channel.send(_nothing(target, died))
    except (EOFError, BrokenPipeError, ConnectionError):
        return  # the parent is gone


def _imported_once(request: TraceRequest) -> str:
    """Import the engine by the first target; why that fails for all of them, else ''."""
    try:
        load_target(_setup(request, request.targets[0]), (request.root,))
    except AdapterUnavailable:
        return ""  # of this target: another one may need other modules
    except FuzzGraphError as error:
        return one_line(str(error))[:_LONGEST]
    return ""


def _in_fork(request: TraceRequest, target: str, tell: Callable[[Traced], None]) -> bool:
    """Whether a fork has told what the target executes."""
    child = os.fork()
    if not child:
        code = 1
        try:
            tell(traced(request, target))
            code = 0
        finally:
            os._exit(code)  # whatever was raised: a fork must not go on as its parent
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def _setup(request: TraceRequest, target: str) -> Setup:
    return msgspec.structs.replace(request.setup, target=target)


def _nothing(target: str, why: str) -> Traced:
    return Traced(target=target, files=[], functions={}, cases=0, why=why)


def traced(request: TraceRequest, name: str) -> Traced:
    """What a target imports and calls."""
    folder = Path(request.root) / request.package
    calls = _Calls(str(folder))
    cases, why = 0, ""
    try:
        setup = _setup(request, name)
        cases = _run(load_target(setup, (request.root,)), setup, request.seconds, calls)
    except FuzzGraphError as error:
        why = one_line(str(error))[:_LONGEST]
    return Traced(
        target=name,
        files=_files(folder),
        functions=calls.by_file(folder),
        cases=cases,
        why=why,
    )


def _run(target: Target, setup: Setup, seconds: float, calls: _Calls) -> int:
    from fuzzgraph.execution import Execution

    execution = Execution(target, setup)
    cases = draw_cases(target, _SEED, _CASES)
    begin, count = time.process_time(), 0
    for case in cases:
        if count >= _LEAST and time.process_time() - begin > seconds:
            break
        sys.settrace(calls.called)
        try:
            execution.run_case(case)
            count += 1
        except InvalidCase:
            continue
        finally:
            sys.settrace(None)
    return count


class _Calls:
    """Notes the code of each of the engine's functions that is called."""

    def __init__(self, folder: str) -> None:
        self._below = f"{folder}/"
        self._codes: set[CodeType] = set()

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        """For `sys.settrace`; None asks for no lines of the frame."""
        self._codes.add(frame.f_code)

    def by_file(self, folder: Path) -> dict[str, list[str]]:
        """File below the folder -> names of its functions."""
        firsts: dict[str, set[int]] = {}
        for code in self._codes:
            if code.co_filename.startswith(self._below):
                name = code.co_filename.removeprefix(self._below)
                firsts.setdefault(name, set()).add(code.co_firstlineno)
        found = {}
        for name, lines in sorted(firsts.items()):
            spans = read_source(folder / name).spans
            found[name] = sorted({span[2] for span in spans if span[0] in lines})
        return found


def _files(folder: Path) -> list[str]:
    below = f"{folder}/"
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return sorted(file.removeprefix(below) for file in files if file.startswith(below))
