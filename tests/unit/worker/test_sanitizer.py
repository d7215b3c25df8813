"""A case under compute-sanitizer, from the call to the finding; an executable of the test's own
takes the tool's place, and the emulated device the GPU's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import fuzzgraph
from fuzzgraph.accesses import KernelError
from fuzzgraph.case import encode_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.reporting.html.evidence import evidence
from fuzzgraph.reporting.plain_text import finding_head
from fuzzgraph.run.spec import Setup
from fuzzgraph.run_options import checked_setup
from fuzzgraph.worker.sanitizer import Sanitizer, SanitizerFailed
from fuzzgraph.worker.sanitizer.findings import findings_of
from fuzzgraph.worker.sanitizer.one_case import Guarded, Mark, Ran
from fuzzgraph.worker.sanitizer.placing import placed
from fuzzgraph.worker.sanitizer.report import read_report
from tests.fakes import case, finding
from tests.quality.test_planted_faults import stored
from tests.unit.worker.bad_kernels import install_tool, invalid_write

NOTHING = "========= ERROR SUMMARY: 0 errors\n"
TWO = "========= ERROR SUMMARY: 2 errors\n"
ROOT = Path(__file__).parents[3]


def setup_of(target: str, tool: Any = "memcheck") -> Setup:
    own = f"tests.unit.worker.bad_kernels:{target}" if target != "builtin" else target
    return Setup(target=own, graphs="emulated", sanitizer=tool)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH, for the tool."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path / "bin"


def test_an_error_of_the_engine_is_told_with_its_step_buffer_and_distance(on_path: Path) -> None:
    called = install_tool(on_path, TWO)
    setup = setup_of("Overrun")
    checked = Sanitizer(setup).check(case(1, 2))
    [found] = findings_of(checked, case(1, 2), setup.target)
    assert (found.oracle, found.clause, found.symptom) == ("sanitizer", "writes", "kernel_error")
    assert (found.step, found.stage, found.mode) == (1, "replay", "decode")
    assert found.buffer == "_store_kernel at store.py:123: misaligned write"
    assert "in the red zone behind " in found.message and "8 bytes past its end" in found.message
    assert "kv_indices" in found.kernel_errors[0].buffer
    assert found.detail["count"] == len(checked.found) > 1
    # An error of our own kernel is no finding.
    assert [error.where for error in checked.ours] == ["_attention at own.py:3"]
    assert "('--tool', 'memcheck')" in called.read_text()
    assert "--padding" not in called.read_text()  # this release of the tool does not know it


def test_replay_tells_what_the_tool_alone_sees(
    on_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_tool(on_path, invalid_write(0x7000_0000_0000) + "========= ERROR SUMMARY: 1 error\n")
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(case(1)))
    words = ["replay", str(path), "--graphs", "emulated", "--sanitizer", "memcheck"]
    assert run_command([*words, "--times", "1", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    [found] = said["findings"]
    assert (found["oracle"], found["confirmed"]) == ("sanitizer", "1/1")
    assert said["setup"]["sanitizer"] == "memcheck"
    assert found["kernel_errors"][0]["kernel"] == "_store_kernel"


def test_replay_is_silent_where_the_tool_is(
    on_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_tool(on_path, NOTHING)
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(case(1)))
    words = ["replay", str(path), "--graphs", "emulated", "--sanitizer", "memcheck"]
    assert run_command(words) == 0
    assert capsys.readouterr().out.startswith("nothing found in ")


def test_a_finding_of_an_oracle_carries_the_report_of_its_case(
    on_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install_tool(on_path, invalid_write(0x7000_0000_0000) + "========= ERROR SUMMARY: 1 error\n")
    name = "sglang-pr-24587-kv-indices-in-pages"
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(stored(name)))
    words = ["replay", str(path), "--fault", name, "--graphs", "emulated", "--times", "1"]
    assert run_command([*words, "--sanitizer", "memcheck"]) == 1
    said = capsys.readouterr().out
    assert "(oracle footprint)" in said
    assert "kernels  memcheck: _store_kernel at store.py:123: misaligned write" in said


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("========= Error: device not supported\n", "It said last: Error: device not supported"),
        ("", "left no summary"),
        ("========= ERROR SUMMARY: 4 errors\n", "reports 4 errors in a form that is not known"),
        (NOTHING, "process ended with exit code 1 before the case did"),
    ],
)
def test_a_tool_without_a_usable_report_ends_in_one_line(
    report: str, said: str, on_path: Path
) -> None:
    install_tool(on_path, report, runs=False)
    with pytest.raises(SanitizerFailed) as raised:
        Sanitizer(setup_of("builtin")).check(case(1))
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_target_that_cannot_be_opened_is_refused_as_without_the_tool(on_path: Path) -> None:
    install_tool(on_path, NOTHING)
    setup = Setup(graphs="emulated", sanitizer="memcheck", target="nowhere:Target")
    with pytest.raises(UsageError, match="target='nowhere:Target' cannot be opened"):
        Sanitizer(setup).check(case(1))


def test_a_missing_tool_is_told_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    words = ["replay", "case.json", "--graphs", "emulated", "--sanitizer", "racecheck"]
    assert run_command(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "sanitizer='racecheck': compute-sanitizer is neither on PATH nor in bin of" in line


@pytest.mark.parametrize("root", ["CUDA_HOME", "CUDA_PATH"])
def test_the_tool_is_found_in_the_toolkit(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_tool(tmp_path / "bin", NOTHING)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(root, str(tmp_path))
    assert checked_setup(graphs="emulated", sanitizer="initcheck").sanitizer == "initcheck"


def test_rocm_has_no_such_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2.41133")
    with pytest.raises(AdapterUnavailable, match=r"built for ROCm \(HIP 6.2.41133\)"):
        checked_setup(graphs="emulated", sanitizer="memcheck")


def test_the_recorder_has_no_compiled_kernels_to_look_at() -> None:
    with pytest.raises(UsageError, match="sanitizer='memcheck' looks at kernels that are compiled"):
        checked_setup(sanitizer="memcheck")


# ---- where, and in whose work

MARKS = (
    Mark(stage="check", step=-1, reported=0),
    Mark(stage="open", step=-1, reported=5),
    Mark(stage="replay", step=0, reported=50),
    Mark(stage="check", step=0, reported=100),
    Mark(stage="eager", step=0, reported=200),
)
LIBRARY = "at_native_kernel(float *)+0x40"


def ran(**changes: Any) -> Ran:
    buffer = Guarded(
        name="kv_indptr",
        offset=512,
        nbytes=16,
        before=64,
        after=64,
        itemsize=4,
        allocated_at="a.py:3",
    )
    return Ran(marks=MARKS, address=0x1000, capacity=4096, guarded=(buffer,), **changes)


def at(offset: int, place: str = LIBRARY, address: int = 64) -> Any:
    """An error that the report tells of at this byte."""
    text = invalid_write(address, place).encode()
    [one] = read_report(text, "memcheck").errors
    one.at = offset
    return one


@pytest.mark.parametrize(
    ("offset", "stage", "ours"),
    [
        (2, "open", True),
        (10, "open", False),
        (60, "replay", False),
        (150, "replay", True),
        (250, "eager", False),
    ],
)
def test_the_stage_is_that_in_which_the_report_grew(offset: int, stage: str, ours: bool) -> None:
    """A kernel without a file is ours where nothing of the engine's ran."""
    found = placed(at(offset), ran())
    assert (found.stage, found.ours) == (stage, ours)


def test_a_kernel_of_the_engines_is_never_ours_and_ours_never_the_engines() -> None:
    home = Path(fuzzgraph.__file__).parent
    engine = "k+0x10 in {}:7"
    assert not placed(at(150, engine.format("/engine/k.py")), ran()).ours
    assert not placed(at(150, engine.format(home / "targets/builtin/attention/k.py")), ran()).ours
    assert placed(at(60, engine.format(home / "reference/triton_eager.py")), ran()).ours


def test_a_process_that_died_leaves_the_error_without_its_step() -> None:
    found = placed(at(150), None)
    assert (found.step, found.ours, found.error.buffer) == (-1, False, "")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (0x1000 + 512 + 4, "in kv_indptr (4 elements, allocated at a.py:3), at element 1"),
        (0x1000 + 512 + 20, "in the red zone behind kv_indptr (4 elements, allocated at a.py:3), "
         "4 bytes past its end"),
        (0x1000 + 511, "in the red zone before kv_indptr (4 elements, allocated at a.py:3), "
         "1 byte before its start"),
        (0x1000 + 3000, "in guarded memory that no buffer has"),
        (0x9000, ""),
    ],
)  # fmt: skip
def test_an_address_is_named_by_the_guarded_buffer_that_has_it(address: int, place: str) -> None:
    assert placed(at(60, address=address), ran()).error.place == place


def test_text_and_page_of_a_finding_show_the_kernels() -> None:
    errors = tuple(
        KernelError(tool="racecheck", kind="race of a write", kernel=f"k{number}", source="k.cu:1")
        for number in range(10)
    )
    told: Finding = finding()
    assert not any("compute-sanitizer" in str(fact) for fact in evidence(told).facts)
    told = msgspec.structs.replace(told, kernel_errors=errors)
    head = "\n".join(finding_head(told))
    assert "kernels  racecheck: k0 at k.cu:1: race of a write; 1 such error" in head
    assert "and 2 other lines" in head
    assert ("compute-sanitizer", "and 2 other lines") in evidence(told).facts
