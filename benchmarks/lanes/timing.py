"""Times one call over lanes and in the stock interpreter, and compares every byte."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fuzzgraph.reference.triton_ready import ready_triton  # noqa: E402

ready_triton()

from fuzzgraph.lanes import lanes  # noqa: E402


@dataclass(frozen=True)
class Measured:
    """One subject, all rounds; processor seconds."""

    name: str
    stock: tuple[float, ...]
    lanes: tuple[float, ...]
    equal: bool
    said: tuple[str, ...] = ()
    """What the report had to say: fallbacks, accesses, races."""

    @property
    def ratios(self) -> list[float]:
        """Round by round, so that both see the same machine."""
        return [one / other for one, other in zip(self.stock, self.lanes, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


Make = Callable[[], tuple[Callable[[], None], Callable[[], list[bytes]]]]
"""Fresh arguments: a call, and the bytes that it leaves."""


def measure(name: str, make: Make, rounds: int, repeat: int = 3) -> Measured:
    """Stock and lanes in turn; the lanes' time of a round is the median of `repeat` calls."""
    stock: list[float] = []
    over_lanes: list[float] = []
    said: list[str] = []
    equal = True
    warm, _ = make()
    with lanes():
        warm()
    for _ in range(rounds):
        call, left = make()
        stock.append(_seconds(call))
        expected = left()
        calls = []
        for _ in range(repeat):
            call, left = make()
            with lanes() as report:
                calls.append(_seconds(call))
            equal &= left() == expected
            said += report.lines()
        over_lanes.append(statistics.median(calls))
    return Measured(name, tuple(stock), tuple(over_lanes), equal, tuple(dict.fromkeys(said)))


def _seconds(call: Callable[[], None]) -> float:
    """Processor seconds: one thread computes, and others on the machine do not count."""
    start = time.process_time()
    call()
    return time.process_time() - start


def bytes_of(tensors: Sequence[Any]) -> list[bytes]:
    """Every byte of the tensors among these values."""
    return [
        tensor.contiguous().view(torch.uint8).numpy().tobytes()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    ]
