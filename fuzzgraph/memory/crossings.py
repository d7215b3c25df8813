"""Crossings between host and device, gathered: the host waits at each, however little moves.

A read of a device's memory waits until the device has done all that it was given, and so does a
copy of pageable memory to it. A step looks at dozens of small tensors; one by one, it would wait
for each. On a CPU nothing is gathered: a copy would only cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from fuzzgraph.rules.comparison import bits, same_bits


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
        """The same tensors on the host, by one crossing; themselves where nothing is gathered, and
        those that lie on the host already."""
        there = [tensor for tensor in tensors if self._crosses(tensor)]
        moved = iter(_together(there, lambda packed: packed.cpu()))
        return [next(moved) if self._crosses(tensor) else tensor for tensor in tensors]

    def to_device(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of the host on the device, by one crossing; themselves where the device is the
        host."""
        if not self.gathered:
            return [tensor.to(self._device) for tensor in tensors]
        return _together(tensors, lambda packed: packed.to(self._device))

    def same(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
        """Whether the two of each pair, which lie on one side, agree in shape, dtype and every bit;
        the device is asked at once."""
        asked = [*pairs]
        there = iter(_same_at_once([pair for pair in asked if self._crosses(pair[0])]))
        return [next(there) if self._crosses(pair[0]) else same_bits(*pair) for pair in asked]

    def _crosses(self, tensor: torch.Tensor) -> bool:
        """Whether the host waits to read a tensor."""
        # A real device's engine has tensors on the host as well; the emulated one's all count.
        return self.gathered and tensor.is_cpu == (self._device.type == "cpu")


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
    tensors: Sequence[torch.Tensor], move: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Pack tensors of one device into one tensor there, move that, and unpack it."""
    if not tensors:
        return []
    # Wide elements first: each part then begins where its dtype can be viewed. One kernel copies
    # all of them.
    order = sorted(range(len(tensors)), key=lambda at: -tensors[at].itemsize)
    raw = [_flat_bytes(tensors[at]) for at in order]
    parts = move(torch.cat(raw)).split([len(each) for each in raw])
    found = list(tensors)
    for at, part in zip(order, parts, strict=True):
        found[at] = part.view(tensors[at].dtype).view(tensors[at].shape)
    return found


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, [n]."""
    # Not `reshape`: one element that was expanded keeps a stride of 0, and cannot be viewed then.
    return bits(tensor).as_strided((tensor.numel(),), (1,)).view(torch.uint8)
