"""Host and device are told apart on a CPU, and mixed as little as CUDA allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.execution import Execution
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.side_requests import SESSION_CPU
from fuzzgraph.targets import open_target
from tests.two_memories import Mixing, TwoMemories

Operation = Callable[[torch.Tensor, torch.Tensor], object]


@pytest.fixture
def memories() -> Iterator[TwoMemories]:
    with TwoMemories().watching() as watched:
        yield watched


REFUSED: dict[str, Operation] = {
    "comparison": lambda device, host: host >= device,
    "mask": lambda device, host: device.masked_fill_(host > 1, 0),
    "selection": lambda device, host: device.index_select(0, host),
    "gather": lambda device, host: device.gather(0, host),
    "device index": lambda device, host: host[device],
    "put by a device index": lambda device, host: host.__setitem__(device, host.clone()),
    "host values": lambda device, host: device.__setitem__(host, host.clone()),
    "joined": lambda device, host: torch.cat((device, host)),
    "equal": lambda device, host: torch.equal(device, host),
    "scalar of the device": lambda device, host: host + device.sum(),
    "numpy": lambda device, host: device.numpy(),
}

ALLOWED: dict[str, Operation] = {
    "copy": lambda device, host: device.copy_(host),
    "slice": lambda device, host: device[1:].copy_(host[1:]),
    "host index": lambda device, host: device[host],
    "values of the device": lambda device, host: device.__setitem__(host, device * 2),
    "scalar of the host": lambda device, host: device + host.sum(),
    "moved to the host": lambda device, host: device.cpu() + host,
    "moved to the device": lambda device, host: device + host.to(device.device),
    "made beside": lambda device, host: torch.arange(3, device=device.device) >= device,
    "read": lambda device, host: torch.tensor(device.tolist()) + host,
    "numpy of a copy": lambda device, host: device.cpu().numpy(),
}


def _both() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0, 1, 2], device=SESSION_CPU), torch.tensor([0, 1, 2])


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_what_cuda_refuses_is_kept(memories: TwoMemories, operation: Operation) -> None:
    operation(*_both())
    assert len(memories.mixings) == 1


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_cuda_takes_is_not(memories: TwoMemories, operation: Operation) -> None:
    operation(*_both())
    assert not memories.mixings


def test_memory_that_nobody_named_is_never_refused() -> None:
    before = torch.arange(3)
    with TwoMemories().watching() as memories:
        device, host = _both()
        assert memories.side_of(before) == ""
        torch.cat((before, device))
        torch.cat((before, host))
    assert not memories.mixings


def test_guarded_memory_keeps_its_side_when_an_engine_is_done(memories: TwoMemories) -> None:
    guarded = GuardedMemory()
    with guarded.intercept("engine"):
        mine, mirror = torch.zeros(4, device=SESSION_CPU), torch.zeros(4)
    assert (memories.side_of(mine), memories.side_of(mirror)) == ("device", "host")
    assert memories.side_of(mine[:0]) == memories.side_of(mine[:, None].expand(4, 900)) == "device"
    assert memories.side_of(mine.cpu()) == "host"
    torch.equal(mine.cpu(), mirror)
    assert not memories.mixings
    torch.equal(mine, mirror)
    assert len(memories.mixings) == 1


def test_a_mixing_names_the_line_that_made_it(memories: TwoMemories) -> None:
    device, host = _both()
    torch.mul(device, host)
    (found,) = memories.mixings
    assert isinstance(found, Mixing) and not found.ours
    assert "test_two_memories.py" in found.line and "aten::mul" in found.what


@pytest.mark.parametrize("name", ["builtin", "builtin-triton"])
def test_a_healthy_engine_of_our_own_mixes_nothing(memories: TwoMemories, name: str) -> None:
    case = validate(
        Case(
            schema_version=1,
            config=EngineConfig(capture_bs=(1, 2)),
            steps=tuple(
                ReplayStep(rows=(BatchRow(request=0, seq_len=length, new_tokens=1),))
                for length in (3, 4)
            ),
        )
    )
    execution = Execution(open_target(name))
    assert execution.run_case(case).findings == ()
    execution.close()
    assert not memories.mixings
