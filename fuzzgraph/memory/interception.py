"""Turns every fresh tensor of an engine into a view of the arena, between red zones.

One dispatch mode serves the engine's own buffers, intermediates of captured graphs and scratch; the
recorder listens to it, because a mode of its own would add to the cost of every operation. A tensor
is fresh if its storage is neither the arena nor that of an argument; no list of operators decides.

Limits: memory that was allocated outside `intercept` is not guarded; `torch.frombuffer` dispatches
nothing and goes unseen; memory of another device than the arena's is left alone. A NumPy array
handed to `torch.from_numpy` is copied, so later writes through the array do not reach the tensor
(`adopt_numpy=False` keeps the two shared, and unguarded).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.kernel_models.launch import (
    ModelKernel,
    belongs_to_the_step,
    routed,
    run_kernel,
    sides_told,
)
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.report import LaunchReport
from fuzzgraph.lanes import Lanes
from fuzzgraph.memory.arena import Arena, storage_key
from fuzzgraph.memory.launch_record import Launched, taken_down, without_results
from fuzzgraph.memory.launches import Launch, LaunchHook
from fuzzgraph.memory.listener import Listener, Tensors
from fuzzgraph.memory.mode_stack import past_modes
from fuzzgraph.memory.operator_facts import Facts, facts_of, inside_of, tensors_in
from fuzzgraph.memory.placement import Layout, copy_whole
from fuzzgraph.memory.regions import Segment
from fuzzgraph.memory.resizing import Resizing
from fuzzgraph.memory.sides import Sides
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.memory.transfers import by_torch
from fuzzgraph.memory.unguarded import asked_of_allocator
from fuzzgraph.relays import relay

# Facts of every operator met in this process and how to take it apart, by kind of device; they
# never change.
_FACTS: dict[str, dict[Any, tuple[Facts, Any]]] = {}


class Interception(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves what an engine allocates into an arena, and tells a listener what the engine does.

    Args:
        arena: where everything goes.
        layout: decides what lies where.
        adopt_numpy: whether `torch.from_numpy` yields a guarded copy.
        lanes: runs interpreted kernels, each access held against the payload of its region.
    """

    def __init__(self, arena: Arena, layout: Layout, *, adopt_numpy: bool, lanes: Lanes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = arena.device
        self._backend: str = torch._C._dispatch_key_for_device(arena.device.type)
        self._facts = _FACTS.setdefault(self._backend, {})
        self._layout = layout
        self._resizing = Resizing(layout)
        self._adopt_numpy = adopt_numpy
        self._storage = arena.storage_key
        self._segment: Segment = "engine"
        self._listener: Listener | None = None
        self._depth = 0
        self.asked = asked_of_allocator(self.device)
        self.seen_bytes = 0
        """What an allocator that counts was asked for by operations that were seen here, and by the
        harness."""
        self._touched: set[int] = set()
        self._hook = LaunchHook()
        self.lanes = lanes
        self.sides = Sides(arena, layout)
        """Which of the session's memory is the host's."""
        lanes.is_out_of_reach = self.sides.is_out_of_reach
        self._launched: list[Launched] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler and slows each call."""
        return False

    @contextmanager
    def intercept(
        self,
        segment: Segment,
        listener: Listener | None = None,
        *,
        poisons: bool = True,
        frees: bool = True,
    ) -> Iterator[None]:
        """Guard every allocation made inside; may be nested, one mode stays active.

        Args:
            poisons: whether fresh memory of "graph" gets its poison at once. A device would capture
                that, and each replay would then undo what was put there before it.
            frees: whether entering "scratch" frees what the last scratch run allocated. What an
                engine makes at its first run it may keep.
        """
        outer = self._segment, self._listener, self._layout.poisons
        self._segment, self._listener, self._layout.poisons = segment, listener, poisons
        # A scratch run inside another one goes on behind it, or they would share memory.
        if segment == "scratch" and frees and (self._depth == 0 or outer[0] != "scratch"):
            self._layout.restart_scratch()
        if self._depth == 0:
            self._hook.install(self._launch, self.lanes)
            # No kernel can be launched before Triton is imported, and importing it here would slow
            # down targets that do without it.
            if "triton" in sys.modules:
                self.lanes.watch.set()
            self.__enter__()  # type: ignore[no-untyped-call]
        self._depth += 1
        try:
            # Buffers are made while a session opens and captures; that is at depth 1 in "engine".
            watched = self._depth == 1 and segment == "engine"
            with (
                self.sides.separate(watched=watched),
                sides_told(self.sides.of),
                routed(self._launch_model),
            ):
                yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                self.lanes.watch.remove()
                self._hook.remove()
            self._segment, self._listener, self._layout.poisons = outer

    @contextmanager
    def over_lanes(self) -> Iterator[None]:
        """Run all interpreted launches and models inside, with host and device apart.

        For steps after capture, whose allocations are not guarded.
        """
        with (
            self.lanes.installed(),
            self.sides.separate(),
            sides_told(self.sides.of),
            routed(self._run_model),
        ):
            yield

    @contextmanager
    def taking_down(self) -> Iterator[list[Launched]]:
        """Inside, every launch of a kernel's model is taken down in the list that is yielded."""
        outer, self._launched = self._launched, []
        try:
            yield self._launched
        finally:
            self._launched = outer

    @property
    def intercepting(self) -> bool:
        """Whether the guard is active right now."""
        return self._depth > 0

    @contextmanager
    def unguarded(self) -> Iterator[None]:
        """Run the harness's own operations inside `intercept` without guarding them."""
        before = self.asked() if self.asked is not None else 0
        with past_modes(), torch._C.DisableTorchFunction():
            yield
        if self.asked is not None:
            self.seen_bytes += self.asked() - before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        known = self._facts.get(func)
        if known is None:
            known = self._facts[func] = facts_of(func), inside_of(func, self._backend)
        facts, inside = known
        if inside is not None:
            # Take it apart with the mode on, because each of its parts may allocate, or be
            # forbidden in a capture.
            with self:
                return func._op_dk(inside, *args, **(kwargs or {}))
        if self._listener is not None:
            return self._reported(func, facts, args, kwargs or {})
        return self._run(func, facts, args, kwargs)[0]

    @relay
    def _run(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, Tensors]:
        """Result of an operation, and those tensors that it allocated."""
        # Runs for every operation of an engine: plain class checks and no helper calls.
        fresh: Tensors = ()
        if facts.may_resize:
            fresh = self._resizing.make_room(func, facts, args, kwargs or {}, self._segment)
        out = facts.call(*args, **kwargs) if kwargs else facts.call(*args)
        if out.__class__ is tuple or out.__class__ is list:
            out, fresh = self._adopt_each(func, facts, out, args, kwargs)
        elif isinstance(out, torch.Tensor) and out.untyped_storage()._cdata != self._storage:
            out, fresh = self._adopt(func, facts, out, args, kwargs)
        if facts.writes:
            self._mark_written(facts, args, kwargs)
        return out, fresh

    @relay
    def _reported(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        listener = self._listener
        assert listener is not None
        listener.before_operation(func, facts, args, kwargs)
        out, fresh = self._run(func, facts, args, kwargs)
        listener.on_operation(func, facts, args, kwargs, out, fresh)
        return out

    def _adopt(
        self, func: Any, facts: Facts, out: torch.Tensor, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[torch.Tensor, Tensors]:
        """The result moved into the arena, if its storage is new."""
        storage = out.untyped_storage()
        if facts.is_lift:
            # A storage that cannot be resized is a NumPy array's own memory.
            if not self._adopt_numpy and not storage.resizable():
                return out, ()
        elif _holds(storage._cdata, args) or (kwargs and _holds(storage._cdata, kwargs.values())):
            return out, ()  # a view of an argument, or the argument itself
        # Subclasses and sparse layouts cannot be rebuilt as strided views of the arena.
        if (
            out.__class__ is not torch.Tensor
            or out.device != self.device
            or out.layout is not torch.strided
        ):
            return out, ()
        if not facts.is_lift and self._layout.holds(out):
            return out, ()  # a weak reference of an engine's: no storage of the arena, its memory
        if self.asked is not None:
            self.seen_bytes += storage.nbytes()
        slot = self._layout.slot(func, out, self._segment, born_empty=facts.is_empty)
        if self._segment != "scratch":
            slot.region.side = self.sides.of_fresh(self._segment, facts, args, kwargs)
        view = slot.base.as_strided(out.shape, out.stride(), slot.element)
        if self._segment == "engine":
            slot.region.given = weakref.ref(view)
        if not facts.is_empty:
            copy_whole(view, out)
        return view, (view,)

    def _adopt_each(
        self, func: Any, facts: Facts, out: Any, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, Tensors]:
        items = list(out)
        fresh: list[torch.Tensor] = []
        for index, item in enumerate(items):
            if isinstance(item, torch.Tensor) and storage_key(item) != self._storage:
                items[index], new = self._adopt(func, facts, item, args, kwargs)
                fresh.extend(new)
        return (out.__class__(items) if fresh else out), tuple(fresh)

    def _mark_written(self, facts: Facts, args: tuple[Any, ...], kwargs: Any) -> None:
        for which in facts.writes:
            if which.__class__ is int:
                target = args[which] if which < len(args) else None
            else:
                target = kwargs.get(which) if kwargs else None
            if isinstance(target, torch.Tensor):
                self._touch(target)
            else:
                for tensor in target or ():
                    self._touch(tensor)

    def _touch(self, tensor: torch.Tensor) -> None:
        address = tensor.data_ptr()
        if address in self._touched:
            return  # its region is marked already, and engine regions never move
        region = self._layout.region_of(tensor)
        if region is not None:
            region.touched = True
            self._touched.add(address)

    @relay
    def _launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the launch of a kernel; its own tensor operations are not the engine's."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            result = launch(executor, *args, **kwargs)
            for tensor in tensors_in([*args, *kwargs.values()]):
                self._touch(tensor)
        if self._listener is not None:
            self._listener.on_launch(launch, executor, args, kwargs)
        return result

    @relay
    def _launch_model(self, kernel: ModelKernel, **arguments: Any) -> None:
        """Run the model of a kernel; it counts as the launch of one."""
        # A replay knows the engine's line no more, so it is kept.
        run = partial(self._run_model, called_at=innermost_source())
        self._launch(run, kernel, (), arguments)

    @relay
    def _run_model(self, kernel: ModelKernel, *, called_at: str = "", **arguments: Any) -> None:
        line = called_at or innermost_source()
        lanes = self.lanes
        report = LaunchReport(kernel.name, kernel.source, lanes.report, lanes.regions, line)
        memory = KernelMemory(report)
        launched = self._launched if belongs_to_the_step() else None
        if launched is not None:
            taken = taken_down(kernel, len(launched), line, arguments, self.sides.of)
            launched.append(Launched(taken, memory))
        # Past the modes, as Triton's kernels run: a model calls torch a hundred times.
        with by_torch(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            run_kernel(memory, kernel, **arguments)
        if launched is not None:
            without_results(taken, arguments)


def _holds(key: int, values: Any) -> bool:
    """Whether a tensor among the arguments has this storage."""
    for value in values:
        if value.__class__ is int:
            continue
        if isinstance(value, torch.Tensor):
            if value.untyped_storage()._cdata == key:
                return True
        elif isinstance(value, (list, tuple)) and _holds(key, value):
            return True
    return False
