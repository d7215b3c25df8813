"""A row of the tables: one call of an engine's code, on small tensors of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor
E4M3, LONG = torch.float8_e4m3fn, torch.int64


@dataclass(frozen=True)
class Row:
    """One call that launches kernels."""

    name: str
    engine: str
    modules: tuple[str, ...]
    """What `call` is handed, imported, in this order."""
    call: Callable[..., Any]
    unequal: str = ""
    """Why bytes may differ from those of Triton's own interpreter; "" where they may not."""


class Table:
    """The rows of one engine that are about one matter; calls it as a decorator for each."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self.rows: list[Row] = []

    def __call__(self, *modules: str, unequal: str = "") -> Callable[[Callable[..., Any]], Any]:
        """Add the decorated function as a row; it is handed the modules.

        Args:
            modules: dotted names below the engine's package.
        """

        def add(call: Callable[..., Any]) -> Callable[..., Any]:
            names = tuple(f"{self._engine}.{module}" for module in modules)
            self.rows.append(Row(call.__name__, self._engine, names, call, unequal))
            return call

        return add


beside: list[Tensor] = []
"""Memory of the running row that its launches reach by addresses in tables, not by arguments."""


def reached(*tensors: Tensor) -> Tensor:
    """int64/uint64 table of these tensors' addresses; their bytes are compared too."""
    beside.extend(tensors)
    return torch.tensor([each.data_ptr() for each in tensors], dtype=torch.int64)


def floats(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Numbers of either sign, most of them of the size of `scale`, the same in each run."""
    made = torch.randn(shape, generator=_random(shape)) * scale
    return made.to(dtype)


def halves(*shape: int, scale: float = 1.0) -> Tensor:
    """The same in float16."""
    return floats(*shape, dtype=torch.float16, scale=scale)


def qkv(tokens: int, heads: int, v_heads: int, dim: int = 16) -> tuple[Tensor, ...]:
    """Queries, keys and values of a recurrent layer, one sequence behind the other."""
    return (
        halves(1, tokens, heads, dim),
        halves(1, tokens, heads, dim, scale=0.5),
        halves(1, tokens, v_heads, dim),
    )


def decays(*shape: int) -> Tensor:
    """float32 below 0: logarithms of what is kept of a state."""
    return -torch.rand(shape, generator=_random(shape)) - 0.05


def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def longs(*values: int) -> Tensor:
    return ints(*values, dtype=torch.int64)


def below(most: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Whole numbers from 0 to `most`, without it."""
    return torch.randint(0, most, shape, generator=_random(shape), dtype=dtype)


def starts(*lens: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """[rows + 1], prefix sums from 0."""
    return torch.tensor([0, *lens]).cumsum(0).to(dtype)


def slots(*shape: int, first: int = 1, dtype: torch.dtype = torch.int32) -> Tensor:
    """Places in a pool, each once, in no order."""
    count = int(torch.tensor(shape).prod())
    return (torch.randperm(count, generator=_random(shape)) + first).view(shape).to(dtype)


def pages_of(rows: int, width: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """[rows, width], a page table without a page that two rows share."""
    return slots(rows, width, first=0, dtype=dtype)


def blank(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Whole numbers that nobody has written yet: 0."""
    return torch.zeros(shape, dtype=dtype)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _random(shape: tuple[int, ...]) -> torch.Generator:
    # By shape, so that two operands of a row do not hold the same numbers.
    return torch.Generator().manual_seed(sum(size * 31**at for at, size in enumerate(shape)))
