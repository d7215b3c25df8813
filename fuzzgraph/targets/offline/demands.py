"""Refuses what an engine hands a stand-in and the real thing could not take.

A stand-in that merely fails on it would look like a target that is broken. What an engine asks of a
device, a graph or a model in vain is the engine's mistake, and is said as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from fuzzgraph.errors import EngineError

__all__ = [
    "demand_computable",
    "demand_instance",
    "demand_key",
    "demand_lookup",
    "demand_rows",
    "demand_size",
]

_COMPUTED_IN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Value = TypeVar("Value")


def demand_key(found: Mapping[Any, Value], key: Any, what: str, where: str) -> Value:
    """The entry that the engine asks for.

    Args:
        found: what the engine made so far.
        what: names an entry, as in "graph".
        where: the call of the engine that asks.

    Raises:
        EngineError: it never made one.
    """
    if key not in found:
        made = ", ".join(map(str, found)) or "none"
        raise EngineError(f"{where} asks for {what} {key}, which was never made; there are: {made}")
    return found[key]


def demand_instance(value: Any, kind: type, what: str, where: str) -> None:
    """Refuse what is of another kind.

    Raises:
        EngineError: it is.
    """
    if not isinstance(value, kind):
        raise EngineError(f"{where} got {_said(value)} for {what}, which is a {kind.__name__}")


def demand_rows(value: Any, rows: int | None, what: str, where: str) -> torch.Tensor:
    """The tensor that the engine handed over.

    Args:
        rows: how many it must have; any number if None.

    Raises:
        EngineError: it is no tensor, or has another number of rows.
    """
    demand_instance(value, torch.Tensor, what, where)
    if rows is not None and (not value.dim() or len(value) != rows):
        raise EngineError(f"{where} got {_said(value)} for {what}, where there are {rows} rows")
    found: torch.Tensor = value
    return found


def demand_size(value: Any, rows: int, columns: int, what: str, where: str) -> torch.Tensor:
    """The tensor that the engine computed, if it has this many numbers in whichever shape.

    Raises:
        EngineError: it is no tensor, or has another number of them.
    """
    demand_instance(value, torch.Tensor, what, where)
    if value.numel() != rows * columns:
        there = f"there are {rows} rows of {columns} numbers"
        raise EngineError(f"{where} got {_said(value)} for {what}, where {there}")
    found: torch.Tensor = value
    return found


def demand_computable(value: torch.Tensor, what: str, where: str) -> torch.Tensor:
    """The tensor, if a model can compute on it: torch adds and multiplies nothing in FP8.

    Raises:
        EngineError: it has another dtype.
    """
    if value.dtype not in _COMPUTED_IN:
        raise EngineError(f"{where} got {_said(value)} for {what}, on which no model can compute")
    return value


def demand_lookup(table: torch.Tensor, rows: torch.Tensor, what: str, where: str) -> torch.Tensor:
    """The rows of a model's table that the engine's numbers choose; work that a graph can hold.

    Raises:
        EngineError: one of them lies outside of the table.
    """
    try:
        return table.index_select(0, rows)
    except IndexError:
        many = f"a table of {len(table)} rows"
        raise EngineError(f"{where} got {what} outside of {many}: {_said(rows)}") from None


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return (
        repr(value) if value is None or isinstance(value, (bool, int, str)) else f"a {_kind(value)}"
    )


def _kind(value: Any) -> str:
    return type(value).__name__
