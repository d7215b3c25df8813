"""Tunes the process for many small cases: threads, the garbage collector, the C library's heap."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import os

import torch

# Thresholds of the garbage collector. Cached sessions are a hundred thousand long-lived objects,
# and with Python's own thresholds all of them are walked every few dozen cases.
_COLLECTIONS = (50_000, 10, 5)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_LARGE_BLOCK = 1 << 20


@functools.cache
def tune_process() -> None:
    """Tune this process; later calls do nothing."""
    # Kernels of a case are tiny, and several workers share a machine: threads would only compete.
    torch.set_num_threads(1)
    # Imports leave half a million objects, which no collection needs to walk again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    _give_large_blocks_back()


# Sessions opened between two collections that walk everything, half a second each. Until then,
# sessions that nobody closed keep their address space: with 128, a process that ran many tests had
# a mapping of 25 GB, and could fork no more.
_OPENED_BETWEEN = 32
_opened = itertools.count(1)


def spare_collections() -> None:
    """Let the collections of a session that is about to open walk what it makes, and no more.

    sglang collects garbage whenever it captures, and what an engine imported, with the cached
    sessions, is a million objects: walking them took an eighth of the time of a campaign.
    """
    # Garbage among what is set aside here, such as closed sessions that refer to themselves, is
    # freed by the next collection of everything.
    if next(_opened) % _OPENED_BETWEEN == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def _give_large_blocks_back() -> None:
    """Let malloc return blocks of a MiB and more to the system when they are freed."""
    # By itself glibc raises that bound to the largest block that it ever saw freed, up to 32 MiB.
    # From then on the blocks of large cases split the heap into pieces that are never returned.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:  # other C libraries have no such call
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)
