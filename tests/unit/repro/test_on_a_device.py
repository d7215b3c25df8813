"""Scripts of findings on a GPU: what they do there, on the emulated device, and what they say where
there is none. None of them has run on a GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.open_target import Opened, _recording_on_a_cpu
from fuzzgraph.repro import NotStandalone, export_pytest, export_script, standalone_script
from fuzzgraph.run.spec import Device, Setup
from fuzzgraph.targets import open_target
from tests.fakes import FakeRunner
from tests.quality.test_planted_faults import shown_by_operations, stored
from tests.unit.repro.emulating import EmulatedCuda

ON_A_GPU = Setup(fault="vllm-pr-37442-empty-rows-unwritten", device="cuda", graphs="device")
_DEVICES: tuple[Device, ...] = ("cpu", "cuda")
SHOWN = (
    "sglang-pr-24587-kv-indices-in-pages",  # a red zone
    "sglang-pr-25529-draft-cache-loc-not-padded",  # the second replay of a graph
    "vllm-pr-37442-empty-rows-unwritten",  # memory of the graph that nobody writes, in two worlds
    "vllm-pr-55341-workspace-grows-after-capture",  # two graphs, with and without a past
    "sglang-pr-6998-block-table-reallocated",  # addresses
    "vllm-pr-57094-zero-by-zero",  # the replay beside the eager run
    "vllm-pr-25490-plan-remembers-last-batch",  # an operation that raises
)


@cache
def found(name: str) -> Finding:
    execution = Execution(open_fault(name))
    findings = execution.run_case(stored(name)).findings
    execution.close()
    return shown_by_operations(findings)


@pytest.mark.parametrize("name", SHOWN)
def test_a_script_captures_its_graphs_and_shows_the_finding_by_replays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = found(name)
    text = standalone_script(stored(name), finding, open_fault(name), "cuda")
    device = EmulatedCuda(monkeypatch)
    code, printed = device.run(text)
    assert code == 1 and finding.buffer in printed
    assert device.default == "cuda"
    assert device.replays >= len(device.graphs) > 0
    assert all(graph.names for graph in device.graphs)
    healthy = standalone_script(stored(name), finding, open_target("builtin"), "cuda")
    assert EmulatedCuda(monkeypatch).run(healthy) == (0, "Not reproduced.\n")


def test_what_no_operation_of_a_graph_writes_is_poisoned_before_each_replay() -> None:
    """A capture would hold the poison of one world, and each replay write it."""
    name = ON_A_GPU.fault
    text = standalone_script(stored(name), found(name), open_fault(name), "cuda")
    tree = ast.parse(text)
    [graph] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("graph_")
    ]
    called = {node.func.id for node in ast.walk(graph) if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)}  # fmt: skip
    assert "unwritten" in called and "poison" not in called


@pytest.fixture(scope="module")
def script() -> str:
    name = ON_A_GPU.fault
    return standalone_script(stored(name), found(name), open_fault(name), "cuda")


def ran(text: str, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [sys.executable, *words, str(path)], capture_output=True, text=True, check=False
    )


needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@needs_no_gpu
def test_a_script_ends_in_one_line_where_there_is_no_gpu(script: str, tmp_path: Path) -> None:
    done = ran(script, tmp_path / "repro.py", "-I")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "This needs a GPU: torch sees no CUDA or HIP device here.\n"


def test_a_script_says_at_its_top_that_it_runs_on_a_gpu(script: str) -> None:
    top = " ".join((ast.get_docstring(ast.parse(script)) or "").split())
    assert "It runs on a GPU: memory lies there, and each graph is captured by" in top
    assert "or 3 without a GPU" in top
    assert "Requires torch, a CUDA or HIP device." in top
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert "fuzzgraph" not in imported


def test_kernels_are_compiled_on_a_gpu_and_interpreted_on_a_cpu() -> None:
    name = "sglang-pr-24587-kv-indices-in-pages"
    config = msgspec.structs.replace(stored(name).config, kernels="triton")
    case = msgspec.structs.replace(stored(name), config=config)
    texts = [standalone_script(case, found(name), open_fault(name), device) for device in _DEVICES]
    for text in texts:
        compile(text, "repro.py", "exec", dont_inherit=True)
    assert ["@triton.jit" in text for text in texts] == [True, True]
    assert ["TRITON_INTERPRET" in text for text in texts] == [True, False]


def test_a_script_for_a_cpu_captures_nothing() -> None:
    name = ON_A_GPU.fault
    text = standalone_script(stored(name), found(name), open_fault(name))
    assert "cuda" not in text and "as_graph" not in text and "poison(" in text


def test_the_operations_of_a_finding_on_a_gpu_are_recorded_on_a_cpu() -> None:
    finding = found(ON_A_GPU.fault)
    opened = Opened(ON_A_GPU, open_fault(ON_A_GPU.fault), FakeRunner(), lambda: None)
    record = _recording_on_a_cpu(opened).record
    text = export_script(stored(ON_A_GPU.fault), finding, ON_A_GPU, record=record, proven=False)
    assert "graph = torch.cuda.CUDAGraph()" in text
    compile(text, "repro.py", "exec", dont_inherit=True)


def test_an_engine_that_needs_its_device_has_no_script_of_operations() -> None:
    setup = msgspec.structs.replace(ON_A_GPU, fault="", target="nowhere:Target")
    opened = Opened(setup, open_target("builtin"), FakeRunner(), lambda: None)
    record = _recording_on_a_cpu(opened).record
    assert record is not None
    with pytest.raises(NotStandalone, match="it cannot be recorded without its device: target="):
        record(stored(ON_A_GPU.fault), found(ON_A_GPU.fault))


# ---- files that run the case through FuzzGraph


@needs_no_gpu
def test_a_file_that_needs_fuzzgraph_asks_for_the_gpu_first(tmp_path: Path) -> None:
    text = export_script(stored(ON_A_GPU.fault), found(ON_A_GPU.fault), ON_A_GPU, recorded=False)
    assert "    a CUDA or HIP device, and a torch for it" in text
    done = ran(text, tmp_path / "repro.py")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "This needs a GPU: torch sees no CUDA or HIP device here.\n"


@needs_no_gpu
def test_a_test_of_a_finding_on_a_gpu_is_skipped_without_one(tmp_path: Path) -> None:
    text = export_pytest(stored(ON_A_GPU.fault), found(ON_A_GPU.fault), ON_A_GPU)
    done = ran(
        text, tmp_path / "test_repro.py", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"
    )
    assert done.returncode == 0 and "needs a CUDA or HIP device" in done.stdout


def test_exports_of_what_an_oracle_saw_need_no_sanitizer() -> None:
    setup = msgspec.structs.replace(ON_A_GPU, sanitizer="memcheck")
    finding = found(ON_A_GPU.fault)
    assert "sanitizer" not in export_pytest(stored(ON_A_GPU.fault), finding, setup)
    by_tool = msgspec.structs.replace(finding, oracle="sanitizer", symptom="kernel_error")
    text = export_pytest(stored(ON_A_GPU.fault), by_tool, setup)
    assert "sanitizer='memcheck'" in text and "compute-sanitizer, of the CUDA toolkit" in text
