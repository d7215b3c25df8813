"""What stands for each operand of a path: the variable of its array, or of its handle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.divergence import TooWide
from fuzzgraph.lanes.handles import Handle, Tag, tag_of
from fuzzgraph.lanes.operands import Constant, Ref, Several
from fuzzgraph.lanes.straight_line.lines import Lines
from fuzzgraph.lanes.trace import Facts, Operation, Path, Trace


class CannotWrite(Exception):
    """A step is none of those that are written down: it is called, as in any playback."""


class Results:
    """The results of a path's steps as they are written down, one after the other."""

    def __init__(self, trace: Trace, path: Path, lines: Lines) -> None:
        self.lines = lines
        self._facts = trace.facts
        self._arrays: dict[int, str] = {}
        """Index -> the variable that holds its array."""
        self._narrow: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Index -> variable and sizes of what is broadcast to it."""
        self._handles: dict[int, str] = {}
        self._tags: dict[tuple[int, int], str] = {}
        self._made: set[int] = set()
        """Indices of results of this path."""
        self._listed: set[int] = set()
        """Those of them that are in playback's list."""
        self._same: dict[str, str] = {}
        """Expression -> the variable that holds what it gives."""
        self._fitting = 0
        """Elements of the largest block that is known to fit into a group."""
        self._last = {*path.escaping, *indices(() if path.fork is None else operands(path.fork))}
        taken = (index for step in path.steps for index in indices(operands(step)))
        self._wanted = self._last.union(taken)

    # ---- what is known

    def of(self, operand: Any) -> Facts:
        """What is known of an operand's array.

        Raises:
            CannotWrite: it is no array, or not the same in every run.
        """
        if isinstance(operand, Ref) and operand.kind is None and operand.index in self._facts:
            return self._facts[operand.index]
        if isinstance(operand, Constant) and type(operand.value) in (Handle, TensorHandle):
            data = operand.value.data
            if tag_of(operand.value) is None and isinstance(data, np.ndarray):
                return Facts(data.dtype, data.shape[1:], operand.value.dtype, 0, 0)
        raise CannotWrite

    def made(self, step: Operation) -> Facts:
        """What is known of the only result of a step."""
        results = step.results or ()
        if len(results) != 1 or results[0] not in self._facts:
            raise CannotWrite
        return self._facts[results[0]]

    # ---- what results are

    def begin(self, step: Operation) -> None:
        """Let the results of a step belong to this path."""
        self._made.update(step.results or ())

    def define(self, step: Operation, text: str) -> None:
        """Let a result be what an expression gives, without effects and the same each time."""
        for index in step.results or ():
            if index in self._wanted:
                self._define(index, text)

    def _define(self, index: int, text: str) -> None:
        known = self._same.get(text)
        if known is None:
            known = self._same[text] = f"d{index}"
            self.lines.add(f"{known} = {text}")
        self._arrays[index] = known

    def assigned(self, step: Operation) -> str:
        """The variable that a line with effects assigns the array of a result to."""
        (index,) = step.results or ()
        return self._arrays.setdefault(index, f"d{index}")

    def broadcast(self, step: Operation, operand: Any) -> None:
        """Let a result be an operand, broadcast where that shows."""
        (index,) = step.results or ()
        self._narrow[index] = self._before_broadcast(operand)

    def _before_broadcast(self, operand: Any) -> tuple[str, tuple[int, ...]]:
        """An operand as it was before it was broadcast, if it was, with its sizes."""
        if isinstance(operand, Ref) and operand.index in self._narrow:
            return self._narrow[operand.index]
        return self.array(operand), self.of(operand).sizes

    def called(self, step: Operation) -> str:
        """The targets of an assignment of the handles that a step gives; "" where it gives none."""
        names = [self._handles.setdefault(each, f"h{each}") for each in step.results or ()]
        return f"{', '.join(names)}{',' * isinstance(step.to, slice)} = " if names else ""

    # ---- variables of operands

    def array(self, operand: Any) -> str:
        """The variable of an operand's array."""
        if isinstance(operand, Constant):
            return self.lines.name(operand.value.data)
        index = operand.index
        if index not in self._arrays and index in self._narrow:
            narrow, _ = self._narrow[index]
            sizes = self.lines.name(self._facts[index].sizes)
            self._define(index, f"{self.lines.name(_spread)}({narrow}, {sizes})")
        elif index not in self._arrays:
            self.lines.add(f"d{index} = {self._handle(index)}.data")
            self._arrays[index] = f"d{index}"
        return self._arrays[index]

    def met(self, one: Any, two: Any, made: Facts) -> tuple[str, str]:
        """Two operands of an elementwise operation; not broadcast where numpy does it."""
        # A size of 1 has a stride of 0 for numpy, as in a broadcast view: the same order of the
        # result's axes.
        left, right = self._before_broadcast(one), self._before_broadcast(two)
        if np.broadcast_shapes(left[1], right[1]) == made.sizes:
            return left[0], right[0]
        return self.array(one), self.array(two)

    def operand(self, operand: Any) -> str:
        """What a method of the builder is given for an operand."""
        if isinstance(operand, Constant):
            return self.lines.name(operand.value)
        return self._handle(operand.index)

    def _handle(self, index: int) -> str:
        known = self._handles.get(index)
        if known is None:
            known = self._handles[index] = f"h{index}"
            self.lines.add(f"{known} = {self._packed(index)}")
        return known

    def _packed(self, index: int) -> str:
        """An expression for the handle of an index."""
        if index not in self._made:
            return f"values[{index}]"
        array, facts, name = self.array(Ref(index)), self._facts[index], self.lines.name
        return f"{name(Handle)}({array}, {name(facts.kind)}, {self.tag(facts)})"

    def tag(self, facts: Facts) -> str:
        """The variable of a pointer's provenance."""
        if not facts.source:
            return "None"
        known = self._tags.get((facts.source, facts.grain))
        if known is None:
            known = self._tags[facts.source, facts.grain] = f"t{facts.source}_{facts.grain}"
            view = f"values[{facts.source}].tag.view"
            self.lines.add(f"{known} = {self.lines.name(Tag)}({view}, {facts.grain})")
        return known

    def check_fits(self, sizes: Sequence[int]) -> None:
        """Check as `LaneBuilder._expand` does; a block no larger than one before fits as well."""
        elements = prod(sizes)
        if elements > self._fitting:
            self._fitting = elements
            self.lines.add(f"{self.lines.name(_check_width)}(builder, {elements})")

    # ---- playback's list

    def list_operands(self, step: Operation) -> None:
        """Put what a step takes into playback's list."""
        for index in indices(operands(step)):
            self._list(index)

    def list_last(self) -> None:
        """Put what the path's fork and other paths take into playback's list."""
        for index in sorted(self._last):
            self._list(index)

    def _list(self, index: int) -> None:
        if index in self._made and index not in self._listed:
            self._listed.add(index)
            self.lines.add(f"values[{index}] = {self._handle(index)}")


def operands(step: Operation) -> Iterator[Any]:
    """Every operand of a step."""
    yield from step.args
    yield from step.kwargs.values()


def indices(found: Iterable[Any]) -> Iterator[int]:
    """The indices of the values among operands that change between runs."""
    for operand in found:
        if isinstance(operand, Ref):
            yield operand.index
        elif isinstance(operand, Several):
            yield from indices(operand.parts)


def _check_width(builder: Any, elements: int) -> None:
    if elements * builder.lanes > builder.most and builder.lanes > 1:
        raise TooWide


def _spread(data: Any, sizes: tuple[int, ...]) -> Any:
    full = (len(data), *sizes)
    return data if data.shape == full else np.broadcast_to(data, full)
