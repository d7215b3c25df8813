"""In a process of its own: runs drawn cases on a tree and notes which functions are called."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from fuzzgraph.errors import FuzzGraphError, InvalidCase
from fuzzgraph.gate.changes import read_source
from fuzzgraph.gate.executed import Traced, TraceRequest
from fuzzgraph.worker.messages import Channel

if TYPE_CHECKING:
    from fuzzgraph.ports import Target

_CASES = 60
_SEED = 0


def serve(descriptor: int) -> None:
    """Answer the one request on the socket."""
    channel: Channel[TraceRequest] = Channel(socket.socket(fileno=descriptor), TraceRequest)
    try:
        channel.send(traced(channel.receive()))
    except (EOFError, BrokenPipeError, ConnectionError):
        return  # the parent is gone


def traced(request: TraceRequest) -> Traced:
    """What the target imports and calls."""
    from fuzzgraph.mutants.opening import load_target

    folder = Path(request.root) / request.package
    calls = _Calls(str(folder))
    cases, why = 0, ""
    try:
        target = load_target(request.setup, (request.root,))
        cases = _run(target, request, calls)
    except FuzzGraphError as error:
        why = " ".join(str(error).split())[:300]
    return Traced(files=_imported(folder), functions=calls.by_file(folder), cases=cases, why=why)


def _run(target: Target, request: TraceRequest, calls: _Calls) -> int:
    from fuzzgraph.execution import Execution
    from fuzzgraph.mutants.opening import draw_cases

    execution = Execution(target, request.setup)
    begin, count = time.process_time(), 0
    for case in draw_cases(target, _SEED, _CASES):
        if time.process_time() - begin > request.seconds:
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


def _imported(folder: Path) -> list[str]:
    below = f"{folder}/"
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return sorted(file.removeprefix(below) for file in files if file.startswith(below))
