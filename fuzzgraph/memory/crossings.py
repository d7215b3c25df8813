"""Crossings between host and device, gathered: the host waits at each, however little moves.

A read of a device's memory waits until the device has done all that it was given, and so does a
copy of pageable memory to it. A step looks at dozens of small tensors; one by one, it would wait
for each. On a CPU nothing is gathered: a copy would only cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from fuzzgraph.rules.comparison import bits, same_bits

# The size of every dtype divides it, so that each part of a packed tensor can be viewed as its own.
_ALIGNED = 16


class Crossings:
    """What crosses between the host and one device.

    Args:
        device: where guarded memory lies.
        gathered: whether the host waits at each crossing, as at a device's; the emulated device
            takes the same way.
    """

    def __init__(self, device: torch.device, *, gathered: bool) -> None:
        self._device = device
        self.gathered = gathered

    def to_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same tensors on the host, by one crossing; themselves where nothing is gathered."""
        if not self.gathered:
            return list(tensors)
        return _together(tensors, self._device, lambda packed: packed.cpu())

    def to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of the host on the device, by one crossing; themselves where the device is the
        host."""
        if not self.gathered:
            return [tensor.to(self._device) for tensor in tensors]
        return _together(tensors, None, lambda packed: packed.to(self._device))

    def same(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
        """Whether the two of each pair agree in shape, dtype and every bit; asked at once."""
        if not self.gathered:
            return [same_bits(one, two) for one, two in pairs]
        return _same_at_once([*pairs])


def _same_at_once(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    alike = [one.shape == two.shape and one.dtype == two.dtype for one, two in pairs]
    differ = [
        (bits(one) != bits(two)).any()
        for (one, two), comparable in zip(pairs, alike, strict=True)
        if comparable
    ]
    told = iter(torch.stack(differ).tolist() if differ else ())
    return [comparable and not next(told) for comparable in alike]


def _together(
    tensors: Sequence[torch.Tensor],
    device: torch.device | None,
    move: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Pack tensors into one on their device (None: the host's), move that, and unpack it."""
    if not tensors:
        return []
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    packed = torch.empty(end, dtype=torch.uint8, device=device)
    for start, tensor in zip(starts, tensors, strict=True):
        raw = bits(tensor)  # not every dtype can be copied
        _part(packed, start, raw).copy_(raw)
    moved = move(packed)
    return [_part(moved, start, tensor) for start, tensor in zip(starts, tensors, strict=True)]


def _part(packed: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    """The bytes from `start` on as a tensor of this shape and dtype."""
    part = packed[start : start + like.nbytes]
    return part.view(like.dtype).view(like.shape)
