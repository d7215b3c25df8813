"""Runs every launch of a row in Triton's own interpreter, then over lanes on the same memory.

The memory is every storage that an argument of the launch lies in, and what the row names beside;
it is put back in between, and all of its bytes are compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzgraph.lanes.hook import ExecutorHook, stock_launch
from fuzzgraph.lanes.switch import Lanes
from released.row import beside

RUNS = 3
"""Over lanes: the first one is Python's and is recorded, later ones play the record back."""
QUICK, MANY = 0.02, 10
"""Seconds of a run below which there are so many, so that straight code is compiled too."""
_LONGEST = 200


@dataclass
class Launch:
    """What was seen of one launch."""

    kernel: str
    module: str
    stock: str = ""
    """What Triton's own interpreter raised; "" if it ran."""
    lanes: str = ""
    """The same over lanes."""
    equal: bool | None = None
    """Whether each run over lanes left its bytes; None where one of both raised."""
    fallbacks: list[str] = field(default_factory=list)
    accesses: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)
    unchecked: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    """Stock, and the last run over lanes; of the processor."""


class Judge:
    """Takes the place of the interpreter's launch."""

    def __init__(self) -> None:
        self.found: list[Launch] = []
        self._probing = False
        self._cannot_tune: dict[Any, str] = {}

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        if self._probing:
            return stock_launch()(executor, *args, **kwargs)
        kernel = executor.fn
        seen = Launch(kernel.__name__, kernel.__module__)
        self.found.append(seen)
        memory = Memory([*args, *kwargs.values(), *beside])
        seen.stock = self._cannot_tune.get(kernel, "")
        start = time.process_time()
        if not seen.stock:
            try:
                with torch._C.DisableTorchFunction():
                    stock_launch()(executor, *args, **kwargs)
            except Exception as error:
                seen.stock = told(error)
        expected, spent = memory.now(), time.process_time() - start
        equal, runs, taken = True, RUNS, 0.0
        done = 0
        while done < runs:
            memory.put_back()
            over_lanes = Lanes(vouched=beside)
            start = time.process_time()
            try:
                over_lanes(executor, *args, **kwargs)
            except Exception as error:
                seen.lanes = told(error)
                break
            finally:
                _note(over_lanes, seen)
            taken = time.process_time() - start
            equal &= memory.now() == expected
            done += 1
            if taken < QUICK:
                runs = MANY
        seen.equal = None if seen.stock or seen.lanes else equal
        seen.seconds = (spent, taken)
        if seen.lanes:
            raise _Ended(seen.lanes)
        return None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Judge every launch inside."""
        from triton.runtime.autotuner import Autotuner

        before = Autotuner.run
        judge = self

        def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            # By Triton's own benchmark first: whether it can choose a config here.
            if not judge._probing and tuner.base_fn not in judge._cannot_tune:
                judge._cannot_tune[tuner.base_fn] = judge._probe(tuner, before, args, kwargs)
            return before(tuner, *args, **kwargs)

        hook = ExecutorHook()
        stock_bench = Autotuner._bench
        hook.set(self)
        first_config = Autotuner._bench
        self._benches = (stock_bench, first_config)
        Autotuner.run = run
        try:
            yield
        finally:
            Autotuner.run = before
            hook.remove()

    def _probe(self, tuner: Any, run: Any, args: Any, kwargs: Any) -> str:
        from triton.runtime.autotuner import Autotuner

        if len(tuner.configs) < 2:
            return ""
        memory = Memory([*args, *kwargs.values(), *beside])
        self._probing = True
        Autotuner._bench = self._benches[0]
        try:
            run(tuner, *args, **kwargs)
        except Exception as error:
            said = told(error)
            return said if "active drivers" in said else ""  # all else shows at the launch itself
        finally:
            Autotuner._bench = self._benches[1]
            self._probing = False
            memory.put_back()
            tuner.cache.clear()
        return ""


class _Ended(Exception):
    """A launch raised over lanes, so the row cannot go on."""


class Memory:
    """All storages that these values lie in, as they were."""

    def __init__(self, values: Iterable[Any]) -> None:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage()
            for tensor in _tensors(values)
            if tensor.untyped_storage().nbytes()
        }
        self._bytes = [
            torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            for storage in storages.values()
        ]
        self._before = [each.clone() for each in self._bytes]

    def now(self) -> list[bytes]:
        return [each.numpy().tobytes() for each in self._bytes]

    def put_back(self) -> None:
        for each, before in zip(self._bytes, self._before, strict=True):
            each.copy_(before)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "base"):  # a tensor descriptor, or a tensor seen as another type
            yield from _tensors([value.base])


def _note(over_lanes: Lanes, seen: Launch) -> None:
    report = over_lanes.report
    seen.unchecked = max(seen.unchecked, report.unchecked)
    for kept, new in (
        (seen.fallbacks, [reason for _, reason in report.fallbacks]),
        (seen.accesses, map(str, report.accesses)),
        (seen.races, map(str, report.races)),
    ):
        kept.extend(each for each in new if each not in kept)


def told(error: BaseException) -> str:
    """An exception in a line."""
    while error.__cause__ is not None and type(error).__name__ == "InterpreterError":
        error = error.__cause__
    said = re.sub(r"0x[0-9a-f]+", "...", " ".join(str(error).split()))
    return f"{type(error).__name__}: {said}"[:_LONGEST]
