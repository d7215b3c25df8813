"""Turns what a launch of a model did wrong into the records of all kernels."""

from __future__ import annotations

import torch

from fuzzgraph.accesses import Access, Misuse
from fuzzgraph.kernel_models.memory import Stray
from fuzzgraph.lanes.argument_regions import RegionMap
from fuzzgraph.lanes.report import LaneReport

__all__ = ["LaunchReport"]


class LaunchReport:
    """The report of one launch.

    Args:
        kernel: its name.
        source: the documentation that says what it reads and asks for.
        into: takes the records.
        regions: names memory by address; None if nothing does.
        called_at: the engine's line that called the kernel; '' names the documentation instead.
    """

    def __init__(
        self,
        kernel: str,
        source: str,
        into: LaneReport,
        regions: RegionMap | None = None,
        called_at: str = "",
    ) -> None:
        self._kernel = kernel
        self._source = source
        self._into = into
        self._regions = regions
        self._called_at = called_at or source

    def misuse(self, argument: str, rule: str, got: str) -> None:
        """An argument's content breaks a rule of the kernel."""
        self._into.add_misuse(Misuse(self._kernel, argument, rule, got, self._source))

    def stray(self, found: Stray) -> None:
        """An access missed its argument."""
        address = found.tensor.data_ptr()
        if self._read_whole(found, address):
            return
        region = None if self._regions is None else self._regions.region_at(address)
        self._into.add_access(
            Access(
                kernel=self._kernel,
                source=self._called_at,
                kind=found.kind,
                where="outside" if found.mapped else "unmapped",
                buffer=found.argument,
                region="" if region is None else region[0],
                program=(found.first, 0, 0),
                programs=len(found.offsets),
                offset=int(found.offsets[0]),
                low=int(found.offsets.min()),
                high=int(found.offsets.max()),
                elements=len(found.offsets),
                extent=_extent(found.tensor),
                address=address,
            )
        )

    def _read_whole(self, found: Stray, address: int) -> bool:
        """Whether the argument is the first part of memory that kernels may access to its end."""
        end = 0 if self._regions is None else self._regions.end_from(address)
        last = address + int(found.offsets.max()) * found.tensor.element_size()
        return found.offsets.min() >= 0 and last < end


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one, gaps included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
