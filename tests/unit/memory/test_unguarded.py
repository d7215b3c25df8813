"""Memory of a device that no guard covers is counted by stage; an allocator that a test counts in
takes the place of a GPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.execution import Execution
from fuzzgraph.memory import GuardedMemory, UnguardedBytes
from fuzzgraph.memory.mode_stack import beneath_all_modes
from fuzzgraph.reporting.plain_text import finding_head
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target
from tests.fakes import case


class Allocator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the fresh memory of every operation, as an allocator below the guard does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {one.untyped_storage()._cdata for one in args if isinstance(one, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage()._cdata not in known:
            self.asked += out.untyped_storage().nbytes()
        return out


def test_what_operations_allocate_under_the_guard_is_covered() -> None:
    memory, allocator = GuardedMemory("cpu"), Allocator()
    memory.asked = lambda: allocator.asked
    unguarded = UnguardedBytes(memory)
    with memory.intercept("engine"), beneath_all_modes(allocator), unguarded.during("open"):
        held = torch.empty(100_000, dtype=torch.float32)
        held.fill_(2)
        held[10:20].add_(held[:10] * 3)
    assert allocator.asked >= 400_000
    assert unguarded.take() == {}


def test_what_compiled_code_asks_for_is_not_covered_and_told_once() -> None:
    memory = GuardedMemory("cpu")
    asked = [0]
    memory.asked = lambda: asked[0]
    unguarded = UnguardedBytes(memory)
    with memory.intercept("engine"), unguarded.during("capture"):
        asked[0] += 1 << 20
        with memory.unguarded():  # the harness' own
            asked[0] += 4 << 20
    assert unguarded.take() == {"capture": 1 << 20}
    assert unguarded.take() == {}


class Workspaces:
    """The built-in engine, whose replays take workspaces below the dispatcher."""

    name = "workspaces"

    def __init__(self, fault: Any, asked: list[int]) -> None:
        self._target: Any = fault
        self.unwrapped = self._target
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: Any, graphs: Any) -> Any:
        memory, asked = graphs.memory, self._asked
        memory.asked = lambda: asked[0] + memory.seen_bytes
        session = self._target.open(config, graphs)
        captured, prepared = session.capture, session.prepare_replay

        def capture() -> None:
            captured()
            asked[0] += 3 << 20

        def prepare_replay(batch: Any) -> None:
            prepared(batch)
            asked[0] += 8192

        session.capture, session.prepare_replay = capture, prepare_replay
        return session


@pytest.mark.parametrize("graphs", ["emulated", "recorder"])
def test_a_verdict_and_its_findings_tell_of_it(graphs: Any) -> None:
    from fuzzgraph.faults import open_fault
    from tests.quality.test_planted_faults import stored

    name = "sglang-pr-24587-kv-indices-in-pages"
    target: Any = Workspaces(open_fault(name), [0])
    verdict = Execution(target, Setup(graphs=graphs)).run_case(stored(name))
    assert verdict.unguarded["capture"] == 3 << 20
    assert verdict.unguarded["prepare"] % 8192 == 0
    total = sum(verdict.unguarded.values())
    assert verdict.findings[0].detail["unguarded"] == total
    assert "note     3.0 MiB that the engine asked for" in "\n".join(
        finding_head(verdict.findings[0])
    )


def test_a_cpu_counts_nothing() -> None:
    verdict = Execution(open_target("builtin"), Setup()).run_case(case(1, 2))
    assert verdict.unguarded == {}
