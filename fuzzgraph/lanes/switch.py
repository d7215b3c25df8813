"""Turns the lanes on: under `lanes()` interpreted Triton kernels run vectorised and checked.

Triton's interpreter is not a public interface and changes between versions. The lanes run only with
versions that they were tested with; with any other, kernels run in the stock interpreter, and the
report says so.
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
from fuzzgraph.lanes.host_pointers import OutOfReach
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.versions import TESTED_TRITON, clash_with_numpy, refusal

__all__ = ["TESTED_TRITON", "Lanes", "lanes"]


class Lanes:
    """Launches interpreted kernels over lanes; called in place of the interpreter's own executor.

    Args:
        regions: names memory by address; accesses are then held against payloads too.
        vouched: tensors that pointers loaded from memory may lead to.
        fresh: tensors without content yet: reading an element before a kernel wrote it is
            reported. Call `mark_written` for what anything else writes.
        off: why every launch is left to Triton's own interpreter; "" runs them over lanes.

    Attributes:
        is_out_of_reach: tells of tensors that lie where no kernel reaches, whose launch is refused;
            None where nobody knows.
        watch: counts launches of compiled kernels while it is set.
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
        self.is_out_of_reach: OutOfReach | None = None
        self.regions = regions
        self._vouched = tuple(vouched)
        # By storage, since views of one storage share its elements: one flag a byte, of which a
        # tensor uses as many as its storage has elements.
        self._fresh = {
            storage.data_ptr(): np.zeros(storage.nbytes(), np.bool_)
            for storage in (tensor.untyped_storage() for tensor in fresh)
        }
        self._kept = tuple(fresh)  # or freed memory could come back under the same address

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel, in place of `GridExecutor.__call__`."""
        if reason := self._off or _refusal():
            self.report.launches += 1
            self.report.unchecked_launches[reason] += 1
            return _run_stock(executor, args, kwargs)
        # Not at the top: everything behind it imports Triton.
        from fuzzgraph.lanes.interpreting import call_kernel

        # Past the modes of torch: each look at an argument's shape or address would go through all.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            call_kernel(
                executor,
                args,
                kwargs,
                self.report,
                regions=self.regions,
                vouched=self._vouched,
                written=self._written if self._fresh else None,
                is_out_of_reach=self.is_out_of_reach,
            )
        return None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Run every interpreted launch inside; does nothing if Triton is not imported."""
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
        """Count all of a fresh tensor as written."""
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
    """Inside, every interpreted launch runs over lanes, with each access checked.

    Args:
        regions: see `Lanes`; `vouched` and `fresh` too.

    Yields:
        What the launches have shown so far.

    Raises:
        ModuleNotFoundError: Triton is not installed.
        UsageError: only compiled kernels were launched, so that nothing was checked; raised at the
            end, unless something else was raised inside.
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
        UsageError: this Triton's interpreter does not work with this numpy.
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
