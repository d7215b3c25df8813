"""A target in a child process: its deaths become findings, its noise changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, load_case
from fuzzgraph.errors import AdapterUnavailable, InvalidCase, UsageError
from fuzzgraph.repro import NotStandalone
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker import Limits, WorkerClient, WorkerFailed, open_client

_HERE = Path(__file__).parent
HEALTHY, CRASHES, HANGS, LEAVES, REFUSES, NOISY, HARNESS_FAULT = range(1, 8)

Opener = Callable[..., WorkerClient]


def case(behaviour: int, *, pages: int = 64, seq_len: int = 1) -> Case:
    """Two steps of one request on a target that behaves as its head count says."""
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=seq_len),))
    config = EngineConfig(num_q_heads=behaviour, kv_pool_pages=pages)
    return Case(schema_version=1, config=config, steps=(step, step))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    """One child for all tests: it starts again by itself, which is part of what is tested."""
    folder = tmp_path_factory.mktemp("worker")
    with open_client(Setup(target="fragile:FragileTarget"), paths=[_HERE], folder=folder) as client:
        yield client


def test_a_healthy_case_comes_back_without_findings(shared: WorkerClient) -> None:
    verdict = shared.run_case(case(HEALTHY))
    assert (verdict.findings, verdict.steps) == ((), 2)
    assert verdict.case == case(HEALTHY)


def test_a_signal_becomes_a_survival_finding_with_stage_and_step(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    assert (finding.oracle, finding.symptom, finding.stage, finding.step) == (
        "survival", "signal", "replay", 1,
    )  # fmt: skip
    assert "SIGSEGV" in finding.message


def test_a_child_that_leaves_at_capture_is_found_there(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(case(LEAVES)).findings
    assert (finding.symptom, finding.stage, finding.step) == ("exception", "capture", -1)
    assert "exit code 7" in finding.message


def test_an_engine_that_dies_while_it_is_recorded_has_no_script_and_goes_on(
    shared: WorkerClient,
) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    deaths = shared.deaths
    with pytest.raises(NotStandalone, match="the engine's process ended by SIGSEGV"):
        shared.standalone_script(case(CRASHES), finding)
    assert shared.deaths == deaths
    assert shared.run_case(case(HEALTHY)).findings == ()


def test_after_a_death_the_next_case_runs_in_a_new_child(shared: WorkerClient) -> None:
    shared.run_case(case(HEALTHY))
    before = shared.pid
    shared.run_case(case(CRASHES))
    assert shared.run_case(case(HEALTHY)).findings == ()
    assert shared.pid not in (before, None)


def test_a_child_without_an_answer_in_time_is_killed_and_found_hanging(tmp_path: Path) -> None:
    with open_client(
        Setup(target="fragile:FragileTarget"),
        paths=[_HERE],
        folder=tmp_path,
        limits=Limits(case_seconds=3),
    ) as client:
        pid = client.pid
        (finding,) = client.run_case(case(HANGS)).findings
    assert (finding.symptom, finding.stage, finding.step) == ("hang", "replay", 0)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_case_that_killed_the_child_is_on_disk(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    assert load_case(Path(str(finding.detail["case"]))) == case(CRASHES)
    assert load_case(shared.folder / "running.json") == case(CRASHES)


def comes_to_say(log: Path, text: str) -> bool:
    """Whether a log that another thread writes holds this text, within ten seconds."""
    deadline = time.monotonic() + 10
    while text not in (log.read_text() if log.exists() else ""):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_what_the_engine_prints_is_in_the_log_and_not_in_the_protocol(
    shared: WorkerClient,
) -> None:
    assert shared.run_case(case(NOISY)).findings == ()
    log = shared.folder / "worker.log"
    assert comes_to_say(log, '{"type": "Ready"}')
    assert comes_to_say(log, "noise on stderr")


def test_an_engine_that_dies_while_its_lines_are_looked_for_has_none_and_goes_on(
    shared: WorkerClient,
) -> None:
    (deadly,) = shared.run_case(case(CRASHES)).findings
    assert shared.engine_lines(case(CRASHES), deadly) == ()
    detail = {name: value for name, value in deadly.detail.items() if name != "child"}
    finding = msgspec.structs.replace(deadly, detail=detail)
    pid = shared.run_case(case(HEALTHY)) and shared.pid
    assert shared.engine_lines(case(CRASHES), finding) == ()
    assert shared.run_case(case(HEALTHY)).findings == () and shared.pid != pid


def test_a_refusal_while_lines_are_looked_for_ends_nothing(
    shared: WorkerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    asked = msgspec.structs.replace(finding, detail={})
    assert shared.engine_lines(case(REFUSES), asked) == ()
    assert "no line of the engine: " in capsys.readouterr().err


def test_a_deadly_finding_is_confirmed_in_a_fresh_child_each_time(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    deaths = shared.deaths
    assert shared.confirm(case(CRASHES), finding, 2).confirmed == "2/2"
    assert shared.deaths == deaths + 2


def test_a_finding_that_does_not_show_again_is_rated_zero(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(case(CRASHES)).findings
    assert shared.confirm(case(HEALTHY), finding, 1).confirmed == "0/1"


def test_a_refusal_crosses_the_border_with_its_class(shared: WorkerClient) -> None:
    with pytest.raises(AdapterUnavailable, match="'fragile' is not installed"):
        shared.run_case(case(REFUSES))
    with pytest.raises(InvalidCase, match="kv_pool_pages"):
        shared.run_case(case(HEALTHY, pages=1, seq_len=9))


def test_a_fault_of_the_harness_is_no_finding(shared: WorkerClient) -> None:
    with pytest.raises(WorkerFailed, match="a mistake in the harness"):
        shared.run_case(case(HARNESS_FAULT))
    assert shared.run_case(case(HEALTHY)).findings == ()


def test_a_child_that_dies_while_opening_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="exit code 1 while it opened.*a library is missing"):
        open_client(Setup(target="fragile:DiesWhileOpening"), paths=[_HERE], folder=tmp_path)


def test_a_target_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened") as caught:
        open_client(Setup(target="fragile:NoSuchTarget"), paths=[_HERE], folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_temporary_folder_goes_with_its_worker() -> None:
    with open_client(Setup(target="fragile:FragileTarget"), paths=[_HERE]) as client:
        folder = client.folder
        assert client.run_case(case(HEALTHY)).steps == 2
    assert not folder.exists()


def test_a_worker_in_the_folder_of_another_clone_runs_the_parents_fuzzgraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fuzzgraph").mkdir()
    (tmp_path / "fuzzgraph" / "__init__.py").write_text("raise ImportError('of another clone')\n")
    monkeypatch.chdir(tmp_path)
    with open_client(
        Setup(target="fragile:FragileTarget"), paths=[_HERE], folder=tmp_path / "w"
    ) as client:
        assert client.run_case(case(HEALTHY)).findings == ()


def test_a_death_tells_that_no_server_has_its_config(shared: WorkerClient) -> None:
    seen = shared.run_case(case(LEAVES, pages=65)).findings[0]
    assert shared.confirm(case(LEAVES, pages=65), seen, 2).unserved == "no server starts like this"
    assert shared.confirm(case(LEAVES), seen, 1).unserved == ""
