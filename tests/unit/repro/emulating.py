"""Runs a script for a GPU on a CPU: names of `torch.cuda` are answered by the emulated device.

What is captured is taken down beneath the script, nothing of it has run when the capture ends, and
a replay runs it without any Python of the script's. Kernels are torch's own on a CPU.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fuzzgraph.graphs.emulated_capture import Capture, EmulatedGraph
from fuzzgraph.memory.mode_stack import beneath_all_modes


class EmulatedCuda:
    """The emulated device of one script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: list[EmulatedGraph] = []
        self.replays = 0
        self._script: dict[str, Any] = {}
        for name, value in {
            "is_available": lambda: True,
            "CUDAGraph": self._graph,
            "graph": self._capturing,
            "synchronize": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch, "set_default_device", self._chosen)
        self.default = ""

    def _chosen(self, device: str) -> None:
        self.default = device

    def _graph(self) -> EmulatedGraph:
        device = self

        class Graph(EmulatedGraph):
            def replay(self) -> None:
                device.replays += 1
                super().replay()

        self.graphs.append(Graph())
        return self.graphs[-1]

    @contextlib.contextmanager
    def _capturing(self, graph: EmulatedGraph, *, capture_error_mode: str) -> Iterator[None]:
        capture = Capture(graph, None)
        memory = self._script["MEMORY"]
        before = memory.clone()
        try:
            with beneath_all_modes(capture):
                yield
        finally:
            capture.end()
            memory.copy_(before)

    def run(self, text: str) -> tuple[object, str]:
        """Exit code of a script, and what it printed."""
        self._script.update(__name__="__main__")
        printed = io.StringIO()
        code = compile(text, "repro.py", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed), torch.no_grad():
            try:
                exec(code, self._script)
            except SystemExit as end:
                return end.code, printed.getvalue()
        raise AssertionError("the script did not exit")
