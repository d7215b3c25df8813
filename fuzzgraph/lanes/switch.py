"""The switch: under `lanes()` interpreted Triton kernels run vectorised, outside nothing changed.

What is inside Triton's interpreter changes between versions. The lanes run with the versions that
they were tested with; with any other, kernels run in the stock interpreter, and the report says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.lanes.regions import RegionMap
from fuzzgraph.lanes.report import LaneReport

__all__ = ["TESTED_TRITON", "Lanes", "lanes"]

TESTED_TRITON = ("3.7.1",)


class Lanes:
    """Launches interpreted kernels over lanes; called in place of the interpreter's own executor.

    Args:
        regions: names memory by address; accesses are then held against payloads too.
        vouched: tensors that pointers loaded from memory may lead to.
        fresh: tensors that hold nothing yet: reading an element before a kernel wrote it is
            reported. What else writes them has to be told by `mark_written`.
    """

    def __init__(
        self,
        *,
        regions: RegionMap | None = None,
        vouched: Sequence[torch.Tensor] = (),
        fresh: Sequence[torch.Tensor] = (),
    ) -> None:
        self.report = LaneReport()
        self.regions = regions
        self._vouched = tuple(vouched)
        self._fresh = {
            storage.data_ptr(): np.zeros(storage.nbytes(), np.bool_)
            for storage in (tensor.untyped_storage() for tensor in fresh)
        }
        self._kept = tuple(fresh)  # or their addresses would name other memory

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch; what `GridExecutor.__call__` does."""
        if reason := _refusal():
            self.report.refused = reason
            self.report.launches += 1
            return _stock_call()(executor, *args, **kwargs)
        from fuzzgraph.lanes.interpreting import call_kernel

        call_kernel(
            executor,
            args,
            kwargs,
            self.report,
            regions=self.regions,
            vouched=self._vouched,
            written=self._written if self._fresh else None,
        )
        return None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Run every interpreted launch inside; does nothing while Triton was not imported."""
        module = sys.modules.get("triton.runtime.interpreter")
        if module is None:
            yield
            return
        _stock_call()
        executors: Any = module.GridExecutor
        before = executors.__call__

        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return self(executor, *args, **kwargs)

        executors.__call__ = call
        try:
            yield
        finally:
            executors.__call__ = before

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Count a tensor of the fresh ones as written."""
        table = self._written(tensor)
        if table is not None:
            table[...] = True

    def _written(self, tensor: torch.Tensor) -> npt.NDArray[np.bool_] | None:
        """bool [elements of the extent], a part of the table of the tensor's storage."""
        table = self._fresh.get(tensor.untyped_storage().data_ptr())
        if table is None or not tensor.numel():
            return None
        first = int(tensor.storage_offset())
        spread = zip(tensor.shape, tensor.stride(), strict=True)
        elements = 1 + sum((size - 1) * stride for size, stride in spread)
        return table[first : first + elements]


@contextmanager
def lanes(
    *,
    regions: RegionMap | None = None,
    vouched: Sequence[torch.Tensor] = (),
    fresh: Sequence[torch.Tensor] = (),
) -> Iterator[LaneReport]:
    """Run every interpreted launch inside over lanes, with each access checked.

    Args:
        regions: see `Lanes`; `vouched` and `fresh` too.

    Yields:
        What the launches have shown so far.

    Raises:
        ModuleNotFoundError: Triton is not installed.
    """
    import triton.runtime.interpreter  # noqa: F401

    launcher = Lanes(regions=regions, vouched=vouched, fresh=fresh)
    launcher.report.refused = _refusal()
    with launcher.installed():
        yield launcher.report


def _refusal() -> str:
    """Why the lanes are not for this Triton; "" if they are."""
    import triton

    if triton.__version__ in TESTED_TRITON:
        return ""
    return (
        f"lanes: Triton {triton.__version__} was not tested, kernels run in the stock interpreter."
        f" Use Triton {' or '.join(TESTED_TRITON)}."
    )


_STOCK: list[Any] = []


def _stock_call() -> Any:
    """The interpreter's own launch, whatever stands in its place now."""
    if not _STOCK:
        from triton.runtime.interpreter import GridExecutor

        _STOCK.append(GridExecutor.__call__)
    return _STOCK[0]
