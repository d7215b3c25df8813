"""Files that need FuzzGraph: the pytest file, the script of last resort, and the issue text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.errors import NotExecuted
from fuzzgraph.execution import Execution
from fuzzgraph.finding import Finding
from fuzzgraph.repro import export_issue, export_pytest, export_script, verify
from fuzzgraph.repro.files import file_names
from fuzzgraph.run.events import Setup, finding_id
from fuzzgraph.targets.builtin import BuiltinTarget
from tests.quality.test_oracles_find_their_faults import EXCLUSIVES
from tests.unit.repro.faulty import KINDS, once, shrinking

READS = next(kind for kind in KINDS if kind.name == "history")
ENGINE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.quality.test_oracles_find_their_faults import EXCLUSIVES
from tests.unit.repro.faulty import KINDS
def make():
    return next(kind for kind in KINDS if kind.name == "history").target()
"""


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    (tmp_path / "engine_of_mine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    return Setup(target="engine_of_mine:make")


def broken(message: str = "the text", **changes: object) -> Finding:
    finding = Finding(
        oracle="contract",
        clause="metadata",
        target="builtin",
        step=0,
        mode="decode",
        buffer="seq_lens",
        symptom="broken_contract",
        stage="replay",
        message=message,
    )
    return msgspec.structs.replace(finding, **changes)


def test_the_pytest_file_fails_with_the_finding(tmp_path: Path, setup: Setup) -> None:
    text = export_pytest(READS.case, READS.finding(), setup)
    path = tmp_path / "test_repro.py"
    path.write_text(text)
    assert verify(path, times=1) == "1/1"


def test_the_pytest_file_passes_on_the_healthy_engine(tmp_path: Path) -> None:
    path = tmp_path / "test_repro.py"
    path.write_text(export_pytest(READS.case, READS.finding(), BuiltinTarget()))
    assert verify(path, times=1) == "0/1"


def test_the_test_is_named_by_clause_buffer_and_digest() -> None:
    text = export_pytest(READS.case, READS.finding(), BuiltinTarget())
    assert "def test_history_req_pool_indices_" in text


def test_what_operations_cannot_show_becomes_a_script_through_fuzzgraph(
    tmp_path: Path, setup: Setup
) -> None:
    finding = msgspec.structs.replace(READS.finding(), symptom="missing")
    text = export_script(READS.case, finding, setup)
    path = tmp_path / "repro.py"
    path.write_text(text)
    assert "Requires FuzzGraph" in text
    assert verify(path, times=1) == "1/1"


HANDING_OVER = next(each for each in EXCLUSIVES if each.oracle == "handover")


def test_a_script_about_what_is_handed_over_says_the_rule_and_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ENGINE.partition("from tests")[0] + (
        "from tests.unit.repro.test_through import HANDING_OVER\n"
        "def make():\n    return HANDING_OVER.opened()\n"
    )
    (tmp_path / "engine_handing_over.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = Execution(HANDING_OVER.opened()).run_case(HANDING_OVER.case).findings
    finding = msgspec.structs.replace(finding, target="builtin")
    setup = Setup(target="engine_handing_over:make", isolation="off")
    path = tmp_path / "repro.py"
    path.write_text(text := export_script(HANDING_OVER.case, finding, setup))
    assert "The rule 'fits': numbers handed over are large enough" in text
    assert "no operation shows it" in text
    assert "max_kv_len is 8 in the graph, the eager run of the same batch has 16" in text
    assert verify(path, times=1) == "1/1"


def test_an_unproven_script_gives_way_to_one_through_fuzzgraph() -> None:
    """The healthy engine shows no such finding, so its operations cannot either."""
    text = export_script(READS.case, READS.finding(), BuiltinTarget())
    assert "NEEDS_FUZZGRAPH = True" in text
    assert "did not show the finding" in text


def test_without_time_to_record_a_script_runs_its_case_through_fuzzgraph(
    tmp_path: Path, setup: Setup
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(export_script(READS.case, READS.finding(), setup, recorded=False))
    assert "there was no time to record its operations" in path.read_text()
    assert verify(path, times=1) == "1/1"


def test_a_target_of_the_current_folder_is_found_by_a_script_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_this_folder.py").write_text(ENGINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    setup = Setup(target="engine_of_this_folder:make")
    text = export_script(READS.case, READS.finding(), setup, recorded=False)
    assert f"(it was found in {tmp_path})" in " ".join(text.split())
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "repro.py"
    path.write_text(text)
    assert verify(path, times=1) == "1/1"


def test_a_script_that_cannot_run_here_says_so_in_one_line_and_shows_nothing(
    tmp_path: Path, setup: Setup
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(export_script(READS.case, READS.finding(), setup, recorded=False))
    (tmp_path / "engine_of_mine.py").unlink()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("This cannot run here: ") and done.stderr.count("\n") == 1


def test_a_target_that_is_gone_leaves_a_script_that_cannot_be_executed(
    tmp_path: Path, setup: Setup
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(export_script(READS.case, READS.finding(), setup, recorded=False))
    (tmp_path / "engine_of_mine.py").unlink()
    with pytest.raises(NotExecuted, match="This cannot run here: target='engine_of_mine:make'"):
        verify(path, times=1)


def test_an_engine_of_its_own_process_is_run_through_fuzzgraph() -> None:
    class Isolated(BuiltinTarget):
        isolated = True

    text = export_script(once(4), broken(), Isolated(name="far"))
    assert "dict(target='far')" in text.replace('"', "'")


@pytest.mark.parametrize(
    "hostile",
    ['"""\nimport os\nos._exit(7)\n"""', "'''\\", "{0!r}", "`code` | <b> # x\n\n# y", "\x00\x1b["],
)
def test_text_of_a_finding_is_data_in_every_export(hostile: str) -> None:
    finding = broken(hostile, buffer=hostile, target=hostile)
    case, setup = shrinking(), Setup(target="builtin")
    script = export_script(case, finding, setup, proven=False)
    for text in (script, export_pytest(case, finding, setup)):
        compile(text, "export", "exec")
        assert "\nimport os\nos._exit(7)" not in text
    issue = export_issue(case, finding, setup)
    assert [line for line in issue.splitlines() if line.startswith("# ")] == issue.splitlines()[:1]


def test_the_issue_tells_case_finding_and_how_to_reproduce() -> None:
    kind = next(kind for kind in KINDS if kind.name == "red-zone")
    finding = msgspec.structs.replace(kind.finding(), confirmed="3/3")
    text = export_issue(kind.case, finding, Setup(target="builtin", fault="mine"))
    assert text.startswith(
        "# builtin: A decode replay writes 10 elements past the end of decode.kv\\_indices\n"
    )
    assert "| **0** | **decode** | **graph** | **2/2** | **0:9 1:9** |" in text
    assert "`python repro.py`" in text
    assert f"`pytest {file_names(finding_id(finding.key))['pytest']}`" in text
    assert "The case shows in 3 of 3 fresh sessions." in text
    assert "- Allocated at: `kv_indices.py:" in text


def test_an_issue_without_a_rate_claims_none() -> None:
    assert "fresh sessions" not in export_issue(once(4), broken(), Setup())
