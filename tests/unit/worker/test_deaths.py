"""What a child may do to its parent: symptom and stage are told apart, and the parent goes on.

The planted saboteur is the one of the soak benchmark.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import OutOfTime
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker import Limits, WorkerClient, WorkerFailed, open_client, process
from tests.fakes import finding

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[2] / "benchmarks"
LIMITS = replace(
    Limits(),
    stage_seconds={**Limits().stage_seconds, "eager": 1.0, "capture": 20.0},
    memory_bytes=2 << 30,
)
DEVICE_FAULT, ABORTS, REFUSED_LAUNCH, KILLED_TWICE, ALWAYS_KILLED = range(8, 13)
HANGS = 3


def sabotage(page_size: int, *sizes: int, seq_len: int = 1, ladder: tuple[int, ...] = (6,)) -> Case:
    rows = [BatchRow(request=request, seq_len=seq_len) for request in range(6)]
    steps = tuple(ReplayStep(rows=tuple(rows[:size])) for size in sizes)
    config = EngineConfig(page_size=page_size, capture_bs=ladder, max_context_len=24)
    return Case(schema_version=1, config=config, steps=steps)


@pytest.fixture(scope="module")
def saboteur(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    folder = tmp_path_factory.mktemp("saboteur")
    name = "saboteur:Saboteur"
    with open_client(
        Setup(target=name), paths=[BENCHMARKS], folder=folder, limits=LIMITS
    ) as client:
        yield client


DEATHS = {
    "SIGSEGV": (sabotage(2, 3), "signal", "replay", "ended by SIGSEGV"),
    "os._exit": (sabotage(3, 1, 1, 1), "exception", "prepare", "left with exit code 7"),
    "an endless loop": (sabotage(1, 5), "hang", "eager", "in stage 'eager' for more than 1 s"),
    "a memory hog": (
        sabotage(32, 1, ladder=(1, 2, 4)), "signal", "capture", "took more than 2 GiB of memory",
    ),
    "garbage": (sabotage(16, 1, seq_len=17), "missing", "replay", "sent an invalid reply"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "symptom", "stage", "words"), DEATHS.values(), ids=list(DEATHS))
def test_a_death_is_a_finding_with_symptom_and_stage_and_the_next_case_runs(
    saboteur: WorkerClient, case: Case, symptom: str, stage: str, words: str
) -> None:
    (finding,) = saboteur.run_case(case).findings
    assert finding.symptom == symptom
    assert finding.stage == stage or finding.buffer == "process: garbage", "noticed later"
    assert words in finding.message
    assert saboteur.run_case(sabotage(1, 1)).findings == ()


def test_two_ways_to_die_are_two_findings(saboteur: WorkerClient) -> None:
    cases = (DEATHS["SIGSEGV"][0], DEATHS["garbage"][0])
    keys = {saboteur.run_case(case).findings[0].key for case in cases}
    assert len(keys) == 2


def test_a_flood_of_output_is_no_finding_and_fills_neither_disk_nor_memory(
    saboteur: WorkerClient,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        assert saboteur.run_case(sabotage(1, 4)).findings == ()
    logs = sum(path.stat().st_size for path in saboteur.folder.glob("worker.log*"))
    assert 0 < logs <= 3 << 20
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 << 10, "KiB; the child printed 96 MiB"


def test_a_write_into_a_red_zone_is_found_through_the_border(saboteur: WorkerClient) -> None:
    (finding,) = saboteur.run_case(sabotage(1, 1, 2)).findings
    assert (finding.oracle, finding.buffer, finding.step) == ("footprint", "ring", 1)


def fragile(behaviour: int) -> Case:
    step = ReplayStep(rows=(BatchRow(request=0),))
    return Case(schema_version=1, config=EngineConfig(num_q_heads=behaviour), steps=(step,))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    folder = tmp_path_factory.mktemp("fragile")
    mark = folder / "killed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAGILE_MARK", str(mark))
        with open_client(
            Setup(target="fragile:FragileTarget"), paths=[HERE], folder=folder
        ) as client:
            yield client


def test_a_fault_of_the_device_is_told_from_an_exception_and_ends_the_child(
    shared: WorkerClient,
) -> None:
    pid, restarts = shared.pid, shared.restarts
    found = shared.run_case(fragile(DEVICE_FAULT)).findings
    assert [one.symptom for one in found if one.oracle == "survival"] == ["device_fault"]
    assert "illegal memory access" in str(found[0].detail["device_error"])
    assert shared.restarts == restarts + 1
    assert shared.run_case(fragile(1)).findings == ()
    assert shared.pid != pid


def test_a_launch_that_is_refused_leaves_the_child_alive(shared: WorkerClient) -> None:
    pid, restarts = shared.pid, shared.restarts
    found = shared.run_case(fragile(REFUSED_LAUNCH)).findings
    assert [one.symptom for one in found if one.oracle == "survival"] == ["exception"]
    assert (shared.pid, shared.restarts) == (pid, restarts)


def test_a_runtime_that_aborts_is_a_fault_of_the_device_not_a_signal(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(fragile(ABORTS)).findings
    assert (finding.symptom, finding.stage) == ("device_fault", "replay")
    assert "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION" in finding.message
    assert "largest legal address" in str(finding.detail["device_error"])


def test_what_one_case_printed_accuses_no_later_one(shared: WorkerClient) -> None:
    shared.run_case(fragile(ABORTS))
    (finding,) = shared.run_case(fragile(4)).findings
    assert (finding.symptom, finding.stage) == ("exception", "capture")


def test_a_case_is_innocent_of_kills_from_outside_that_end(shared: WorkerClient) -> None:
    deaths = shared.deaths
    assert shared.run_case(fragile(KILLED_TWICE)).findings == ()
    assert (shared.killed, shared.deaths) == (2, deaths)


def test_a_kill_from_outside_is_counted_whatever_the_child_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAGILE_MARK", str(tmp_path / "killed"))
    with open_client(
        Setup(target="fragile:FragileTarget"), paths=[HERE], folder=tmp_path
    ) as client:
        client._pause = lambda seconds: None
        client.confirm(fragile(KILLED_TWICE), finding(), times=1)
        assert (client.killed, client.deaths) == (2, 0)


def test_a_case_whose_child_is_killed_every_time_is_blamed(shared: WorkerClient) -> None:
    (finding,) = shared.run_case(fragile(ALWAYS_KILLED)).findings
    assert (finding.symptom, finding.buffer) == ("signal", "process: SIGKILL in replay")


def test_a_case_is_cut_off_at_the_last_moment_and_the_next_one_runs(tmp_path: Path) -> None:
    with open_client(
        Setup(target="fragile:FragileTarget"), paths=[HERE], folder=tmp_path
    ) as client:
        client.cut_off(time.monotonic() + 0.2)
        with pytest.raises(OutOfTime, match="the time is up"):
            client.run_case(fragile(HANGS))
        client.cut_off(math.inf)
        assert client.run_case(fragile(1)).findings == ()
        assert client.deaths == 0


def test_after_a_death_a_start_that_fails_is_tried_again_later_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    with open_client(
        Setup(target="fragile:FragileTarget"), paths=[HERE], folder=tmp_path
    ) as client:
        client._pause = pauses.append
        client.run_case(fragile(ABORTS))
        monkeypatch.setattr(process, "module_command", lambda *words: ["/bin/false"])
        with pytest.raises(WorkerFailed, match="left with exit code 1 while it opened 5 times"):
            client.run_case(fragile(1))
    assert pauses == [0.2, 0.4, 0.8, 1.6]
