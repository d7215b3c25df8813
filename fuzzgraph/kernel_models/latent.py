"""What models of latent attention share: one row of a cache is key and, in front, value.

The kernels are built for rows of 576 columns, 512 of them the value. A model takes the narrow rows
of a case: that number reaches no address and no rule of a caller, and wide rows only cost time. So
`needs_one_width` holds the widths of a call against each other instead, and this is the one place
where host code is not followed.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.attention import Bools, Cache
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["as_wide_as_rows", "hidden_behind", "latent", "needs_one_width", "paged"]


def needs_one_width(call: Call, query: int, row: int, value: int) -> None:
    """Refuse queries that are not as wide as a cached row, and values that do not fit into it."""
    call.needs(
        query == row, f"queries must be as wide as a cached row of {row} columns", f"{query}"
    )
    call.needs(0 < value <= row, f"a value must fit into a cached row of {row} columns", f"{value}")


def latent(cache: torch.Tensor, value: int, name: str, scale: float = 1.0) -> Cache:
    """Rows [..., Hkv, D] of which the first `value` columns are values."""
    return Cache(cache, cache[..., :value], scale, scale, (name, name))


def as_wide_as_rows(table: torch.Tensor) -> torch.Tensor:
    """A page table [rows, ...] with all columns up to its next row, however narrow the view is.

    For kernels that find a row by the table's stride and never look at its width, so that a view
    of the first columns, cut for the batch at hand, hands over the whole rows.
    """
    return table.as_strided((len(table), max(table.shape[1], table.stride(0))), table.stride())


def paged(
    memory: KernelMemory,
    name: str,
    table: torch.Tensor,
    row: int,
    positions: Ints,
    page_size: int,
) -> tuple[Ints, Ints]:
    """(page, place in it) of tokens of one row of a page table, which is read once for a page."""
    used, which = np.unique(positions // page_size, return_inverse=True)
    pages = memory.entries(name, table, np.full_like(used, row), used)
    return pages[which], positions % page_size


def hidden_behind(positions: Ints, tokens: int, length: int) -> Bools:
    """[tokens, keys] keys that stand behind a token; the last token stands at the row's end."""
    hidden: Bools = positions[None, :] > (length - tokens + np.arange(tokens))[:, None]
    return hidden
