"""Runs kernel models past every session; what a kernel reads or is given wrongly is an error."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray


class _Strict:
    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(rule)

    def stray(self, found: Stray) -> None:
        raise AssertionError(found)


def strictly() -> AbstractContextManager[None]:
    """Inside, each launch of a model runs at once."""

    def run(kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(_Strict()), kernel, **arguments)

    return routed(run)
