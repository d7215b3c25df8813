"""Learns which lines of the engine's functions run while it captures, prepares and replays."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from types import CodeType, FrameType
from typing import Any

from fuzzgraph.finding import Stage

# A replay is nobody's Python, but an engine whose step is one call prepares in it.
STAGES: tuple[Stage, ...] = ("capture", "prepare", "replay")
_FUNCTION = CO_NEWLOCALS | CO_OPTIMIZED
"""Flags of the code of a function: a module's or a class's body has not both."""


class ExecutedLines:
    """Notes lines while `on`.

    `sys.settrace` and not `sys.monitoring`, which Python has from 3.12 on only: a trace takes some
    seconds, once for each target.

    Args:
        packages: import names of the engine's packages and modules.
    """

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = tuple(packages)
        self._left_out: tuple[type, ...] = ()
        self._engines: dict[CodeType, bool] = {}
        self._imports = 0
        self.lines: dict[str, set[int]] = defaultdict(set)
        """Module -> lines."""

    def enter(self, stage: Stage, step: int) -> None:
        """Note lines in the stages of `STAGES` and in no others; fits `worker.stages.Enter`."""
        self._imports = 0
        sys.settrace(self._called if stage in STAGES else None)

    def leave_out(self, part: object) -> None:
        """Methods of a target or session are not the engine's, wherever they are defined."""
        self._left_out += (type(part),)

    def stop(self) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_name == "<module>":
            self._imports += 1
            return self._importing
        engines = self._engines.get(code)
        if engines is None:
            engines = self._engines[code] = self._is_engines(frame)
        if not engines or self._imports:
            return None
        note = self.lines[frame.f_globals["__name__"]].add

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                note(frame.f_lineno)
            return line

        return line

    def _importing(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Within a module's body: what runs until its end runs at import, whoever imports it."""
        if event == "return":
            self._imports -= 1
        return self._importing

    def _is_engines(self, frame: FrameType) -> bool:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if code.co_flags & _FUNCTION != _FUNCTION:
            return False
        if not any(f"{module}.".startswith(f"{name}.") for name in self._packages):
            return False
        if code.co_filename != getattr(sys.modules.get(module), "__file__", None):
            return False  # text made at run time, for example by dataclasses
        owner = frame.f_locals.get("self")
        return not isinstance(owner, self._left_out)
