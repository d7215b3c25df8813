"""Runs a call of an interpreted kernel over lanes, from the caller's arguments to the result.

It replaces the stock interpreter's `GridExecutor.__call__` and does the same around the programs:
it copies arguments from a device to the host and back, runs hooks, and evaluates the grid.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch

from fuzzgraph.lanes.argument_regions import RegionMap
from fuzzgraph.lanes.arguments import Arguments
from fuzzgraph.lanes.compat import accepted_names
from fuzzgraph.lanes.host_pointers import OutOfReach
from fuzzgraph.lanes.launch import run_launch
from fuzzgraph.lanes.launch_options import check_options
from fuzzgraph.lanes.report import LaneReport


def call_kernel(
    executor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    report: LaneReport,
    *,
    regions: RegionMap | None = None,
    vouched: Sequence[torch.Tensor] = (),
    written: Callable[[torch.Tensor], Any] | None = None,
    is_out_of_reach: OutOfReach | None = None,
) -> None:
    """Launch the kernel of a stock executor over lanes."""
    names = _argument_names(executor.fn)
    options = {name: value for name, value in kwargs.items() if name not in names}
    if options:
        check_options(executor.fn.__name__, options)
        kwargs = {name: value for name, value in kwargs.items() if name in names}
    on_device = _off_host(args) or _off_host(kwargs.values())
    host_args, host_kwargs = args, kwargs
    if on_device:
        host_args, host_kwargs = executor._init_args_hst(args, kwargs)
    for hook in executor.pre_run_hooks:
        hook(*host_args, **host_kwargs)
    arguments = Arguments(
        executor.fn,
        _bound(executor.fn, host_args, host_kwargs),
        executor.constexprs,
        regions=regions,
        vouched=vouched,
        written=written,
        is_out_of_reach=is_out_of_reach,
    )
    run_launch(executor, arguments, report)
    if on_device:
        executor._restore_args_dev(args, host_args, kwargs, host_kwargs)


_argument_names = lru_cache(maxsize=1024)(accepted_names)


def _bound(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name of each argument -> its value, defaults included."""
    names, defaults = _parameters(kernel) or ((), {})
    given = dict(zip(names, args, strict=False))  # too many are noticed below
    bound = defaults | given | kwargs
    known = len(args) + len(kwargs) == len(given.keys() | kwargs.keys())
    if names and known and len(bound) == len(names):
        return {name: bound[name] for name in names}
    return inspect.getcallargs(kernel, *args, **kwargs)  # with its message for wrong arguments


@lru_cache(maxsize=1024)
def _parameters(kernel: Any) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    """The names of a kernel's parameters, and the defaults; None if some are of another kind."""
    spec = inspect.getfullargspec(kernel)
    if spec.varargs or spec.varkw or spec.kwonlyargs:
        return None
    defaults = spec.defaults or ()
    late = spec.args[len(spec.args) - len(defaults) :]
    return tuple(spec.args), dict(zip(late, defaults, strict=True))


_PLAIN = frozenset((int, bool, float, str, type(None)))


def _off_host(values: Iterable[Any]) -> bool:
    """Whether one of the arguments, or a part of one, lies on a device."""
    # One loop for all of them: a kernel has dozens of arguments, most of them plain numbers.
    for value in values:
        if value.__class__ in _PLAIN:
            continue
        # Tuples nest, and a tensor descriptor holds its tensor as `base`.
        if isinstance(value, tuple):
            if _off_host(value):
                return True
            continue
        held = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
        if isinstance(held, torch.Tensor) and not held.is_cpu:
            return True
    return False
