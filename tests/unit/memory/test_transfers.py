"""Copies between host and device are copies, also where both lie in the memory of one CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.offline.cuda_on_cpu import CudaMeansCpu

Tensor = torch.Tensor


def shares(one: Tensor, other: Tensor) -> bool:
    one.fill_(1)
    other.fill_(2)
    return bool((one == 2).all())


STAYS: dict[str, Callable[[GuardedMemory], tuple[Tensor, Tensor]]] = {
    "the host's on the host": lambda memory: (x := torch.ones(2, device="cpu"), x.cpu()),
    "memory without a device's name": lambda memory: (x := torch.ones(2), x.to("cpu")),
    "what cpu() gave": lambda memory: (x := device(memory).cpu(), x.cpu()),
    "the device's on the device": lambda memory: (x := device(memory), x.to(memory.device)),
    "by the device's name": lambda memory: (x := device(memory), x.to(memory.device.type)),
    "by a tensor beside it": lambda memory: (x := device(memory), x.to(device(memory))),
    "where no side is named": lambda memory: (x := device(memory), x.to(torch.float32)),
    "a device made anew": lambda memory: (x := device(memory), x.to(x.device)),
}


def device(memory: GuardedMemory) -> Tensor:
    return torch.ones(2, device=memory.device)


@pytest.mark.parametrize("make", STAYS.values(), ids=STAYS)
def test_what_lies_there_already_is_not_copied(
    make: Callable[[GuardedMemory], tuple[Tensor, Tensor]],
) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        assert shares(*make(memory))


def test_what_was_made_of_device_memory_lies_there_too() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        made = torch.zeros_like(device(memory))
        assert not shares(made, made.cpu())


def test_a_step_without_guarded_memory_copies_alike() -> None:
    memory = GuardedMemory()
    with memory.over_lanes():
        x, array = torch.ones(2), np.ones(2)
        assert not shares(x, x.cpu())
        assert not shares(x, x.to("cpu"))
        host = torch.from_numpy(array)
        assert not shares(host, host.to(memory.device))
        mirror = x.cpu()
        assert shares(mirror, mirror.cpu())


def test_memory_asked_for_on_cuda_is_device_memory() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"), CudaMeansCpu():
        x, pinned = torch.ones(2, device="cuda"), torch.ones(2, pin_memory=True)
        assert not shares(x, x.cpu())
        assert shares(x, x.to("cuda:0"))
        assert not shares(pinned, pinned.cuda(non_blocking=True))
        assert shares(pinned, pinned.cpu())


def test_device_memory_is_not_read_as_an_array() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x = device(memory)
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\) first"):
            x.numpy()
        assert x.cpu().numpy().tolist() == [1, 1]


@pytest.mark.parametrize("convert", [lambda x: x.cpu(), lambda x: x.to("cpu")], ids=["cpu", "to"])
def test_a_capture_refuses_a_copy_to_the_host(convert: Callable[[Tensor], Tensor]) -> None:
    memory = GuardedMemory()
    recorder = Recorder(memory)
    with memory.intercept("engine"):
        x = device(memory)
        with pytest.raises(CaptureError, match=r"Tensor\.cpu\(\) read float32\[2\] on the host"):
            recorder.capture(lambda: convert(x), key="k")


def test_outside_of_an_engine_torch_does_as_it_always_does() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x = device(memory)
    array = np.ones(2)
    assert shares(x, x.cpu())
    assert shares(x, x.to("cpu"))
    assert shares(x, torch.as_tensor(x, device="cpu"))
    assert shares(torch.from_numpy(array), torch.as_tensor(array, device="cpu"))
    assert x.numpy().tolist() == [2, 2]
