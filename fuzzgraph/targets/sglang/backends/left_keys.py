"""Sessions of models whose step also leaves keys that only later steps read.

The harness writes a step's past before each run, so that a wrong key which a step leaves shows in
no later output: what the step has left is an output of its own.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.runner_session import RunnerSession
from fuzzgraph.world import Batch

__all__ = ["LeavesKeys", "LeftKeysSession"]


@runtime_checkable
class _KeyLeaver(Protocol):
    """What such a model tells."""

    def begin(self) -> None:
        """A step begins: what lies there now is its past."""

    def left(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What the step has left, by the names of outputs."""


class LeavesKeys(RunnerSession):
    """Before the class of a session on a graph runner: its model tells what a step leaves."""

    also_promised: tuple[str, ...]
    """Outputs beside attention, of every step but idle ones."""

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        beside = () if mode == "idle" else self.also_promised
        return (*super().promised_outputs(mode), *beside)

    def _write_past(self, batch: Batch) -> None:
        super()._write_past(batch)
        self._leaving.begin()
        self._stepped = batch

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        found = super().shown_outputs()
        return {**found, **self._leaving.left(self._stepped)} if found else {}

    @property
    def _leaving(self) -> _KeyLeaver:
        model: object = self._attention
        assert isinstance(model, _KeyLeaver)
        return model


class LeftKeysSession(LeavesKeys, BackendSession):
    """One backend and one decode runner, whose model tells what a step leaves."""
