"""Settles what belongs to the process: threads, the garbage collector, the C library's heap."""

from __future__ import annotations

import ctypes
import functools
import gc
import os

import torch

__all__ = ["tune_process"]

# Thresholds of the garbage collector: cached sessions are a hundred thousand objects that live
# long, and Python's own thresholds walk all of them every few dozen cases.
_COLLECTIONS = (50_000, 10, 5)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGE_BLOCK = 1 << 20


@functools.cache
def tune_process() -> None:
    """Once per process: what would otherwise cost more than all kernels together."""
    torch.set_num_threads(1)  # oversubscription
    gc.collect()
    gc.freeze()  # full collections over half a million objects of imports
    gc.set_threshold(*_COLLECTIONS)
    _give_large_blocks_back()


def _give_large_blocks_back() -> None:
    """Let malloc return blocks of a MiB to the system when they are freed.

    glibc moves that bound up to the largest block that it ever saw freed, 32 MiB at most, and from
    then on the blocks of large cases cut the heap into pieces that are never given back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:  # other C libraries do without
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)
