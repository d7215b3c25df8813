"""An engine that keeps a buffer twice, on the host and on the device: a stale copy is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution

Tensor = torch.Tensor

TO_HOST: dict[str, Callable[[Tensor], Tensor]] = {
    "cpu()": lambda lens: lens.cpu(),
    "to the word": lambda lens: lens.to("cpu"),
    "by keyword": lambda lens: lens.to(device="cpu"),
    "without waiting": lambda lens: lens.to("cpu", non_blocking=True),
    "with a dtype": lambda lens: lens.to("cpu", torch.int64),
    "to a host tensor": lambda lens: lens.to(torch.empty(1, dtype=torch.int64, device="cpu")),
    "as_tensor": lambda lens: torch.as_tensor(lens, device="cpu"),
}
TO_DEVICE: dict[str, Callable[[Tensor, torch.device], Tensor]] = {
    "to the device": lambda lens, device: lens.to(device),
    "to its name": lambda lens, device: lens.to(device.type),
    "by keyword": lambda lens, device: lens.to(device=device, non_blocking=True),
    "as_tensor": lambda lens, device: torch.as_tensor(lens, device=device),
}


def case() -> Case:
    """Rows grow from one step to the next."""
    steps = tuple(
        ReplayStep(rows=tuple(BatchRow(request=row, seq_len=3 * (number + 1)) for row in range(2)))
        for number in range(2)
    )
    return Case(schema_version=1, config=EngineConfig(capture_bs=(2,)), steps=steps)


def findings(page: ModuleType, mirror: Callable[[Any], None], *, updated: bool) -> list[str]:
    """Buffers with a finding where metadata is made of a copy of the lengths."""

    class MirrorSession(page.TinySession):  # type: ignore[name-defined, misc]
        def __init__(self, config: EngineConfig, graphs: Any) -> None:
            super().__init__(config, graphs)
            mirror(self)

        def prepare(self, batch: Any, padded_bs: int) -> None:
            self.original[: batch.raw_bs] = torch.from_numpy(batch.seq_lens)
            if updated:
                self.copy.copy_(self.original)
            lens = self.copy[: batch.raw_bs].cpu().numpy()
            super().prepare(replace(batch, seq_lens=lens), padded_bs)

    class MirrorTarget(page.TinyTarget):  # type: ignore[name-defined, misc]
        def open(self, config: EngineConfig, graphs: Any) -> Any:
            return MirrorSession(config, graphs)

    with_mirror = Execution(MirrorTarget())
    try:
        return [one.buffer for one in with_mirror.run_case(case()).findings]
    finally:
        with_mirror.close()


def on_host(convert: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    def mirror(session: Any) -> None:
        session.original, session.copy = session.seq_lens, convert(session.seq_lens)

    return mirror


def on_device(convert: Callable[[Tensor, torch.device], Tensor]) -> Callable[[Any], None]:
    def mirror(session: Any) -> None:
        session.original = torch.ones(len(session.seq_lens), dtype=torch.int64, device="cpu")
        session.copy = convert(session.original, session.graphs.device)

    return mirror


@pytest.mark.parametrize("convert", TO_HOST.values(), ids=TO_HOST)
def test_a_stale_mirror_on_the_host_is_found(
    page: ModuleType, convert: Callable[[Tensor], Tensor]
) -> None:
    assert "kv_indices" in findings(page, on_host(convert), updated=False)


@pytest.mark.parametrize("convert", TO_HOST.values(), ids=TO_HOST)
def test_a_mirror_that_is_kept_up_to_date_is_none_of_our_business(
    page: ModuleType, convert: Callable[[Tensor], Tensor]
) -> None:
    assert findings(page, on_host(convert), updated=True) == []


@pytest.mark.parametrize("convert", TO_DEVICE.values(), ids=TO_DEVICE)
def test_a_stale_copy_on_the_device_is_found(
    page: ModuleType, convert: Callable[[Tensor, torch.device], Tensor]
) -> None:
    assert "kv_indices" in findings(page, on_device(convert), updated=False)


@pytest.mark.parametrize("convert", TO_DEVICE.values(), ids=TO_DEVICE)
def test_a_copy_on_the_device_that_is_kept_up_to_date_is_silent(
    page: ModuleType, convert: Callable[[Tensor, torch.device], Tensor]
) -> None:
    assert findings(page, on_device(convert), updated=True) == []
