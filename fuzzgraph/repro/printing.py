"""Prints recorded operations as Python functions over named buffers.

A tensor is found by its place: a variable of the function, a slice of one, or memory of the arena
(see `arena`). A function is printed twice or more, until it is known which names are used and which
leave their function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch

from fuzzgraph.graphs import RecordedGraph, RecordedOp
from fuzzgraph.memory.operator_facts import facts_of
from fuzzgraph.repro.arena import ScriptMemory
from fuzzgraph.repro.embedding import EMBEDDABLE
from fuzzgraph.repro.geometry import Place, place_of, slice_text
from fuzzgraph.repro.kernels import Kernels
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.naming import Names, identifier
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.operations import argument_text, expression
from fuzzgraph.repro.trace import Event, tensors_of_event

WIDTH = 100
_INLINE = 48
"""Longest view expression that replaces a name used once."""


def commented(code: str, comment: str, indent: int = 4) -> list[str]:
    """A statement with its source line behind it, or above where it is long."""
    space = " " * indent
    lines = code.split("\n")
    if not comment:
        return [space + line for line in lines]
    if len(lines) == 1 and max(len(code), 60 - indent) + indent + len(comment) + 4 <= WIDTH:
        return [f"{space}{code:<{60 - indent}}  # {comment}"]
    return [f"{space}# {comment}", *(space + line for line in lines)]


def statements(lines: Iterable[str], indent: int = 4) -> list[str]:
    """Statements of a function body, those of several lines kept together."""
    space = " " * indent
    return [space + line if line else "" for text in lines for line in text.split("\n")]


@dataclass(slots=True)
class _Variable:
    name: str
    place: Place
    storage: int


@dataclass(slots=True)
class Shared:
    """What the functions of one script know of each other's host-side tensors."""

    owners: dict[int, tuple[str, _Variable]] = field(default_factory=dict)
    """Address of a storage -> (function that made it, its first variable)."""
    exported: set[str] = field(default_factory=set)
    """Variables that another function uses; they become globals."""
    names: Names = field(default_factory=Names)


class Function:
    """One printed function: a step, or a captured graph.

    Args:
        on_device: whether the script captures graphs of a device; else a graph is a function that
            each replay calls.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        memory: ScriptMemory,
        shared: Shared,
        kernels: Kernels,
        *,
        on_device: bool,
    ) -> None:
        self.name = name
        self.doc = doc
        self.memory = memory
        self._on_device = on_device
        self._shared = shared
        self._kernels = kernels
        self._uses: Counter[str] = Counter()
        self._inlined: dict[str, str] = {}
        self._defined: dict[str, str] = {}

    def lines(
        self,
        events: Sequence[Event],
        *,
        head: Iterable[str] = (),
        returns: dict[str, torch.Tensor] | None = None,
        copied: bool = False,
        is_graph: bool = False,
        last: RecordedOp | None = None,
    ) -> list[str]:
        """Source of the function. `returns` become its result, `last` is run after all else.

        Args:
            copied: whether the result is a copy of what is there.
        """
        self._copied = copied
        for _ in range(8):  # until no name more falls out of use
            before = dict(self._uses)
            body = self._body(events, is_graph, returns, last)
            if dict(self._uses) == before:
                break
        exported = sorted(name for name in self._defined if name in self._shared.exported)
        lines = ["@as_graph"] if is_graph and self._on_device else []
        lines += [f"def {self.name}():", f'    """{self.doc}"""']
        if exported:
            lines.append(f"    global {', '.join(exported)}")
        return [*lines, *head, *body]

    # ---- one pass

    def _body(
        self,
        events: Sequence[Event],
        is_graph: bool,
        returns: dict[str, torch.Tensor] | None,
        last: RecordedOp | None,
    ) -> list[str]:
        uses, self._old_uses = Counter[str](), self._uses
        self._uses = uses
        self._names = Names(self.memory.names.values())
        self._variables: list[_Variable] = []
        self._exact: dict[Place, str] = {}
        self._inlined, self._defined = {}, {}
        lines: list[str] = []
        for event in events:
            if isinstance(event, RecordedGraph):
                if not graph_is_empty(event):
                    lines.append(f"    {graph_name(event.key)}()")
            else:
                lines += self._operation(event, is_graph)
        if last is not None:
            lines += commented(self._call(last), last.source)
        if returns is not None:
            lines += self._returns(returns)
        return lines

    def _returns(self, returns: dict[str, torch.Tensor]) -> list[str]:
        kept = ".clone()" if self._copied else ""
        if len(returns) == 1:
            (tensor,) = returns.values()
            return [f"    return {self.text(tensor)}{kept}"]
        items = [
            f"        {name!r}: {self.text(tensor)}{kept}," for name, tensor in returns.items()
        ]
        return ["    return {", *items, "    }"]

    def _operation(self, op: RecordedOp, is_graph: bool) -> list[str]:
        if op.kind == "launch":
            return self._launch(op)
        if op.kind == "model":
            return self._launch_model(op)
        facts = facts_of(op.func)
        if facts.is_lift:
            return self._lift(op)
        if facts.writes:
            comment = self._comment(op)
            return [line for code in self._written(op) for line in commented(code, comment)]
        if not op.outputs:
            return []  # a value that the host read: what it led to is in the trace
        views = not op.replayed and not facts.is_empty if is_graph else self._is_view(op)
        if views:
            return self._define_view(op)
        if is_graph and facts.is_empty:
            return self._poison(op)
        return self._define(op, keep=is_graph)

    def _is_view(self, op: RecordedOp) -> bool:
        """Whether every result lies in the memory of an argument."""
        homes = {self._home(tensor) for tensor in tensors_of_event(op)[0]}
        return all(self._home(output) in homes for output in op.outputs)

    def _home(self, tensor: torch.Tensor) -> int:
        """Identity of the allocation: the region in the arena, the storage elsewhere."""
        region = self.memory.recording.memory.region_of(tensor)
        return tensor.untyped_storage().data_ptr() if region is None else id(region)

    def _written(self, op: RecordedOp) -> list[str]:
        base = op.func.overloadpacket.__name__
        if base == "_foreach_copy_":
            pairs = zip(op.args[0], op.args[1], strict=True)
            return [f"{self.text(to)}.copy_({self.text(source)})" for to, source in pairs]
        if base == "_foreach_zero_":
            return [f"{self.text(target)}.zero_()" for target in op.args[0]]
        return [self._call(op)]

    def _call(self, op: RecordedOp) -> str:
        return expression(op.func, op.args, op.kwargs, self.text)

    def _comment(self, op: RecordedOp) -> str:
        """Source line, and which buffer a number is the place of."""
        places = [
            f"{value} is where {self.memory.names[key]} begins"
            for value in (*op.args, *op.kwargs.values())
            if type(value) is int and (key := self.memory.starts.get(value)) is not None
        ]
        return "; ".join([op.source, *places])

    # ---- names

    def _define(self, op: RecordedOp, *, keep: bool) -> list[str]:
        base = op.func.overloadpacket.__name__.strip("_")
        places = [self.memory.text(output) for output in op.outputs]
        if len(op.outputs) == 1 and places[0] is not None:
            return commented(f"{places[0]}.copy_({self._call(op)})", op.source)
        names = [self._names.fresh(base) for _ in op.outputs]
        wanted = any(self._old_uses[name] or name in self._shared.exported for name in names)
        if not keep and not wanted and self._old_uses:
            self._add(op.outputs, names)
            return []
        call = self._call(op)
        if self._old_uses[names[0]] == 1 and len(names) == 1 and _is_literal(call):
            self._add(op.outputs, names)
            self._inlined[names[0]] = call
            return []
        code = f"{', '.join(names)} = {call}"
        self._add(op.outputs, names)
        return commented(code, self._comment(op))

    def _add(self, outputs: Sequence[torch.Tensor], names: Sequence[str]) -> None:
        for output, name in zip(outputs, names, strict=True):
            place = place_of(output)
            variable = _Variable(name, place, output.untyped_storage().data_ptr())
            self._variables.append(variable)
            self._exact[place] = name
            self._defined[name] = name
            if self.memory.recording.offset(place.address) is None:
                self._shared.owners.setdefault(variable.storage, (self.name, variable))

    def _define_view(self, op: RecordedOp) -> list[str]:
        """A view: found again by its place in engine memory, else named, or inlined if short."""
        lines: list[str] = []
        for output in op.outputs:
            place = place_of(output)
            if place in self._exact or self._engine_text(output) is not None or not output.numel():
                continue
            if len(op.outputs) > 1:
                continue  # found as a slice of what it was split from
            code = self._call(op)
            name = self._names.fresh(op.func.overloadpacket.__name__.strip("_"))
            uses = self._old_uses[name]
            if uses == 1 and len(code) <= _INLINE:
                self._exact[place] = name
                self._inlined[name] = code
                continue
            self._exact[place] = name
            self._defined[name] = name
            if uses or not self._old_uses:
                lines += commented(f"{name} = {code}", op.source)
        return lines

    def _engine_text(self, tensor: torch.Tensor) -> str | None:
        return self.memory.text(tensor)

    def _poison(self, op: RecordedOp) -> list[str]:
        lines = []
        for output in op.outputs:
            place = self.memory.text(output)
            if place is not None:
                poison = "unwritten" if self._on_device else "poison"
                lines += commented(f"{poison}({place})", op.source)
        return lines

    def _lift(self, op: RecordedOp) -> list[str]:
        """Host data that became a tensor: a literal."""
        output = op.outputs[0]
        place = place_of(output)
        name = self._names.fresh("host")
        self._exact[place] = name
        code = self._literal(output)
        if self._old_uses[name] == 1:
            self._inlined[name] = code
            return []
        self._defined[name] = name
        return commented(f"{name} = {code}", op.source) if self._old_uses[name] else []

    def _literal(self, tensor: torch.Tensor) -> str:
        storage = tensor.untyped_storage().data_ptr()
        kept = self.memory.recording.host.get(storage)
        if kept is None:
            return tensor_text(tensor)
        flat = kept.view(tensor.dtype)
        return tensor_text(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))

    def text(self, tensor: torch.Tensor) -> str:
        """How this function calls a tensor."""
        place = place_of(tensor)
        name = self._exact.get(place)
        if name is not None:
            return self._used(name)
        if not tensor.numel():  # lies nowhere: any address would do for it
            return tensor_text(tensor)
        found = self._engine_text(tensor)
        if found is not None:
            return found
        return self._slice_of_variable(tensor, place) or self._foreign(tensor, place)

    def _used(self, name: str) -> str:
        self._uses[name] += 1
        return self._inlined.get(name, name)

    def _slice_of_variable(self, tensor: torch.Tensor, place: Place) -> str | None:
        storage = tensor.untyped_storage().data_ptr()
        for variable in reversed(self._variables):
            if variable.storage == storage and _within(place, variable.place):
                found = slice_text(variable.place, place)
                if found is not None:
                    return self._used(variable.name) + found
                first = (place.address - variable.place.address) // place.dtype.itemsize
                form = f"{place.shape}, {place.stride}, {first}"
                return f"{self._used(variable.name)}.as_strided({form})"
        return None

    def _foreign(self, tensor: torch.Tensor, place: Place) -> str:
        """Another function's tensor, or content that came from outside."""
        owner = self._shared.owners.get(tensor.untyped_storage().data_ptr())
        if owner is not None and owner[0] != self.name:
            variable = owner[1]
            self._shared.exported.add(variable.name)
            found = slice_text(variable.place, place)
            if found is not None:
                return variable.name + found
            first = (place.address - variable.place.address) // place.dtype.itemsize
            return f"{variable.name}.as_strided({place.shape}, {place.stride}, {first})"
        region = self.memory.recording.memory.region_of(tensor)
        if region is None or not tensor.numel():
            return self._literal(tensor)
        if region.segment == "scratch":
            raise NotStandalone("the engine kept a result of its warm-up, which no step computes")
        # something else than this function's operations made it
        self.memory.pinned.add(id(region))
        return self.text(tensor)

    # ---- kernels

    def _launch(self, op: RecordedOp) -> list[str]:
        kernel = self._kernels.name_of(op.func)
        values = [argument_text(value, self.text) for value in op.args]
        values += [f"{name}={argument_text(v, self.text)}" for name, v in op.kwargs.items()]
        sizes = ", ".join(map(str, _sizes_of_grid(op)))
        head = f"{kernel}[({sizes},)]("
        code = "\n".join([head, *(f"    {value}," for value in values), ")"])
        return commented(code, op.source)

    def _launch_model(self, op: RecordedOp) -> list[str]:
        """A call of the model's body, whose source the script contains."""
        name = op.func.__name__
        if self._on_device:
            raise NotStandalone(f"it launches {op.name}, a compiled kernel of the engine's")
        if name not in EMBEDDABLE:
            raise NotStandalone(f"the model of {op.name} is not one of FuzzGraph's own")
        values = [f"{key}={argument_text(v, self.text)}" for key, v in op.kwargs.items()]
        lines = [f"kernel_memory({op.name!r})", *values]
        return commented(
            "\n".join([f"{name}(", *(f"    {line}," for line in lines), ")"]), op.source
        )


def _sizes_of_grid(op: RecordedOp) -> Sequence[Any]:
    """How many programs a launch has along each axis; engines may give a function of its arguments
    (triton.runtime.jit, `JITFunction.run`)."""
    grid = op.grid
    if callable(grid):
        grid = grid(dict(zip(signature(op.func).parameters, op.args, strict=False)) | op.kwargs)
    return grid if isinstance(grid, (tuple, list)) else (grid,)


def _is_literal(call: str) -> bool:
    """Whether a tensor of written-out values is all that is made."""
    return call.startswith("torch.tensor(") and call.endswith(")") and len(call) <= _INLINE


def _within(place: Place, base: Place) -> bool:
    return base.address <= place.address and place.end <= base.end


def graph_is_empty(graph: RecordedGraph[Any]) -> bool:
    """Whether a replay does nothing, as where only an engine's metadata is driven."""
    return not any(op.replayed for op in graph.trace)


def graph_name(key: str) -> str:
    """Name of the function that stands for a captured graph."""
    return f"graph_{identifier(key)}"
