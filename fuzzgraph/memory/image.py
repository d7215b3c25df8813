"""A copy of guarded memory at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Image:
    """Bytes of the engine's part of an arena, and of the graph pool where it was asked for."""

    engine: torch.Tensor
    pool: torch.Tensor | None


class Room:
    """Memory for one image after another, of any session on one device.

    Fresh blocks of this size come from the system page by page, which takes several times as long
    as the copy; a case takes two images, and few cases follow each other on one session.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def image_of(self, engine: torch.Tensor, pool: torch.Tensor | None) -> Image:
        """A copy of these bytes; the image before it is lost."""
        size, more = len(engine), 0 if pool is None else len(pool)
        if len(self._bytes) < size + more or self._bytes.device != engine.device:
            self._bytes = engine.new_empty(size + more)
        image = Image(self._bytes[:size].copy_(engine), None)
        if pool is None:
            return image
        return replace(image, pool=self._bytes[size : size + more].copy_(pool))
