"""Whose fault an exception is, by the innermost frame that is somebody's."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuzzgraph import case as fuzzgraph_case
from fuzzgraph.errors import EngineError, HarnessFailed, TargetFailed
from fuzzgraph.execution.blame import Blame
from fuzzgraph.execution.failures import Border, SessionFailed
from fuzzgraph.graphs import open_engine
from fuzzgraph.graphs.drivers import Cuda
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.offline.cuda_on_cpu import ClaimsCuda, CudaMeansCpu
from fuzzgraph.targets.offline.stub import Stub

ENGINE = """
import torch

def fails():
    return [][1]

def misuses_torch():
    return torch.zeros(2).view(3)

def writes_into_another_dtype():
    out = torch.empty(0, dtype=torch.int64)
    return torch.index_select(torch.ones(4), 0, torch.tensor([1, 2]), out=out)

def forbidden(tensor):
    return tensor.tolist()

def asks(thing):
    return thing.missing

def calls(function):
    return function()

def asks_for_a_gpu():
    return torch.cuda.current_device()

def forever(n=0):
    return forever(n + 1) + torch.zeros(1)
"""

TARGET = """
import torch

class Target:
    name = "made-up"

class Stub:
    pass

def fails():
    return [][1]

def misuses_torch():
    return torch.zeros(2).view(3)

def calls(function, *args):
    return function(*args)
"""


def made(monkeypatch: pytest.MonkeyPatch, name: str, source: str, folder: str = "/made/up") -> Any:
    """A module of that name, whose code lies in a file that is not there."""
    module = types.ModuleType(name)
    file = f"{folder}/{name.replace('.', '/')}.py"
    module.__file__ = file
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    return made(monkeypatch, "made_engine.runner", ENGINE, "/elsewhere")


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = made(monkeypatch, "made_target", TARGET)
    module.Target.engine_packages = ("made_engine",)
    return module


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def side(target: Any, function: Callable[[], object]) -> str:
    """Whose fault it is what a function raises."""
    return Blame(target.Target()).side(raised(function))


def test_an_exception_in_the_engine_is_the_engines_also_where_the_target_called_it(
    engine: Any, target: Any
) -> None:
    assert side(target, lambda: target.calls(engine.fails)) == "engine"


def test_an_exception_in_the_targets_own_module_is_the_targets_also_where_the_engine_called_it(
    engine: Any, target: Any
) -> None:
    assert side(target, target.fails) == "target"
    assert side(target, lambda: target.calls(engine.calls, target.fails)) == "target"


def test_what_torch_raises_is_the_fault_of_whoever_called_it(engine: Any, target: Any) -> None:
    assert side(target, target.misuses_torch) == "target"
    assert side(target, lambda: target.calls(engine.misuses_torch)) == "engine"


@pytest.mark.parametrize("no_grad", [torch.no_grad, torch.inference_mode])
def test_guarded_memory_passes_on_what_torch_raises(
    engine: Any, target: Any, no_grad: Callable[[], Any]
) -> None:
    memory = GuardedMemory(capacity=1 << 22)

    def guarded(function: Callable[[], object]) -> None:
        with no_grad(), memory.intercept("engine"):
            function()

    assert side(target, lambda: guarded(lambda: target.calls(engine.misuses_torch))) == "engine"
    assert side(target, lambda: guarded(target.misuses_torch)) == "target"
    assert side(target, lambda: guarded(engine.writes_into_another_dtype)) == "engine"


def test_the_recorder_passes_on_what_torch_raises_and_refuses_in_the_engines_name(
    engine: Any, target: Any
) -> None:
    graphs = open_engine("recorder", GuardedMemory(capacity=1 << 22))

    def captured(function: Callable[[], object]) -> None:
        target.calls(lambda: graphs.capture(function, key="decode"))

    assert side(target, lambda: captured(engine.misuses_torch)) == "engine"
    assert side(target, lambda: captured(target.misuses_torch)) == "target"
    tensor = torch.zeros(2)
    refused = raised(lambda: captured(lambda: engine.forbidden(tensor)))
    assert isinstance(refused, EngineError)
    assert Blame(target.Target()).side(refused) == "engine"


def test_an_error_of_what_a_graph_repeats_is_the_engines_whoever_replays_it(
    engine: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = GuardedMemory(capacity=1 << 22)
    graphs = open_engine("recorder", memory)
    with memory.intercept("engine"), torch.no_grad():
        rows, index = torch.zeros(2), torch.zeros(1, dtype=torch.int64)
        graph = graphs.capture(lambda: torch.index_select(rows, 0, index), key="decode")
        index.fill_(7)
    assert side(target, lambda: target.calls(graph.replay)) == "engine"
    monkeypatch.setattr(memory, "poison_graph_pool", target.fails)
    assert side(target, lambda: engine.calls(graph.replay)) == "target"


def test_what_a_device_tells_where_a_replay_is_waited_for_is_the_engines(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(device: object) -> None:
        raise RuntimeError("CUDA error: invalid argument\nfor debugging consider ...")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    device: Any = SimpleNamespace(_held=False, _device="cuda")
    error = raised(lambda: Cuda.synchronize(device))
    assert str(error) == "CUDA error: invalid argument"
    assert Blame(target.Target()).side(error) == "engine"


FAULT = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("said", "stage", "raises"),
    [
        (FAULT, "prepare", SessionFailed),
        ("HIP error: unspecified launch failure", "replay", SessionFailed),
        (FAULT, "check", HarnessFailed),
        ("CUDA error: invalid argument", "replay", HarnessFailed),
    ],
)
def test_a_kernel_that_failed_on_a_device_is_the_engines_until_a_run_was_waited_for(
    target: Any, monkeypatch: pytest.MonkeyPatch, said: str, stage: str, raises: type[Exception]
) -> None:
    """A device tells of it at the next call, which may be one of the harness' own."""
    source = "def reads(said):\n    raise RuntimeError(said)\n"
    harness = made(monkeypatch, "fuzzgraph.memory.made_up", source)
    with pytest.raises(raises), Border(target.Target()).crossing(stage):
        harness.reads(said)


def test_what_stands_in_for_a_device_passes_on_what_torch_raises(engine: Any, target: Any) -> None:
    def on_a_stand_in(function: Callable[[], object]) -> None:
        with CudaMeansCpu(), ClaimsCuda():
            function()

    assert side(target, lambda: on_a_stand_in(engine.misuses_torch)) == "engine"
    assert side(target, lambda: on_a_stand_in(target.misuses_torch)) == "target"


def test_a_stand_in_that_lacks_what_the_engine_asks_for_is_the_targets_fault(
    engine: Any, target: Any
) -> None:
    assert side(target, lambda: engine.asks(target.Stub())) == "target"
    assert side(target, lambda: engine.asks(None)) == "engine"
    assert side(target, lambda: engine.asks(torch.zeros(1))) == "engine"


def test_fuzzgraphs_own_code_is_to_blame_where_it_raises(engine: Any, target: Any) -> None:
    broken: Any = None
    assert side(target, lambda: fuzzgraph_case.captured_size(broken, "decode", 1)) == "harness"


def test_code_that_calls_itself_without_end_is_to_blame_wherever_it_stops(
    engine: Any, target: Any
) -> None:
    assert side(target, lambda: target.calls(engine.forever)) == "engine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU that answers")
def test_a_gpu_that_is_asked_for_where_there_is_none_is_the_targets_fault(
    engine: Any, target: Any
) -> None:
    assert side(target, lambda: target.calls(engine.asks_for_a_gpu)) == "target"


def test_a_shared_stub_that_lacks_what_the_engine_asks_for_is_the_targets_fault(
    engine: Any, target: Any
) -> None:
    assert side(target, lambda: engine.asks(Stub(present=1))) == "target"
    assert side(target, lambda: engine.asks(SimpleNamespace(present=1))) == "engine"


BACKENDS = """
from abc import ABC, abstractmethod

class Backend(ABC):
    @abstractmethod
    def replay(self):
        pass

class OneBackend(Backend):
    def replay(self):
        self.graphs = self.made()

    def made(self):
        return {}
"""


@pytest.mark.parametrize(
    ("asked", "whose"), [("prepare", "engine"), ("made", "target"), ("graphs", "target")]
)
def test_what_no_class_of_an_interface_has_is_the_fault_of_whoever_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Any, asked: str, whose: str
) -> None:
    backends = made(monkeypatch, "made_engine.backends", BACKENDS, str(tmp_path))
    (tmp_path / "made_engine").mkdir()
    (tmp_path / "made_engine" / "backends.py").write_text(BACKENDS)
    mine = {"replay": lambda self: None, "__module__": "made_target"}
    stand_in = type("StandIn", (backends.Backend,), mine)()
    assert side(target, lambda: getattr(stand_in, asked)) == whose


DERIVED = """
class Backend:
    def __init__(self, windowed=False):
        self.made = True
        self.open(windowed)

    def open(self, windowed):
        if windowed:
            self.offsets = [0]

    def prepare(self):
        return self.offsets

    def read_what_nobody_sets(self):
        return self.other
"""


def _kept(self: Any, *args: Any) -> None:
    super(type(self), self).open(*args)


@pytest.mark.parametrize(
    ("methods", "reads", "whose"),
    [
        ({}, "prepare", "engine"),
        ({"open": _kept}, "prepare", "engine"),
        ({"open": lambda self, windowed: None}, "prepare", "target"),
        ({}, "read_what_nobody_sets", "target"),
    ],
)
def test_what_the_engines_own_methods_leave_unset_is_its_fault_unless_the_target_overrides_them(
    monkeypatch: pytest.MonkeyPatch, target: Any, methods: dict[str, Any], reads: str, whose: str
) -> None:
    backends = made(monkeypatch, "made_engine.derived", DERIVED)
    kind = type("Watched", (backends.Backend,), {**methods, "__module__": "made_target"})
    assert side(target, getattr(kind(), reads)) == whose


def test_an_attribute_that_the_target_asks_for_in_vain_is_its_own_fault(
    monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    backends = made(monkeypatch, "made_engine.derived", DERIVED)
    kind = type("Watched", (backends.Backend,), {"__module__": "made_target"})
    exec("def asks(thing):\n    return thing.offsets", target.__dict__)
    assert side(target, lambda: target.asks(kind())) == "target"


def test_where_engine_and_target_share_a_module_nobody_can_tell(target: Any) -> None:
    target.Target.engine_packages = ("made_target",)
    assert side(target, target.fails) == "engine"
    del target.Target.engine_packages
    assert side(target, target.fails) == "engine"


def test_a_target_in_the_package_of_its_engine_is_told_apart_by_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = made(monkeypatch, "made_both.engine", ENGINE)
    target = made(monkeypatch, "made_both.target", TARGET)
    assert side(target, engine.fails) == "engine"
    assert side(target, target.fails) == "target"


def test_what_lies_beside_the_target_is_the_targets_where_it_names_its_engine(
    monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    beside = made(monkeypatch, "made_helper", ENGINE)
    assert side(target, beside.fails) == "target"
    del target.Target.engine_packages
    assert side(target, beside.fails) == "engine"


def test_the_border_names_the_frame_and_the_way_out(engine: Any, target: Any) -> None:
    border = Border(target.Target())
    with pytest.raises(SessionFailed) as lost:
        border.judge(raised(engine.fails), "prepare")
    assert lost.value.failure.where == "runner.py:5 in fails"
    with pytest.raises(TargetFailed, match="IndexError.* at made_target.py:11 in fails.*Fix it"):
        border.judge(raised(target.fails), "check")
    broken: Any = None
    with pytest.raises(HarnessFailed, match="capture_sizes.py:.*FuzzGraph's own code"):
        border.judge(raised(lambda: fuzzgraph_case.captured_size(broken, "decode", 1)), "check")
