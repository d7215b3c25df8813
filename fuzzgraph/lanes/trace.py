"""What runs of a kernel executed, and its playback without the kernel's Python.

Nine tenths of an interpreted run are Triton's own Python: types, broadcasting rules, objects for
tensors. These depend on the kernel, the types of its arguments and its constants alone. A trace
keeps what is left: the operations of the builder, in order. Playing it back calls the very same
operations on the new arguments, so that every access is checked, logged and journaled as ever.

Where Python sees a value (a branch, the bounds of a loop), the trace has a fork: playback goes on
along the path of the value seen now, and ends if no run has taken that path. The caller then takes
everything back and runs the kernel, which is recorded along the same trace.

`recording` makes traces, and tells why nothing else reaches Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fuzzgraph.lanes.globals_read import GlobalsRead, is_device_function
from fuzzgraph.lanes.integers import LaneInt

# Playbacks that ended at an unknown path, beyond which a kernel that mostly does so runs as it is.
_MOST_ENDS = 64
# Playbacks of a path after which it is worth compiling, which takes as long as a few of them.
_OFTEN = 8


class Operation:
    """One call of a trace.

    Attributes:
        results: indices of the results; None while the operation has only raised.
        paths: outcome -> what follows; None where there is nothing to choose.
    """

    __slots__ = ("args", "call", "function", "getter", "kwargs", "paths", "results", "to")

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.call: Any = function
        self.getter: Any = None
        self.results: tuple[int, ...] | None = None
        self.to: Any = 0
        """Where the result goes: an index, or a slice of several."""
        self.paths: dict[Any, Path] | None = None


class Path:
    """Operations without a fork between them, then a fork, or the end of the kernel."""

    __slots__ = ("complete", "escaping", "fork", "plays", "run", "steps")

    def __init__(self) -> None:
        self.steps: list[Operation] = []
        self.fork: Operation | None = None
        self.complete = False
        """Whether the kernel ended here."""
        self.escaping: set[int] = set()
        """Indices of results of this path that operations of other paths take."""
        self.plays = 0
        self.run: Any = None
        """All steps at once, as `straight_line` makes it; None where they are called one by one."""


class Facts(NamedTuple):
    """What every run has in common of the array behind an index."""

    numpy: Any
    """Its dtype."""
    sizes: tuple[int, ...]
    """Its shape without the lanes."""
    kind: Any
    """The type of its elements in Triton."""
    source: int
    """The input that a pointer was derived from, 0 where there is none."""
    grain: int
    """The grain of its provenance."""


Compile = Callable[["Trace", Path], Any]


class Trace:
    """What runs of one kernel, with arguments of one set of types and constants, executed.

    Attributes:
        off: why it is neither recorded nor played back; "" if it is.
    """

    def __init__(self, kernel: Any, inputs: int) -> None:
        self.off = "" if is_device_function(kernel) else "a kernel with a closure"
        self.root = Path()
        self.values: list[Any] = [None] * (1 + inputs)
        """What playback starts with: a place for results that are none, those of the inputs, then
        constants and places for results."""
        self.facts: dict[int, Facts] = {}
        """By index; what is missing is no array, or not the same in every run."""
        self.odd: set[int] = set()
        """Indices whose facts differed between two runs."""
        self.owners: dict[int, Path] = {}
        """Index of a result -> the path that makes it."""
        self._globals = GlobalsRead()
        self._globals.add(kernel)
        self._played = self._ended = self.playbacks_raised = 0

    @property
    def usable(self) -> bool:
        """Whether there is something to play back, and the kernel's globals are what they were."""
        return not self.off and bool(self.root.steps or self.root.fork) and self.globals_hold

    @property
    def globals_hold(self) -> bool:
        """Whether every global that the kernel reads is what it was."""
        return self._globals.hold()

    def play(self, inputs: Sequence[Any], builder: Any, compiled: Compile) -> bool:
        """Carry out the run; False if it took a path that is not known, half done.

        Args:
            inputs: handles of the arguments.
            builder: the builder of this process, with the group that runs.
            compiled: makes a path that was played often into one function.
        """
        values = self.values.copy()
        values[1 : 1 + len(inputs)] = inputs
        path = self.root
        while True:
            if path.run is not None:
                path.run(values, builder)
            else:
                path.plays += 1
                for step in path.steps:
                    values[step.to] = step.call(*step.getter(values))
                if path.plays >= _OFTEN and (path.complete or path.fork is not None):
                    path.run = compiled(self, path)
            fork = path.fork
            if fork is None:
                return self._count(path.complete)
            result = values[fork.to] = fork.call(*fork.getter(values))
            following = None if fork.paths is None else fork.paths.get(outcome(result))
            if following is None:
                return self._count(False)
            path = following

    def _count(self, complete: bool) -> bool:
        self._played += 1
        self._ended += not complete
        if self._ended > _MOST_ENDS and 2 * self._ended > self._played:
            self.off = "too many paths"
        return complete

    def raised(self) -> None:
        """Note that playback raised: a kernel that does so again and again runs as it is."""
        self.playbacks_raised += 1
        if self.playbacks_raised > _MOST_ENDS:
            self.off = "playback raises"

    def enter(self, function: Any) -> str:
        """Note that a device function belongs to the kernel; why it cannot, "" if it can."""
        if not is_device_function(function):
            return "a device function with a closure"
        return self._globals.add(function)

    @property
    def unsure(self) -> str:
        """Why the kernel's globals cannot be relied on; "" if they can."""
        return self._globals.refused

    def learn(self, index: int, facts: Facts | None) -> None:
        """Note what is behind an index in a run that is recorded."""
        if index in self.odd:
            return
        if facts is None or self.facts.setdefault(index, facts) != facts:
            self.odd.add(index)
            self.facts.pop(index, None)
            # What was compiled relies on it, and few kernels come here.
            for path in {id(each): each for each in self.owners.values()}.values():
                path.run = None

    def place(self, value: Any = None) -> int:
        """A new index, with a constant or for a result."""
        self.values.append(value)
        return len(self.values) - 1


def outcome(result: Any) -> Any:
    """What a fork chooses its path by."""
    kind = result.__class__
    if kind is bool:
        return result
    if kind is int:
        return "int", result
    if kind is range:
        # Equal as sequences: a kernel can only iterate over it. Loops over blocks of keys mostly
        # have few rounds and as many bounds as there are lengths.
        return result
    if kind is float:
        return "float", result.hex()
    if kind is str or result is NotImplemented:
        return result
    # Which integer each lane has is no matter of Python's.
    return LaneInt if issubclass(kind, LaneInt) else kind
