"""Makes a path of a trace into one Python function over arrays.

Playback calls a method of the builder for each operation, which unpacks handles, checks what types
settle, and packs a handle again: several times what numpy takes for a small array. Here the types
are known: most operations become one call of numpy on local variables, with the same operands and
the same layout of the result. Loads and stores are checked, logged and journaled as ever. What is
not one of the operations below is called as in any playback.

Left out is only what cannot show: results that nothing takes, equal operations on equal operands,
and views of a broadcast operand where numpy broadcasts by itself.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.builder import _BYTES, LaneBuilder
from fuzzgraph.lanes.checked import _CONVERTED, CheckedBuilder
from fuzzgraph.lanes.divergence import TooWide
from fuzzgraph.lanes.handles import Handle, Tag, tag_of
from fuzzgraph.lanes.kernel_source import playing_at
from fuzzgraph.lanes.operands import Constant, Ref, Several
from fuzzgraph.lanes.playback_calls import name_of, whole
from fuzzgraph.lanes.reductions import _reduced, plain_reduction, reduced_axes
from fuzzgraph.lanes.trace import Facts, Operation, Path, Trace
from fuzzgraph.lanes.types import np_dtype, plain_sizes

_WIDE = np.dtype(np.uint64)
_EVERYTHING = slice(None)
# On booleans these give what they give on integers of one bit.
_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def straight_line(trace: Trace, path: Path) -> Callable[[list[Any], Any], None]:
    """A function that carries out the steps of a path, given playback's list and the builder.

    It leaves in the list what the path's fork and other paths take.
    """
    return _Writer(trace, path).function()


class _Writer:
    """Writes the source of one path, operation by operation."""

    def __init__(self, trace: Trace, path: Path) -> None:
        self._path = path
        self._facts = trace.facts
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"Handle": Handle, "Tag": Tag}
        self._constants: dict[int, str] = {}
        self._arrays: dict[int, str] = {}
        """Index -> the variable that holds its array."""
        self._narrow: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Index -> variable and sizes of what is broadcast to it."""
        self._handles: dict[int, str] = {}
        self._tags: dict[tuple[int, int], str] = {}
        self._made: set[int] = set()
        self._listed: set[int] = set()
        """Indices of results of this path that are in playback's list."""
        self._same: dict[str, str] = {}
        self._checked = 0
        """Elements of the largest block that is known to fit into a group."""
        fork = () if path.fork is None else _operands(path.fork)
        self._last = {*path.escaping, *_indices(fork)}
        self._wanted = self._last | {
            index for step in path.steps for index in _indices(_operands(step))
        }

    def function(self) -> Callable[[list[Any], Any], None]:
        for step in self._path.steps:
            self._write(step)
        for index in sorted(self._last & self._made):
            self._list(index)
        names = ["memory = builder.memory", "load = memory.load", "store = memory.store"]
        text = "\n    ".join(["def run(values, builder):", *names, *self._lines])
        exec(compile(text, "<path of a trace>", "exec"), self._names)
        made: Callable[[list[Any], Any], None] = self._names["run"]
        return made

    # ---- operations

    def _write(self, step: Operation) -> None:
        plain = step.results is not None and not step.kwargs
        known = _KNOWN.get(_function(step)) if plain else None
        results = step.results or ()
        for index in results:
            self._made.add(index)
        if known is not None and known(self, step, *step.args):
            return
        self._call(step)

    def _call(self, step: Operation) -> None:
        """Call the operation as any playback does."""
        called = self._name(step.call)
        if step.getter is whole:
            for index in _indices(_operands(step)):
                if index in self._made:
                    self._list(index)
            given = "values"
        else:
            given = ", ".join(self._operand(each) for each in step.args)
        results = step.results or ()
        if isinstance(step.to, slice):
            names = [self._handle_name(index) for index in results]
            self._lines.append(f"{', '.join(names)}, = {called}({given})")
        elif results:
            self._lines.append(f"{self._handle_name(results[0])} = {called}({given})")
        else:
            self._lines.append(f"{called}({given})")

    def _binary(self, step: Operation, lhs: Any, rhs: Any) -> bool:
        operation = _probed(step)
        (result,) = step.results or (0,)
        one, two, made = self._of(lhs), self._of(rhs), self._facts.get(result)
        if one is None or two is None or made is None or not isinstance(operation, np.ufunc):
            return False
        if len(one.sizes) != len(two.sizes):
            return False
        both = one.numpy == two.numpy == np.bool_
        if both and operation not in _BITWISE:
            return False
        raw = operation.resolve_dtypes((one.numpy, two.numpy, None))[-1]
        kind = made.kind
        most = _BYTES.get(kind.name, max(kind.primitive_bitwidth, 8) // 8)
        cast = raw.itemsize > most and not kind.is_ptr()
        if (np_dtype(kind) if cast else raw) != made.numpy:
            return False
        call = f"{self._name(operation)}({', '.join(self._met(lhs, rhs, made))})"
        self._pure(result, f"{call}.astype({self._name(made.numpy)})" if cast else call)
        return True

    def _cast(self, step: Operation, src: Any, dst_type: Any, *_: Any) -> bool:
        if not isinstance(_probed(step), _CastProbe):
            return False
        (result,) = step.results or (0,)
        before, made = self._of(src), self._facts.get(result)
        if before is None or made is None or not isinstance(dst_type, Constant):
            return False
        element = dst_type.value.scalar
        if before.kind.scalar in _CONVERTED and element in _CONVERTED:
            return False
        kind = np.dtype(np_dtype(dst_type.value))
        if kind != made.numpy:
            return False
        self._pure(result, f"{self._array(src)}.astype({self._name(kind)})")
        return True

    def _program_id(self, step: Operation, axis: Any) -> bool:
        (result,) = step.results or (0,)
        if not isinstance(axis, Constant):
            return False
        self._pure(result, f"builder.ids[{self._name(axis.value)}]")
        return True

    def _splat(self, step: Operation, ret_ty: Any, arg: Any) -> bool:
        (result,) = step.results or (0,)
        before, made = self._of(arg), self._facts.get(result)
        if before is None or made is None or not isinstance(ret_ty, Constant):
            return False
        sizes = plain_sizes(ret_ty.value.shape)
        kind = np.dtype(np_dtype(before.kind))
        if kind != made.numpy or sizes != made.sizes:
            return False
        self._fits(sizes)
        shape = self._name((1,) * len(sizes))
        given = f"{self._array(arg)}, {self._name(sizes)}, {shape}, {self._name(kind)}"
        self._pure(result, f"{self._name(_splatted)}({given})")
        return True

    def _broadcast(self, step: Operation, arg: Any, shape: Any) -> bool:
        (result,) = step.results or (0,)
        before, made = self._of(arg), self._facts.get(result)
        if before is None or made is None or not isinstance(shape, Constant):
            return False
        sizes = plain_sizes(shape.value)
        if sizes != made.sizes or not isinstance(arg, Ref):
            return False
        self._fits(sizes)
        self._narrow[result] = self._loose(arg, before)
        return True

    def _expand_dims(self, step: Operation, arg: Any, axis: Any) -> bool:
        (result,) = step.results or (0,)
        before = self._of(arg)
        if before is None or result not in self._facts or not isinstance(axis, Constant):
            return False
        rank = len(before.sizes) + 1
        ahead = (axis.value if axis.value >= 0 else axis.value + rank) + 1
        place = self._name((_EVERYTHING,) * ahead + (None,))
        self._pure(result, f"{self._array(arg)}[{place}]")
        return True

    def _addptr(self, step: Operation, ptr: Any, offset: Any) -> bool:
        (result,) = step.results or (0,)
        one, two, made = self._of(ptr), self._of(offset), self._facts.get(result)
        if one is None or two is None or made is None or made.numpy != _WIDE:
            return False
        if one.numpy != _WIDE or two.numpy.kind not in "iub":
            return False
        width = max(1, _pointed(one.kind).primitive_bitwidth // 8)
        start, moved = self._met(ptr, offset, made)
        # The same bits: numpy wraps in either direction.
        kind = self._name(_WIDE)
        moved = f"{moved}.view({kind})" if two.numpy.itemsize == 8 else f"{moved}.astype({kind})"
        if width > 1:
            moved = f"{self._name(np.multiply)}({moved}, {self._name(np.uint64(width))})"
        self._pure(result, f"{self._name(np.add)}({start}, {moved})")
        return True

    def _reduction(
        self, step: Operation, input: Any, axis: Any, combine_fn: Any, keep_dims: Any
    ) -> bool:
        (result,) = step.results or (0,)
        if not (isinstance(input, Ref) and isinstance(axis, Constant)):
            return False
        if not (isinstance(combine_fn, Constant) and isinstance(keep_dims, Constant)):
            return False
        before, made = self._facts.get(input.index), self._facts.get(result)
        operation = plain_reduction(combine_fn.value)
        if before is None or made is None or operation is None or not before.sizes:
            return False
        if np.dtype(np_dtype(before.kind.scalar)) != made.numpy:
            return False
        axes = self._name(reduced_axes(axis.value, len(before.sizes) + 1))
        given = f"{self._array(input)}, axis={axes}, keepdims={bool(keep_dims.value)}"
        kind = self._name(made.numpy)
        self._pure(result, f"{self._name(operation)}({given}).astype({kind})")
        return True

    def _load(
        self, step: Operation, ptrs: Any, mask: Any = None, other: Any = None, *_: Any
    ) -> bool:
        if name_of(step.function) == "create_load":
            mask = other = None
        place, made = self._of(ptrs), self._facts.get((step.results or (0,))[0])
        if place is None or made is None:
            return False
        on, default = self._mask(mask), self._default(other)
        if on is None or default is None:
            return False
        (result,) = step.results or (0,)
        kind = self._name(np_dtype(_pointed(place.kind)))
        given = f"{self._tag(place)}, {self._array(ptrs)}, {on}, {default}, {kind}"
        self._at_line(step, f"{self._array_name(result)} = load({given})")
        return True

    def _store(self, step: Operation, ptr: Any, value: Any, mask: Any = None, *_: Any) -> bool:
        if name_of(step.function) == "create_store":
            mask = None
        place, what = self._of(ptr), self._of(value)
        on = self._mask(mask)
        if place is None or what is None or on is None:
            return False
        given = f"{self._tag(place)}, {self._array(ptr)}, {self._array(value)}, {on}"
        self._at_line(step, f"store({given})")
        return True

    def _mask(self, mask: Any) -> str | None:
        if mask is None or (isinstance(mask, Constant) and mask.value is None):
            return "None"
        facts = self._of(mask)
        return self._array(mask) if facts is not None and facts.numpy == np.bool_ else None

    def _default(self, other: Any) -> str | None:
        if other is None or (isinstance(other, Constant) and other.value is None):
            return "None"
        return None if self._of(other) is None else self._array(other)

    def _at_line(self, step: Operation, line: str) -> None:
        place = self._name(playing_at(step.call))
        self._lines.append(f"with {place}: {line}")

    # ---- values

    def _of(self, operand: Any) -> Facts | None:
        """What is known of an operand's array; None where it is none."""
        if isinstance(operand, Ref):
            return self._facts.get(operand.index) if operand.kind is None else None
        if isinstance(operand, Constant) and type(operand.value) in (Handle, TensorHandle):
            handle = operand.value
            if tag_of(handle) is None and isinstance(handle.data, np.ndarray):
                return Facts(handle.data.dtype, handle.data.shape[1:], handle.dtype, 0, 0)
        return None

    def _array(self, operand: Any) -> str:
        """The variable of an operand's array."""
        if isinstance(operand, Constant):
            return self._name(operand.value.data)
        index = operand.index
        if index in self._arrays:
            return self._arrays[index]
        if index in self._narrow:
            narrow, _ = self._narrow[index]
            sizes = self._name(self._facts[index].sizes)
            self._pure(index, f"{self._name(_spread)}({narrow}, {sizes})")
            return self._arrays[index]
        handle = self._handle(index)
        name = self._array_name(index)
        self._lines.append(f"{name} = {handle}.data")
        return name

    def _loose(self, operand: Any, facts: Facts) -> tuple[str, tuple[int, ...]]:
        """An operand as it was before it was broadcast, if it was, with its sizes."""
        if isinstance(operand, Ref) and operand.index in self._narrow:
            return self._narrow[operand.index]
        return self._array(operand), facts.sizes

    def _met(self, one: Any, two: Any, made: Facts) -> tuple[str, str]:
        """Two operands of an elementwise operation; not broadcast where numpy does it."""
        # A size of 1 has a stride of 0 for numpy, as in a broadcast view: the same order of the
        # result's axes.
        facts = self._of(one), self._of(two)
        assert facts[0] is not None
        assert facts[1] is not None
        left, right = self._loose(one, facts[0]), self._loose(two, facts[1])
        if np.broadcast_shapes(left[1], right[1]) == made.sizes:
            return left[0], right[0]
        return self._array(one), self._array(two)

    def _pure(self, index: int, text: str) -> None:
        """Let an index be what an expression gives, without effects and the same each time."""
        if index not in self._wanted:
            return
        known = self._same.get(text)
        if known is None:
            known = self._same[text] = self._array_name(index)
            self._lines.append(f"{known} = {text}")
        self._arrays[index] = known

    def _operand(self, operand: Any) -> str:
        if isinstance(operand, Constant):
            return self._name(operand.value)
        return self._handle(operand.index)

    def _handle(self, index: int) -> str:
        """The variable of what the builder's methods are given for an index."""
        known = self._handles.get(index)
        if known is not None:
            return known
        if index not in self._made:
            name = self._handle_name(index)
            self._lines.append(f"{name} = values[{index}]")
            return name
        array = self._array(Ref(index))
        facts = self._facts[index]
        name = self._handle_name(index)
        self._lines.append(
            f"{name} = Handle({array}, {self._name(facts.kind)}, {self._tag(facts)})"
        )
        return name

    def _list(self, index: int) -> None:
        """Put what is behind an index into playback's list."""
        if index not in self._listed:
            self._listed.add(index)
            self._lines.append(f"values[{index}] = {self._handle(index)}")

    def _tag(self, facts: Facts) -> str:
        """The variable of a pointer's provenance."""
        if not facts.source:
            return "None"
        key = facts.source, facts.grain
        known = self._tags.get(key)
        if known is None:
            known = self._tags[key] = f"t{facts.source}_{facts.grain}"
            self._lines.append(f"{known} = Tag(values[{facts.source}].tag.view, {facts.grain})")
        return known

    def _fits(self, sizes: Sequence[int]) -> None:
        """As `LaneBuilder._expand`; a block no larger than one before fits as well."""
        elements = prod(sizes)
        if elements > self._checked:
            self._checked = elements
            self._lines.append(f"{self._name(_check_width)}(builder, {elements})")

    def _array_name(self, index: int) -> str:
        return self._arrays.setdefault(index, f"d{index}")

    def _handle_name(self, index: int) -> str:
        return self._handles.setdefault(index, f"h{index}")

    def _name(self, value: Any) -> str:
        """A global name for a constant."""
        known = self._constants.get(id(value))
        if known is None:
            known = self._constants[id(value)] = f"c{len(self._constants)}"
            self._names[known] = value  # which keeps the id safe
        return known


def _function(step: Operation) -> Any:
    """The function behind a builder's method; None where the operation is something else."""
    if step.function is _REDUCED:
        return _REDUCED
    if not isinstance(getattr(step.function, "__self__", None), LaneBuilder):
        return None
    function = step.function.__func__
    if function.__name__ != "<lambda>":
        return function
    probed = _probed(step)
    return _CastProbe if isinstance(probed, _CastProbe) else np.ufunc if probed else None


class _CastProbe:
    """What a method stands for that casts."""


class _Probe:
    """Stands for the builder in a method of one line, to see what the method calls."""

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        return ("binary", lhs, rhs, op)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        return ("cast", src, dst_type)


def _probed(step: Operation) -> Any:
    """The operation of numpy behind a method with two operands, a `_CastProbe`, or None."""
    given = [object() for _ in step.args]
    try:
        seen = step.function.__func__(_Probe(), *given)
    except (AttributeError, TypeError):
        return None
    if not isinstance(seen, tuple) or seen[1] is not given[0] or seen[2] is not given[1]:
        return None
    return seen[3] if seen[0] == "binary" else _CastProbe()


_REDUCED: Any = vars(_reduced)["__wrapped__"]

_KNOWN: dict[Any, Callable[..., bool]] = {
    np.ufunc: _Writer._binary,
    _CastProbe: _Writer._cast,
    _REDUCED: _Writer._reduction,
    LaneBuilder.create_get_program_id: _Writer._program_id,
    LaneBuilder.create_splat: _Writer._splat,
    LaneBuilder.create_broadcast: _Writer._broadcast,
    LaneBuilder.create_expand_dims: _Writer._expand_dims,
    CheckedBuilder.create_addptr: _Writer._addptr,
    CheckedBuilder.create_load: _Writer._load,
    LaneBuilder.create_masked_load: _Writer._load,
    CheckedBuilder.create_store: _Writer._store,
    LaneBuilder.create_masked_store: _Writer._store,
}
"""Function of the builder -> what writes it; it returns False where it cannot."""


def _operands(step: Operation) -> Iterator[Any]:
    yield from step.args
    yield from step.kwargs.values()


def _indices(operands: Any) -> Iterator[int]:
    for operand in operands:
        if isinstance(operand, Ref):
            yield operand.index
        elif isinstance(operand, Several):
            yield from _indices(operand.parts)


def _pointed(kind: Any) -> Any:
    """The type that a pointer's type leads to, as the builder asks for it."""
    return Handle(None, kind).get_element_ty()


def _check_width(builder: Any, elements: int) -> None:
    if elements * builder.lanes > builder.most and builder.lanes > 1:
        raise TooWide


def _splatted(data: Any, sizes: tuple[int, ...], ones: tuple[int, ...], kind: Any) -> Any:
    full = np.empty((len(data), *sizes), kind)
    full[...] = data.reshape((len(data), *ones))
    return full


def _spread(data: Any, sizes: tuple[int, ...]) -> Any:
    full = (len(data), *sizes)
    return data if data.shape == full else np.broadcast_to(data, full)
