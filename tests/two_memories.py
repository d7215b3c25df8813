"""Tells host from device memory on a CPU, and refuses to mix them as CUDA does.

With `--device cuda` the harness' own tensors meet the engine's. A mask made without `device=` is
then on the host and the tensor beside it on the device, which raises there and never shows on a
CPU. Inside `TwoMemories` every tensor has a side: that of its guarded region, that of the device it
was made on, or that of what it was made of. Tensors of unknown side are never refused.

Not checked: bodies of kernel models, which never run on a device, and what compiled code does.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.memory import interception, side_requests, sides, transfers
from fuzzgraph.memory.operator_facts import tensors_in
from fuzzgraph.memory.side_requests import SESSION_CPU, Side, side_named
from tests.cuda_rules import refused, side_of_result

_ATTRIBUTE = sides._ATTRIBUTE
_HOST = torch.device("cpu")
"""What `.device` of a host tensor is; told from the session's device by identity."""
_PACKAGE = str(Path(sides.__file__).parents[1])

# What stands between a line of code and torch: it passes operations on and makes none.
_PASSED_BY = (
    "memory/interception",
    "memory/resizing",
    "memory/side_requests",
    "memory/transfers",
    "relays",
    "targets/offline/cuda_on_cpu",
)
_REPLAYS = ("graphs/",)
_GUARD = f"{_PACKAGE}/memory/"


@dataclass(frozen=True)
class Mixing:
    """One place that a device would refuse."""

    line: str
    """File, line and function."""
    ours: bool
    """Whether FuzzGraph's own code stands there."""
    what: str


class TwoMemories:
    """Inside `watching`, host and device are two memories.

    Args:
        raises: whether a mixing by FuzzGraph's own code raises, as on a device; it is kept in
            `mixings` either way.
    """

    def __init__(self, *, raises: bool = False) -> None:
        self.mixings: dict[Mixing, int] = {}
        self._raises = raises
        self._calls = _Calls(self)
        self._operations = _Operations(self)
        self._arenas: weakref.WeakValueDictionary[int, sides.Sides] = weakref.WeakValueDictionary()

    @contextmanager
    def watching(self) -> Iterator[TwoMemories]:
        """Tell the two apart; sessions must be opened inside too."""
        conversions = transfers.Transfers(self.side_of, self.put)
        with ExitStack() as stack:
            for where, name, made in self._replaced():
                stack.enter_context(patch.object(where, name, made))
            stack.enter_context(conversions.installed())
            stack.enter_context(self._operations)
            stack.enter_context(self._calls)
            yield self

    def _replaced(self) -> Iterator[tuple[Any, str, Any]]:
        for module in (transfers, side_requests):
            yield module, "side_named", _side_named
        yield sides.Sides, "__init__", self._noted(sides.Sides.__init__)
        yield interception.Interception, "_adopt", self._kept(interception.Interception._adopt)
        yield transfers.Transfers, "numpy", self._read(transfers.Transfers.numpy)

    def _noted(self, init: Callable[..., None]) -> Callable[..., None]:
        def note(made: sides.Sides, *args: Any, **kwargs: Any) -> None:
            init(made, *args, **kwargs)
            self._arenas[made._storage] = made

        return note

    def _kept(self, adopt: Callable[..., Any]) -> Callable[..., Any]:
        """A result that moves to guarded memory keeps its side."""

        def keep(guard: Any, func: Any, facts: Any, out: torch.Tensor, *given: Any) -> Any:
            side, within = self.side_of(out), self.call.given
            with self._calls.past():
                found, fresh = adopt(guard, func, facts, out, *given)
            # What a call on tensors allocates by the way is not the host's by default.
            if fresh and (side or within):
                self.put(found, side)
            return found, fresh

        return keep

    def _read(self, numpy: Callable[..., Any]) -> Callable[..., Any]:
        def read(conversions: Any, x: torch.Tensor, *given: Any) -> Any:
            if self.side_of(x) == "device":
                self.refuse("numpy() of device memory")
            return transfers._NUMPY(x, *given[0], **given[1])

        return read

    def side_of(self, tensor: torch.Tensor) -> Side:
        """The side of a tensor; "" where that is unknown."""
        storage = tensor.untyped_storage()
        arena = self._arenas.get(storage._cdata)
        region = None if arena is None else arena._layout.region_of(tensor)
        # What reaches further is the arena itself, or a large part of it.
        if region is not None and _reach(tensor) <= region.nbytes:
            return region.side
        known: Side = getattr(storage, _ATTRIBUTE, "")
        return known

    def put(self, tensor: torch.Tensor, side: Side, *, pinned: bool = False) -> None:
        """Note the side of a tensor."""
        storage = tensor.untyped_storage()
        arena = self._arenas.get(storage._cdata)
        if arena is None:
            setattr(storage, _ATTRIBUTE, side)
        else:
            arena.put(tensor, side, pinned=pinned)

    @property
    def call(self) -> _Call:
        """The innermost call of torch; says nothing where calls are not seen."""
        return _UNSEEN if torch._C._is_torch_function_all_disabled() else self._calls.current

    def is_guarded(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in guarded memory."""
        return tensor.untyped_storage()._cdata in self._arenas

    def refuse(self, what: str, *, guarded: bool = False) -> None:
        """Keep what a device refuses here.

        Args:
            guarded: whether all that is on the host lies in guarded memory. On a device none does,
                and guarded memory reads all of its own alike.
        """
        line, ours = _where()
        if not line or (guarded and line.startswith(_GUARD)):
            return
        found = Mixing(line, ours, what)
        self.mixings[found] = self.mixings.get(found, 0) + 1
        if self._raises and ours:
            raise RuntimeError(f"Expected all tensors to be on the same device, but {what}")

    @property
    def ours(self) -> list[Mixing]:
        """Mixings by FuzzGraph's own code."""
        return [found for found in self.mixings if found.ours]


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first to behind its last; one that is expanded reaches no further."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.itemsize if tensor.numel() else 0


def _side_named(device: object) -> Side:
    return "host" if device is _HOST else side_named(device)


@dataclass(frozen=True)
class _Call:
    """What a call of torch says of its result's side."""

    named: Side | None = None
    """Of the device that it names; None where it names none."""
    given: tuple[Side, ...] = ()
    """Of its tensors."""


_UNSEEN = _Call(named="")


class _Calls(TorchFunctionMode):
    """Notes on what device each call of torch wants its result, and says on which a tensor is."""

    def __init__(self, memories: TwoMemories) -> None:
        super().__init__()
        self._memories = memories
        self.current = _Call()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return self._device(func, *args)
        before = self.current
        self.current = _Call(_wanted(kwargs), self._given(args, kwargs))
        try:
            return func(*args, **kwargs)
        finally:
            self.current = before

    @contextmanager
    def past(self) -> Iterator[None]:
        """Inside, operations are none of the present call's."""
        before, self.current = self.current, _UNSEEN
        try:
            yield
        finally:
            self.current = before

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Side, ...]:
        return tuple(map(self._memories.side_of, tensors_in([*args, *kwargs.values()])))

    def _device(self, func: Any, tensor: torch.Tensor, *given: Any) -> torch.device:
        found: torch.device = func(tensor, *given)
        if found.type != "cpu":
            return found
        known = {"host": _HOST, "device": SESSION_CPU}
        return known.get(self._memories.side_of(tensor), found)


def _wanted(kwargs: Mapping[str, Any]) -> Side | None:
    if kwargs.get("pin_memory"):
        return "host"
    device = kwargs.get("device")
    return None if device is None else _side_named(device)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations on both memories, and notes where results are."""

    def __init__(self, memories: TwoMemories) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memories = memories

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in([*args, *kwargs.values()])
        held = [self._memories.side_of(tensor) for tensor in given]
        name = func._schema.name
        if "host" in held and "device" in held and refused(name, given, held):
            shown = zip(given, held, strict=True)
            told = ", ".join(f"{list(tensor.shape)} {side or '?'}" for tensor, side in shown)
            mirrors = (tensor for tensor, side in zip(given, held, strict=True) if side == "host")
            guarded = all(map(self._memories.is_guarded, mirrors))
            self._memories.refuse(f"{name}({told})", guarded=guarded)
        out = func(*args, **kwargs)
        call = self._memories.call
        side = side_of_result(name, call.named, call.given, held)
        mine = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in tensors_in(out if isinstance(out, (tuple, list)) else [out]):
            fresh = tensor.untyped_storage()._cdata not in mine
            if fresh or (side and name == "aten::lift_fresh"):
                self._memories.put(tensor, side)
        return out


def _where() -> tuple[str, bool]:
    """The innermost line that makes operations, and whether it is FuzzGraph's; "" in a replay."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        inside = path.removeprefix(_PACKAGE).lstrip("/") if path.startswith(_PACKAGE) else None
        if inside is not None and inside.startswith(_REPLAYS):
            return "", False
        passes = inside is not None and inside.startswith(_PASSED_BY)
        if not (passes or "/torch/" in path or path == __file__ or path.startswith("<")):
            return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}", inside is not None
        frame = frame.f_back
    return "", False
