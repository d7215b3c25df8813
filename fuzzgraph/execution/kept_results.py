"""Results that an engine promised to keep, watched from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fuzzgraph.memory import Crossings
from fuzzgraph.observation import KeptOutput


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    step: int
    name: str
    handed_out: torch.Tensor
    then: torch.Tensor
    """A copy made when the engine handed it out."""


@dataclass(slots=True)
class KeptResults:
    """What earlier steps handed out and nothing has changed yet."""

    crossings: Crossings
    entries: list[_Kept] = field(default_factory=list)

    def keep(self, step: int, results: Mapping[str, torch.Tensor]) -> None:
        """Watch what a step handed out."""
        self.entries += [_Kept(step, name, out, out.clone()) for name, out in results.items()]

    def take_changed(self) -> list[KeptOutput]:
        """What changed since it was handed out; each result is told once."""
        changed = self._changed()
        if changed:
            self.entries = [one for one in self.entries if one not in changed]
        return [KeptOutput(one.name, one.step) for one in changed]

    def _changed(self) -> list[_Kept]:
        same = self.crossings.same((one.handed_out, one.then) for one in self.entries)
        return [one for one, intact in zip(self.entries, same, strict=True) if not intact]

    def put_back(self) -> None:
        """Undo what the runs that a step is compared with wrote over the results.

        They replay graphs, and a snapshot leaves out the memory that graphs share. A step that
        replays none would otherwise be blamed for it.
        """
        for one in self._changed():
            _write(one.then, into=one.handed_out)


def _write(values: torch.Tensor, into: torch.Tensor) -> None:
    """Copy values into a view; along a dimension that repeats, only its first can be written."""
    for dimension, stride in enumerate(into.stride()):
        if stride == 0 and into.shape[dimension] > 1:
            into, values = into.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    with torch.inference_mode():  # the engine may have made it in that mode
        into.copy_(values)
