"""What stands in for a GPU: names of torch.cuda, captures, replaced names, absent modules."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.graphs import open_engine
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import PaddingRule
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_graph import POOL, CudaGraphs
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.import_stubs import allow_absent, leave_out
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.session import GraphSession

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_cuda_is_the_cpu_within_the_block_only() -> None:
    before = {name: getattr(torch.cuda, name) for name in STREAMS if hasattr(torch.cuda, name)}
    with cuda_on_cpu({**DEVICE, **STREAMS}):
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.cuda.get_device_capability() == (9, 0)
    assert {name: getattr(torch.cuda, name) for name in before} == before
    with pytest.raises((AssertionError, RuntimeError)):
        torch.cuda.get_device_capability()


@without_gpu
def test_pinned_memory_is_a_copy_on_the_host() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with torch.no_grad(), memory.intercept("engine"), cuda_on_cpu():
        made = torch.arange(3, device="cpu")
        pinned = made.pin_memory()
        made.zero_()
        assert pinned.numpy().tolist() == [0, 1, 2]


@without_gpu
def test_the_properties_of_what_is_no_device_are_refused() -> None:
    with cuda_on_cpu(DEVICE):
        assert torch.cuda.get_device_properties("cuda:0").major == 9
        with pytest.raises(RuntimeError, match="fa3"):
            torch.cuda.get_device_properties("fa3")


@without_gpu
def test_torchs_compiler_knows_each_replaced_name_by_a_function_of_its_own() -> None:
    silent = [each for each in STREAMS.values() if each is not STREAMS["Stream"]]
    assert len(set(map(id, silent))) == len(silent)


@without_gpu
def test_a_buffer_on_cuda_is_named_by_the_line_that_asked_for_it() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with torch.no_grad(), memory.intercept("engine"), cuda_on_cpu():
        held = torch.zeros(8, device="cuda")
    assert len(held) == 8
    assert [one.allocated_at.partition(":")[0] for one in memory.regions] == ["test_stand_ins.py"]


@without_gpu
def test_streams_and_events_have_nothing_to_wait_for() -> None:
    with cuda_on_cpu(STREAMS):
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.current_stream())
            event.record(stream)
        torch.cuda.synchronize()
        assert event.query()


def test_what_an_engine_captures_by_torch_cuda_graph_is_replayed() -> None:
    graphs = open_engine("recorder", GuardedMemory(capacity=1 << 22))
    total, step = torch.zeros(1), torch.ones(1)
    with replaced_names([torch.cuda], CudaGraphs(graphs, "decode").names()):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=None):
            total.add_(step)
    step.fill_(5)
    before = total.item()
    graph.replay()
    assert total.item() == before + 5
    assert graphs.captured == 1


def test_a_graph_in_a_pool_of_its_own_is_the_engines_error_where_graphs_share_one() -> None:
    graphs = open_engine("recorder", GuardedMemory(capacity=1 << 22))
    with replaced_names([torch.cuda], CudaGraphs(graphs, "prefill", shared=True).names()):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=POOL):  # type: ignore[arg-type]
            pass
        alone = "a graph of the prefill runner is captured into None, not into the pool"
        with pytest.raises(EngineError, match=alone), torch.cuda.graph(graph):
            pass
        with pytest.raises(EngineError, match=alone):
            torch.cuda.CUDAGraph().capture_begin(capture_error_mode="global")


def test_names_are_put_back_after_an_error_and_missing_ones_are_left_out() -> None:
    module = SimpleNamespace(kept=1)
    with pytest.raises(ZeroDivisionError), replaced_names([module], {"kept": 2, "lacks": 3}):
        assert vars(module) == {"kept": 2}
        raise ZeroDivisionError
    assert vars(module) == {"kept": 1}


def test_a_single_module_of_a_package_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    allow_absent({"json._compiled": "for this test"})
    assert importlib.import_module("json._compiled.part").launch is not None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("json._another")
    for name in ("json._compiled", "json._compiled.part"):
        sys.modules.pop(name, None)


def test_a_module_that_is_left_out_is_not_imported_where_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "this", raising=False)
    leave_out({"this": "for this test"})
    module = importlib.import_module("this")
    monkeypatch.delitem(sys.modules, "this")
    assert getattr(module, "__file__", None) is None and "s" not in vars(module)


def test_padded_write_slots_are_reserved_or_skipped() -> None:
    assert fields.write_slots("out_cache_loc").padding == PaddingRule("reserved", 0)
    assert fields.write_slots("slot_mapping", skip=-1).padding == PaddingRule("skip", -1)


def test_what_is_observed_ends_where_the_graph_and_the_offsets_end() -> None:
    class Session(GraphSession):
        fields = (
            fields.lengths(fill=1),
            fields.per_token("positions"),
            fields.offsets("kv_indptr", repeats="seq_lens"),
            fields.slot_indices("kv_indices"),
        )
        buffers = {
            "seq_lens": torch.tensor([2, 1, 9, 9]),
            "positions": torch.arange(8),
            "kv_indptr": torch.tensor([0, 2, 3, 9, 9]),
            "kv_indices": torch.arange(10, 20),
        }

        def graph_key(self) -> int:
            return 2

        def static_buffers(self, key: object) -> dict[str, torch.Tensor]:
            return self.buffers

        def padded_size(self, batch: object) -> tuple[int, int]:
            return 2, 4

    batch = SimpleNamespace(raw_bs=1, num_tokens=1)
    seen = Session().observe(batch)  # type: ignore[arg-type]
    assert {name: part.tolist() for name, part in seen.metadata.items()} == {
        "seq_lens": [2, 1],
        "positions": [0, 1, 2, 3],
        "kv_indptr": [0, 2, 3],
        "kv_indices": [10, 11, 12],
    }


def test_a_buffer_that_moved_since_its_capture_shows() -> None:
    class Session(GraphSession):
        fields = (fields.lengths(fill=1),)

        def __init__(self) -> None:
            super().__init__()
            self.seq_lens = torch.ones(4)

        def graph_key(self) -> int:
            return 4

        def static_buffers(self, key: object) -> dict[str, torch.Tensor]:
            return {"seq_lens": self.seq_lens}

    session = Session()
    session.remember(4)
    (buffer, captured), *_ = session.captured_addresses().values()
    assert buffer.data_ptr() == captured
    old, session.seq_lens = session.seq_lens, torch.ones(4)
    (buffer, captured), *_ = session.captured_addresses().values()
    assert captured == old.data_ptr() != buffer.data_ptr()
    session.seq_lens = None  # type: ignore[assignment]
    with pytest.raises(EngineError, match="what a graph reads got None for seq_lens"):
        session.captured_addresses()
