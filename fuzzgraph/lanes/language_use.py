"""Puts the language of lanes in the place of Triton's while a kernel's own code runs.

Most launches are played back from a trace and run no such code: the language is put there when it
is first needed.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from triton.runtime import interpreter

from fuzzgraph.lanes.aliases import restoring_aliases, use_aliases
from fuzzgraph.lanes.builder import lane_builder
from fuzzgraph.lanes.lane_range import lane_range, restoring_range, use_range
from fuzzgraph.lanes.language import defined, lane_language, patched
from fuzzgraph.lanes.on_demand import on_demand
from fuzzgraph.lanes.semantics import LaneSemantic


class LaneLanguage:
    """The language during one launch of a kernel; taken back when the context is left."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._stack = ExitStack()
        self._used = False

    def __enter__(self) -> LaneLanguage:
        self._stack.enter_context(on_demand(self.needed))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def needed(self) -> None:
        """Put the language there from now on, if it is not there yet."""
        if self._used:
            return
        self._used = True
        names = defined()  # before the language is replaced
        self._stack.enter_context(patched(lane_language()))
        self._stack.enter_context(restoring_aliases())
        use_aliases(self._kernel.__globals__, names)
        self._stack.enter_context(restoring_range(self._kernel))
        use_range(self._kernel.__globals__, lane_range)
        self._stack.enter_context(using_semantic(LaneSemantic, lane_builder()))


@contextmanager
def using_semantic(semantic: Any, builder: Any) -> Iterator[None]:
    """Inside, the interpreter's semantic object is of this class and uses this builder."""
    # Rewritten kernels hold that object, so its class is changed. Another object under the same
    # name would not reach them.
    found = interpreter.interpreter_semantic
    before = found.__class__, found.builder
    found.__class__, found.builder = semantic, builder
    try:
        yield
    finally:
        found.__class__, found.builder = before
