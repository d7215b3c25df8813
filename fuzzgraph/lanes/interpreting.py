"""A call of an interpreted kernel, from what the caller passed to what the caller gets back.

Stands for the stock interpreter's `GridExecutor.__call__` and does what that does around the
programs: arguments from a device are copied to the host and back, hooks run, the grid is asked.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from triton.runtime.errors import InterpreterError

from fuzzgraph.lanes.arguments import Arguments
from fuzzgraph.lanes.builder import CheckedBuilder
from fuzzgraph.lanes.careful import Grid
from fuzzgraph.lanes.language import put_on, stock_language
from fuzzgraph.lanes.launch import meaning, run_launch
from fuzzgraph.lanes.regions import RegionMap
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.semantics import CheckedSemantic

__all__ = ["call_kernel"]


def call_kernel(
    executor: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    report: LaneReport,
    *,
    regions: RegionMap | None = None,
    vouched: Sequence[torch.Tensor] = (),
    written: Callable[[torch.Tensor], Any] | None = None,
) -> None:
    """Launch the kernel of a stock executor over lanes."""
    names = _argument_names(executor.fn)
    kwargs = {name: value for name, value in kwargs.items() if name in names}
    on_device = any(_off_host(value) for value in (*args, *kwargs.values()))
    host_args, host_kwargs = args, kwargs
    if on_device:
        host_args, host_kwargs = executor._init_args_hst(args, kwargs)
    for hook in executor.pre_run_hooks:
        hook(*host_args, **host_kwargs)
    arguments = Arguments(
        executor.fn,
        inspect.getcallargs(executor.fn, *host_args, **host_kwargs),
        executor.constexprs,
        regions=regions,
        vouched=vouched,
        written=written,
    )
    with put_on(stock_language()), meaning(CheckedSemantic, CheckedBuilder()):
        arguments.convert()
        grid = executor.grid(arguments.converted) if callable(executor.grid) else executor.grid
        assert len(grid) <= 3, "grid must have at most 3 dimensions"
        sizes = _sizes(grid + (1,) * (3 - len(grid)))
    run_launch(executor.fn, sizes, arguments, report)
    if on_device:
        executor._restore_args_dev(args, host_args, kwargs, host_kwargs)


@lru_cache(maxsize=1024)
def _argument_names(kernel: Any) -> frozenset[str]:
    return frozenset(inspect.getfullargspec(kernel).args)


def _off_host(value: Any) -> bool:
    """Whether an argument, or a part of it, lies on a device."""
    if isinstance(value, torch.Tensor):
        return value.device.type != "cpu"
    if isinstance(value, tuple):
        return any(map(_off_host, value))
    base = getattr(value, "base", None)
    return isinstance(base, torch.Tensor) and base.device.type != "cpu"


def _sizes(grid: Any) -> Grid:
    """The grid as numbers; a negative size is an empty grid."""
    try:
        x, y, z = (len(range(size)) for size in grid)
    except Exception as error:
        raise InterpreterError(repr(error)) from error
    return x, y, z
