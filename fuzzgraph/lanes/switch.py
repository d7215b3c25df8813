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

from fuzzgraph.errors import UsageError
from fuzzgraph.lanes.argument_regions import RegionMap
from fuzzgraph.lanes.hook import CompiledWatch, ExecutorHook, stock_launch
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.versions import TESTED_TRITON, clash_with_numpy, refusal

__all__ = ["TESTED_TRITON", "Lanes", "lanes"]


class Lanes:
    """Launches interpreted kernels over lanes; called in place of the interpreter's own executor.

    Args:
        regions: names memory by address; accesses are then held against payloads too.
        vouched: tensors that pointers loaded from memory may lead to.
        fresh: tensors that hold nothing yet: reading an element before a kernel wrote it is
            reported. What else writes them has to be told by `mark_written`.
        off: why every launch is left to Triton's own interpreter; "" leaves none to it.

    Attributes:
        watch: counts launches of compiled kernels, while it is set.
    """

    def __init__(
        self,
        *,
        regions: RegionMap | None = None,
        vouched: Sequence[torch.Tensor] = (),
        fresh: Sequence[torch.Tensor] = (),
        off: str = "",
    ) -> None:
        self.report = LaneReport()
        self.watch = CompiledWatch(self.report.count_compiled)
        self._off = off
        self.regions = regions
        self._vouched = tuple(vouched)
        self._fresh = {
            storage.data_ptr(): np.zeros(storage.nbytes(), np.bool_)
            for storage in (tensor.untyped_storage() for tensor in fresh)
        }
        self._kept = tuple(fresh)  # or their addresses would name other memory

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch; what `GridExecutor.__call__` does."""
        if reason := self._off or _refusal():
            self.report.launches += 1
            self.report.unchecked_launches[reason] += 1
            return _run_stock(executor, args, kwargs)
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
        if "triton" not in sys.modules:
            yield
            return
        hook = ExecutorHook()
        hook.set(self)
        self.watch.set()
        try:
            yield
        finally:
            self.watch.remove()
            hook.remove()

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
        UsageError: compiled kernels were launched and none that is interpreted, so that nothing
            was checked; raised at the end, unless something else was raised inside.
    """
    import triton.runtime.interpreter  # noqa: F401

    launcher = Lanes(regions=regions, vouched=vouched, fresh=fresh)
    report = launcher.report
    report.refused = _refusal()
    with launcher.installed():
        yield report
    if report.compiled and not report.launches:
        raise UsageError(f"lanes: {report.compiled_line()}")


def _run_stock(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The interpreter's own launch.

    Raises:
        UsageError: the interpreter and numpy do not go together.
    """
    try:
        return stock_launch()(executor, *args, **kwargs)
    except Exception as error:
        import triton

        if clash := clash_with_numpy(error, triton.__version__, np.__version__):
            raise UsageError(clash) from error
        raise


def _refusal() -> str:
    import triton

    return refusal(triton.__version__)
