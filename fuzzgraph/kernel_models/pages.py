"""Where the keys of a row lie in a cache of pages."""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["paged_keys"]


def paged_keys(
    memory: KernelMemory, name: str, table: torch.Tensor, row: int, length: int, page_size: int
) -> tuple[Ints, Ints]:
    """(page, place in it) of each of a row's keys.

    Args:
        name: what the kernel calls the table.
        table: int [rows, width] pages of each row; read as far as `length` asks for.
        length: keys of the row; none below 1.
    """
    positions = np.arange(max(0, length))
    used = np.arange(-(-len(positions) // page_size))
    pages = memory.entries(name, table, np.full_like(used, row), used)
    return pages[positions // page_size], positions % page_size
