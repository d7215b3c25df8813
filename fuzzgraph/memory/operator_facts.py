"""Reads from an operator's schema and tags what it does: writes, resizes, depends on data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

EMPTY = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
"""Operations whose result has no content yet."""
_RESIZE = ("resize_", "resize_as_")
# Their tags say that the shape of the result depends on data, but that is so only for some
# arguments (a boolean mask, no `output_size`). `graphs.rules` looks at those.
_INDEXING = {
    "aten.index": "read",
    "aten.index_put": "write",
    "aten.index_put_": "write",
    "aten.repeat_interleave": "repeat",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of an operator overload that do not depend on its arguments."""

    name: str
    """Without overload, e.g. `aten.cumsum`."""
    writes: tuple[int | str, ...]
    """Arguments that are written in place, by position or keyword."""
    outs: tuple[str, ...]
    """Keyword-only arguments that are written: `out`, or several of them."""
    is_empty: bool
    """The result has no content yet."""
    is_lift: bool
    """The result is host data that only just became a tensor (`torch.tensor`, `from_numpy`)."""
    is_resize: bool
    may_resize: bool
    """It resizes a tensor that it writes if that has another size."""
    forbidden: str
    """What of the result depends on data, so that a capture refuses it: 'value', 'shape' or ''."""
    random: bool
    text: str
    """With overload, e.g. `aten.cumsum.default`."""
    call: Any
    """Runs it, without the Python frame of the overload."""
    reshapes: bool
    """It may change size, strides or memory of a tensor that it writes."""
    index: str
    """`read`, `write` or `repeat` where arguments decide whether a capture refuses it, else ''."""


def facts_of(func: Any) -> Facts:
    """Read the facts of an operator overload."""
    schema = func._schema
    namespace, _, base = schema.name.partition("::")
    written = [
        (index, argument)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    tags = set(func.tags)
    forbidden = ""
    if torch.Tag.data_dependent_output in tags:
        forbidden = "value"
    elif torch.Tag.dynamic_output_shape in tags:
        forbidden = "shape"
    name = f"{namespace}.{base}"
    # A written keyword-only argument is an `out`, which torch resizes to fit.
    may_resize = any(a.kwarg_only for _, a in written) or base in _RESIZE
    return Facts(
        name=name,
        writes=tuple(a.name if a.kwarg_only else index for index, a in written),
        outs=tuple(a.name for _, a in written if a.kwarg_only),
        is_empty=namespace == "aten" and base in EMPTY,
        is_lift=namespace == "aten" and base == "lift_fresh",
        may_resize=may_resize,
        is_resize=namespace == "aten" and base in _RESIZE,
        forbidden=forbidden,
        random=torch.Tag.nondeterministic_seeded in tags,
        text=str(func),
        # What the overload's own `__call__` calls: one Python frame less for each operation.
        call=getattr(func, "_op", func),
        reshapes=bool(written) and (may_resize or torch.Tag.inplace_view in tags),
        index=_INDEXING.get(name, ""),
    )


_COMPOSITE = "CompositeImplicitAutograd"


def inside_of(func: Any, backend: str) -> Any:
    """The dispatcher's entry by which an operator made of other operations is taken apart.

    Those of C++ are dispatched whole in inference mode, and in parts under `no_grad`; for the
    others see `python_of`.

    Args:
        backend: the dispatch key of the device, such as 'CPU'.

    Returns:
        None for an operation in itself.
    """
    python = python_of(func, backend)
    if python is not None or _COMPOSITE not in _keys_of(func, backend):
        return python
    # Calling this entry runs the C++ decomposition; `func.decompose` would take the slower one in
    # Python.
    return torch._C.DispatchKey.CompositeImplicitAutograd


@cache
def python_of(func: Any, backend: str) -> Any:
    """The dispatcher's entry of an operator that is a function of Python, as engines register
    their layers; None for all others.

    A device's graph holds what such a function launches, and none of the Python that chose it.

    Args:
        backend: as for `inside_of`.
    """
    there = _keys_of(func, backend)
    if there and _is_python(func.name(), there[0]):
        return getattr(torch._C.DispatchKey, there[0])
    return None


def _keys_of(func: Any, backend: str) -> list[str]:
    """In the dispatcher's order: the first one answers a call."""
    name = func.name()
    explicit = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd")
    return [
        key
        for key in (backend, *explicit, _COMPOSITE)
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    ]


def _is_python(name: str, key: str) -> bool:
    """Whether a function of Python was registered for this key, by any way through torch.library,
    which keeps a list of them all."""
    listed = name.replace("::", "/")
    keys = (key, "") if key == _COMPOSITE else (key,)
    return any(f"{listed}/{each}" in torch.library._impls for each in keys)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Tensors among arguments or results, one level of lists deep, as schemas allow."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found
