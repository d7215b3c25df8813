"""What AITER's kernels share: pages listed row by row, and factors of stored numbers."""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["ALSO", "FP8", "HALVES", "csr_keys", "csr_length", "kernel_scalar"]

HALVES = (torch.float16, torch.bfloat16)
# The arithmetic of these kernels in float32 does not exist. It is let through, because a case in
# float32 shows smaller differences; no rule of a caller depends on it.
ALSO = (torch.float32,)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def kernel_scalar(factor: torch.Tensor | None) -> float:
    """The one number that a kernel loads; 1 where it is given none."""
    return 1.0 if factor is None else float(factor.reshape(-1)[0])


def csr_length(
    memory: KernelMemory, last_page_lens: torch.Tensor | None, row: int, pages: int, page_size: int
) -> int:
    """Keys of a row: full pages, and what its last one holds; None if a page holds one key."""
    if last_page_lens is None or not pages:
        return pages
    last = int(memory.entries("kv_last_page_lens", last_page_lens, np.array([row]))[0])
    if not 1 <= last <= page_size:
        rule = f"kv_last_page_lens must be between 1 and {page_size}"
        memory.misused("kv_last_page_lens", rule, f"{last} at row {row}")
    return max(0, (pages - 1) * page_size + last)


def csr_keys(
    memory: KernelMemory, name: str, indices: torch.Tensor, first: int, length: int, page_size: int
) -> tuple[Ints, Ints]:
    """(page, place in it) of each of a row's keys, whose pages are listed from `first` on."""
    positions = np.arange(length)
    pages = memory.entries(name, indices, first + np.arange(-(-length // page_size)))
    return pages[positions // page_size], positions % page_size
