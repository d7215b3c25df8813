"""What is handed over: by a runner to its backend, by a backend to its kernels; as it was seen.

Nothing here is tidied or judged. `rules.handover` says what must hold, `oracles.handover` judges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "DEEPEST",
    "Attended",
    "Excuse",
    "Handover",
    "HandoverRule",
    "Held",
    "Later",
    "Part",
    "QueryRow",
    "as_it_is",
    "held_by",
    "held_handover",
    "is_list",
    "is_numbers",
    "is_record",
    "kind_of",
    "leaves_of",
    "numbers_part",
    "part_of",
    "records_in",
    "root_of",
    "scalar_of",
    "still_holds",
]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_VALUES = 4096
"""Numbers of a tensor that are kept, 32 KiB: offsets, lengths and tables of tiny configs fit."""
DEEPEST = 3
"""Levels of records within records that are followed: metadata of metadata of a backend."""

Kind = Literal["kernel", "call", "held"]
"""kernel: launched. call: of a method of the backend. held: what its metadata objects lead to."""

HandoverRule = Literal[
    "live", "keys", "form", "missing", "kind", "address", "side", "fits", "meaning", "padding"
]
"""The rules of `oracles.handover`, by the name that an excuse cites; `rules.handover` has them."""


# Not frozen: a step makes hundreds, and making one would take four times as long.
@dataclass(slots=True, eq=False)
class Part:
    """One tensor, as it was handed over; nobody changes it."""

    shape: tuple[int, ...]
    dtype: str
    address: int
    side: str = ""
    """'host' or 'device', as the engine asked for it; '' where that is unknown."""
    values: Ints | None = None
    """Content of integers and booleans up to `MOST_VALUES`, in the tensor's shape."""


# Not frozen, as `Part`.
@dataclass(slots=True, eq=False)
class QueryRow:
    """One row of a launch as its kernel understood it."""

    first: int
    """Its first query token, by place in the launch's queries."""
    tokens: int
    keys: Ints
    """[n] where its keys lie; see `Attended.place`."""
    hidden: Bools | None = None
    """[tokens, n] keys that a token does not see; None if it sees all."""


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What a kernel of attention computes: the meaning that its model worked out."""

    rows: tuple[QueryRow, ...]
    queries: int
    """Query tokens that the launch was given."""
    place: Literal["slot", "index"]
    """Whether keys are counted as slots of the KV pool, or by their place in the tensor given."""
    scale: float
    softcap: float = 0.0


@dataclass(slots=True, eq=False)
class Handover:
    """One launch, one call, or all that is held after a preparation."""

    to: str
    """The kernel, 'Class.method', or 'Class' whose attributes hold it."""
    kind: Kind
    number: int = 0
    """Which launch or call of its kind in the run, from 0 on."""
    tensors: dict[str, Part] = field(default_factory=dict)
    """By the name of the argument or the path of attributes."""
    scalars: dict[str, bool | int | float | str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Path -> type name of each record that holds the tensors."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Path -> kind of everything that a call handed over, see `kind_of`."""
    attended: tuple[Attended, ...] = ()
    bound: dict[str, int] = field(default_factory=dict)
    """Path -> address at capture, of a tensor that the graph was captured with. `tensors` then
    shows the present content of that memory."""
    rebound: dict[str, int] = field(default_factory=dict)
    """Path -> address of each tensor that the preparation bound to it anew."""
    dropped: tuple[str, ...] = ()
    """Attributes that held a record before the preparation and hold none after it."""
    called_at: str = ""
    watch: int = 0
    """Which of the session's watches took it down; each is judged by itself."""
    plans: tuple[str, ...] = ()
    """Arguments that the kernel has laid out for itself: no entry is a row's by its place."""
    unread: frozenset[str] = frozenset()
    """Paths of attributes of records that nobody in the backend read while it was called."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """A rule of handing over that a name need not follow, with the source that says so."""

    what: str
    """Pattern of `fnmatch` over names, e.g. '*.num_kv_splits'."""
    rule: HandoverRule
    source: str
    reason: str
    where_unread: bool = False
    """Whether it holds only where the backend did not read the name, in a replay or at capture."""
    only_with: str = ""
    """Field of a case's config: it holds only where that differs from its default; '' for all."""
    only_as: tuple[str, ...] = ()
    """Values of that field with which alone it holds; () for all but the default."""

    def covers(self, name: str, rule: str, unread: Collection[str] = ()) -> bool:
        """Whether it excuses this name from this rule.

        Args:
            unread: names that the backend was handed and did not read.
        """
        if rule != self.rule or not fnmatchcase(name, self.what):
            return False
        return name in unread if self.where_unread else True

    def __str__(self) -> str:
        where = " where the backend does not read it" if self.where_unread else ""
        where += f" with {self.only_with}" if self.only_with else ""
        where += f" {' or '.join(self.only_as)}" if self.only_as else ""
        return f"{self.what}, rule {self.rule}{where}: {self.reason} ({self.source})"


class _AsItIs:
    """Inside, tensors are read past every mode: the harness's reads are none of the engine's."""

    # No generator: it is entered for every launch, call and preparation.
    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._dispatch = torch._C._DisableTorchDispatch()
        self._function = torch._C.DisableTorchFunction()
        self._dispatch.__enter__()
        self._function.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._function.__exit__(*error)
        self._dispatch.__exit__(*error)


as_it_is = _AsItIs


_NAMES: dict[torch.dtype, str] = {}
"""What a part calls a dtype."""
# Complex numbers and quantised ones are left out: their content is never kept.
_INTEGERS = frozenset(
    getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    if hasattr(torch, name)
)


class Later:
    """Inside, what is handed over is copied where it lies; it is read later, all of it at once.

    Each read of a device's memory waits for the device, and takes away what a lead of the host
    would show.

    Args:
        here: whether the CPU's memory counts as a device's, as on the emulated device.
    """

    def __init__(self, *, here: bool) -> None:
        self._here = here
        self._kept: list[tuple[Part, torch.Tensor]] = []

    def __enter__(self) -> Later:
        _later.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _later.pop()

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies where a read of it waits."""
        return tensor.layout is torch.strided and (self._here or not tensor.is_cpu)

    def keep(self, part: Part, tensor: torch.Tensor) -> None:
        """Copy the content of a part that has none yet; call it inside `as_it_is`."""
        self._kept.append((part, tensor.clone()))

    @property
    def copies(self) -> list[torch.Tensor]:
        """What is to be read, for `fill`."""
        return [copy for _, copy in self._kept]

    def fill(self, read: Iterable[torch.Tensor]) -> None:
        """Complete the parts by the same copies, on the host now."""
        for (part, _), copy in zip(self._kept, read, strict=True):
            part.values = _integers(copy)
        self._kept.clear()


_later: list[Later] = []


def part_of(
    tensor: torch.Tensor, side: str = "", *, values: bool = True, at_once: bool = False
) -> Part:
    """A tensor as it is now; call it inside `as_it_is`.

    Args:
        side: of its memory, if the caller knows it.
        values: whether to keep its content; a capture on a device allows no read.
        at_once: whether the content is read now, also inside of `Later`.
    """
    dtype = tensor.dtype
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = str(dtype)[len("torch.") :]
    part = Part(tuple(tensor.shape), name, tensor.data_ptr(), side)
    if values and dtype in _INTEGERS and tensor.numel() <= MOST_VALUES:
        if _later and not at_once and _later[-1].takes(tensor):
            _later[-1].keep(part, tensor)
        else:
            part.values = _integers(tensor)
    return part


def still_holds(part: Part, tensor: torch.Tensor) -> bool:
    """Whether a tensor has the content that was taken down of it; call it inside `as_it_is`."""
    now, then = _array(tensor), part.values
    if now is None or then is None or now.shape != then.shape:
        return now is then
    # By the ufunc: an array's own `all` goes through a layer of Python.
    return bool(_ALL(now == then, axis=None))


# Of the base class: `torch.Tensor.numpy` is replaced where host and device are kept apart.
_NUMPY: Any = torch._C.TensorBase.numpy


_ALL = np.logical_and.reduce


def _array(tensor: torch.Tensor) -> npt.NDArray[Any] | None:
    """The memory of a tensor of integers, or a copy on the host."""
    if tensor.layout is not torch.strided:
        return None
    here = tensor if tensor.is_cpu else torch._C.TensorBase.cpu(tensor)
    found: npt.NDArray[Any] = _NUMPY(here)
    return found


def _integers(tensor: torch.Tensor) -> Ints | None:
    found = _array(tensor)
    return None if found is None else found.astype(np.int64)  # a copy, always


@dataclass(slots=True)
class Held:
    """What records lead to, by the path of attributes."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, Sequence[int]] = field(default_factory=dict)
    """Lists of whole numbers, which the host keeps beside tensors of the device."""

    def only(self, roots: Iterable[str]) -> Held:
        """The part below these names."""
        kept = frozenset(roots)
        return Held(
            _below(self.tensors, kept), _below(self.types, kept), _below(self.numbers, kept)
        )


Value = TypeVar("Value")


def _below(found: dict[str, Value], roots: frozenset[str]) -> dict[str, Value]:
    return {path: value for path, value in found.items() if root_of(path) in roots}


def root_of(path: str) -> str:
    """The first name of a path."""
    return path.partition(".")[0]


def held_by(values: Mapping[str, object]) -> Held:
    """Everything that records lead to."""
    held = Held()
    for path, value in leaves_of(values):
        if isinstance(value, torch.Tensor):
            held.tensors[path] = value
        elif isinstance(value, type):
            held.types[path] = value.__name__
        elif is_numbers(value):
            held.numbers[path] = value
    return held


def held_handover(
    to: str, held: Held, captured: Held | None = None, known: Mapping[str, Part] | None = None
) -> Handover:
    """What is held now; for a graph the tensors that it was captured with, which is all that it
    reads. Lists of numbers are the host's: of what was prepared now first.

    Args:
        to: who holds it.
        held: for a graph only what was prepared now.
        captured: tensors as aliases that the engine cannot rebind; None without a graph.
        known: paths whose content was taken down earlier.
    """
    read, before = captured or held, known or {}
    taken = Handover(to, "held", types=read.types)
    with as_it_is():
        if captured is not None:
            taken.bound = {path: each.data_ptr() for path, each in read.tensors.items()}
        taken.tensors = {
            path: before.get(path) or part_of(each) for path, each in read.tensors.items()
        }
    numbers = {**read.numbers, **held.numbers}
    taken.tensors |= {path: numbers_part(each) for path, each in numbers.items()}
    return taken


def leaves_of(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """(path, value) of everything that records and lists of them lead to.

    The path of a record itself comes with its type. Other objects are the engine's machinery, and
    are not entered.
    """
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        _walk(name, value, 0, found)
    return found


def kind_of(value: object) -> str:
    """What a value is, in words: runs of one step hand over the same kinds."""
    known = _PLAIN_KINDS.get(type(value))
    if known is not None:
        return known
    if isinstance(value, torch.Tensor):
        return _kind_of_tensor(value.ndim, value.is_floating_point())
    if isinstance(value, (bool, int, float)):
        return "a number"
    if isinstance(value, type) or is_record(value):
        return "a record"
    return "a text" if isinstance(value, str) else type(value).__name__


_PLAIN_KINDS: dict[type, str] = {
    type(None): "nothing", bool: "a number", int: "a number", float: "a number", str: "a text",
}  # fmt: skip


@cache
def _kind_of_tensor(dimensions: int, floats: bool) -> str:
    return f"a tensor of {dimensions} dimensions, {'floats' if floats else 'whole numbers'}"


def scalar_of(value: object) -> bool | int | float | str | None:
    """A plain value as it is, a member of an enumeration by its name; None for all else."""
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, (bool, int, float, str)) else None


def numbers_part(numbers: Sequence[int]) -> Part:
    """A list of numbers, such as the host keeps beside a tensor of the device."""
    values = np.array(numbers[:MOST_VALUES], dtype=np.int64)
    kept = values if len(numbers) == len(values) else None
    return Part((len(numbers),), _LIST, 0, "host", kept)


_LIST = "int"
"""The dtype of a part that was a list; no tensor's is called so."""


def is_list(part: Part) -> bool:
    """Whether this was a list of numbers and no tensor."""
    return part.dtype == _LIST


def is_numbers(value: object) -> TypeGuard[Sequence[int]]:
    """Whether it is a list of whole numbers, the host's copy of what the device has."""
    return isinstance(value, (list, tuple)) and bool(value) and set(map(type, value)) == {int}


def is_record(value: object) -> bool:
    """Whether it is a bag of values: an instance of a dataclass, or a namespace.

    Not the settings of a server: dataclasses that pydantic validates hold what a user chose.
    """
    kind = type(value)
    if getattr(kind, "__dataclass_fields__", None) is None:
        return kind is SimpleNamespace
    return getattr(kind, "__pydantic_validator__", None) is None


def records_in(values: Mapping[str, object]) -> dict[str, object]:
    """Those of the values that are records."""
    return {
        name: value
        for name, value in values.items()
        if type(value) not in _LEAVES and is_record(value)
    }


def _walk(path: str, value: object, depth: int, found: list[tuple[str, object]]) -> None:
    """Add what this leads to; runs for every attribute of every record, several times a step."""
    if value is None or isinstance(value, (torch.Tensor, int, float, str)):  # bool is an int
        found.append((path, value))
    elif depth < DEEPEST and is_record(value):
        found.append((path, type(value)))
        for name, item in _bindings(value):
            if type(item) in _LEAVES:  # as nearly all, and a call costs more than all else
                found.append((f"{path}.{name}", item))
            else:
                _walk(f"{path}.{name}", item, depth + 1, found)
    elif depth < DEEPEST and isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
        found.append((path, value))
        for index, item in enumerate(value):
            if isinstance(item, torch.Tensor) or is_record(item):
                _walk(f"{path}[{index}]", item, depth + 1, found)
    else:
        found.append((path, value))


_MOST_ITEMS = 16
_LEAVES = frozenset((*_PLAIN_KINDS, torch.Tensor))
"""Types whose values lead to nothing."""


def _bindings(record: Any) -> Iterable[tuple[str, object]]:
    """What a record holds; without running a property of the engine's."""
    found = getattr(record, "__dict__", None)
    if found is not None:
        return list(found.items())
    return [(each.name, getattr(record, each.name, None)) for each in fields(record)]
