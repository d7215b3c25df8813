"""Refuses what Triton's launchers refuse of a launch's tensors: memory that no kernel reaches.

They ask the driver for the device's address of each tensor that a kernel is handed, used or not.
Pinned memory of the host has one, and a tensor without elements is not asked for.

Source: Triton 3.7.1, `extractPointer` of backends/nvidia/driver.c and backends/amd/driver.c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OutOfReach = Callable[[torch.Tensor], bool]
"""Whether a tensor lies, for certain, where no kernel reaches: in memory of the host that is not
pinned."""


def check_pointer(
    kernel: Any, name: str, tensor: torch.Tensor, is_out_of_reach: OutOfReach
) -> None:
    """Raise as a launcher would for a tensor in memory of the host.

    Raises:
        ValueError: names kernel and argument.
    """
    if tensor.numel() and is_out_of_reach(tensor):
        raise ValueError(
            f"{kernel.__name__}: argument {name} is memory of the host, which no kernel can access"
        )
