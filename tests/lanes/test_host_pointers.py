"""A launch on memory of the host is refused, as Triton refuses it where there is a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.transfers import on_host
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from tests.lanes.kernels import planted

Tensor = torch.Tensor


@contextmanager
def opening() -> Iterator[GuardedMemory]:
    """A session that makes its buffers."""
    memory = GuardedMemory()
    with memory.intercept("engine"), cuda_on_cpu():
        yield memory


def launched_on(x: Tensor) -> None:
    out = torch.zeros(4, device="cuda")
    planted.copy[(1,)](x, out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4


def by_a_context() -> Tensor:
    with torch.device("cuda"):
        return torch.ones(4)


def by_default_device() -> Tensor:
    torch.set_default_device("cpu")  # as an engine names its own, which is the session's here
    try:
        return torch.ones(4)
    finally:
        torch.set_default_device(None)


REACHED: dict[str, Callable[[], Tensor]] = {
    "memory of the device": lambda: torch.ones(4, device="cuda"),
    "pinned memory": lambda: torch.ones(4, pin_memory=True),
    "memory that was pinned": lambda: torch.ones(4).pin_memory(),
    "a copy to the device": lambda: torch.ones(4).to("cuda"),
    "made of the device's": lambda: torch.ones_like(torch.zeros(4, device="cuda")),
    "memory on a device object": lambda: torch.ones(4, device=torch.zeros(1, device="cuda").device),
    "memory on a context's device": by_a_context,
    "memory on the default device": by_default_device,
    "made by the way": lambda: (
        torch.nn.functional.one_hot(torch.zeros(4, device="cuda").long()).view(4).float()
    ),
}
OUT_OF_REACH: dict[str, Callable[[], Tensor]] = {
    "no device named": lambda: torch.ones(4),
    "the word": lambda: torch.ones(4, device="cpu"),
    "lifted": lambda: torch.tensor([1.0] * 4),
    "of numpy": lambda: torch.from_numpy(torch.ones(4).numpy()),
    "copied to the host": lambda: torch.ones(4, device="cuda").cpu(),
    "a part": lambda: torch.ones(8)[2:6],
    "made of the host's": lambda: torch.zeros(4) + 1,
    "on the device of the host's": lambda: torch.ones(4, device=torch.zeros(1).device),
}


@pytest.fixture(scope="module")
def operator_of_an_engine() -> Iterator[Callable[[Tensor], Tensor]]:
    """It is Python, and asks for memory past all modes of torch."""
    library = torch.library.Library("host_pointers", "DEF")
    library.define("ones(Tensor x) -> Tensor")
    library.impl("ones", lambda x: torch.ones(4, device=x.device), "CompositeExplicitAutograd")
    yield torch.ops.host_pointers.ones
    library._destroy()


def test_a_kernel_runs_on_what_an_operator_of_the_engine_asked_for(
    operator_of_an_engine: Callable[[Tensor], Tensor],
) -> None:
    with opening():
        launched_on(operator_of_an_engine(torch.zeros(4, device="cuda")))


@pytest.mark.parametrize("make", REACHED.values(), ids=REACHED)
def test_a_kernel_runs_on_what_may_be_in_its_reach(make: Callable[[], Tensor]) -> None:
    with opening():
        launched_on(make())


@pytest.mark.parametrize("make", OUT_OF_REACH.values(), ids=OUT_OF_REACH)
def test_a_kernel_is_refused_pageable_memory_of_the_host(make: Callable[[], Tensor]) -> None:
    with opening(), pytest.raises(ValueError, match="copy: argument x is memory of the host"):
        launched_on(make())


def test_an_argument_that_no_program_uses_counts() -> None:
    with opening():
        x, out = torch.ones(4), torch.zeros(4, device="cuda")
        with pytest.raises(ValueError, match="argument x is memory of the host"):
            planted.copy[(1,)](x, out, 0, BLOCK=4)
        with pytest.raises(ValueError, match="argument x is memory of the host"):
            planted.copy[(0,)](x, out, 4, BLOCK=4)


def test_a_tensor_without_elements_has_no_address_to_ask_for() -> None:
    with opening():
        out = torch.zeros(4, device="cuda")
        planted.copy[(1,)](torch.empty(0), out, 0, BLOCK=4)


def test_a_capture_is_refused_it_too() -> None:
    with opening() as memory:
        x, out = torch.ones(4), torch.zeros(4, device="cuda")
    with pytest.raises(ValueError, match="argument x is memory of the host"):
        Recorder(memory).capture(lambda: planted.copy[(1,)](x, out, 4, BLOCK=4), key="k")


def handed_over() -> Tensor:
    return on_host(torch.ones(4))


@pytest.mark.parametrize(
    "make", [handed_over, lambda: handed_over()[:4], lambda: handed_over().to(torch.float64)]
)
def test_a_step_is_refused_the_mirror_that_it_was_handed(make: Callable[[], Tensor]) -> None:
    with opening() as memory:
        out = torch.zeros(4, device="cuda")
    with memory.over_lanes(), pytest.raises(ValueError, match="argument x is memory of the host"):
        planted.copy[(1,)](make(), out, 4, BLOCK=4)


def test_a_step_may_launch_on_memory_of_which_nobody_knows() -> None:
    with opening() as memory:
        out = torch.zeros(4, device="cuda")
    with memory.over_lanes():
        planted.copy[(1,)](torch.ones(4), out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4
