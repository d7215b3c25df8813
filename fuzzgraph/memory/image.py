"""A copy of guarded memory at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Image:
    """Bytes of the engine's part of an arena, and of the graph pool where it was asked for."""

    engine: torch.Tensor
    pool: torch.Tensor | None
