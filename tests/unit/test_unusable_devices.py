"""A device that cannot be used, or is lost in the middle of a run, is one line, and no finding of
the engine's. torch and drivers are asked at their border; no GPU is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fuzzgraph.worker.process
from fuzzgraph.case import Case
from fuzzgraph.cli.doctor import examine
from fuzzgraph.cli.entry import run_command
from fuzzgraph.errors import AdapterUnavailable, DeviceUnavailable
from fuzzgraph.execution import Execution
from fuzzgraph.process.device_faults import unusable_in
from fuzzgraph.process.devices import require_usable
from fuzzgraph.run.spec import Setup
from fuzzgraph.run_options import checked_setup
from fuzzgraph.targets import open_target
from fuzzgraph.worker import WorkerClient, WorkerFailed
from fuzzgraph.worker.messages import Answer, Open, Ready, Refused, RunCase
from fuzzgraph.worker.process import Child, Ending
from fuzzgraph.worker.serve import RequestHandler
from tests.fakes import case, finding

ADVICE = "\nCUDA kernel errors might be asynchronously reported at some other API call."
BUSY = f"CUDA error: CUDA-capable device(s) is/are busy or unavailable{ADVICE}"
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www.nvidia.com/"
)
ASSERT = f"CUDA error: device-side assert triggered{ADVICE}"
ECC = f"CUDA error: uncorrectable ECC error encountered{ADVICE}"
FALLEN = "NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, GPU has fallen off the bus."
_COMPUTES = Setup(device="cuda", graphs="device")


def raising(text: str, kind: type[Exception] = RuntimeError) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise kind(text)

    return call


@pytest.mark.parametrize(
    ("text", "unusable"),
    [
        (BUSY, True),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", True),
        (TOO_OLD, True),
        (ECC, True),
        (FALLEN, True),
        ("Unable to determine the device handle: GPU is lost.  Reboot the system", True),
        ("NVRM: Xid (PCI:0000:70:00): 31, pid=684430, MMU Fault", False),
        (ASSERT, False),
        ("CUDA error: unspecified launch failure", False),
        ("CUDA error: an illegal memory access was encountered", False),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
        ("the engine's device is busy", False),
    ],
)
def test_what_hardware_does_is_told_from_what_kernels_do(text: str, unusable: bool) -> None:
    assert bool(unusable_in(f"before\n{text}\nafter")) == unusable


@pytest.mark.parametrize(
    ("text", "what", "way_out"),
    [
        (BUSY, "busy or unavailable. Another process", "CUDA_VISIBLE_DEVICES"),
        (TOO_OLD, "is too old (found version 12040). ", "Install the driver that this torch needs"),
        ("CUDA out of memory. Tried to allocate 2.00 MiB", "out of memory", "End what else runs"),
        ("CUDA error: unknown error", "unknown error", "fuzzgraph doctor"),
    ],
)
def test_a_device_that_refuses_is_named_in_one_line_with_the_way_out(
    text: str, what: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "zeros", raising(text))
    with pytest.raises(DeviceUnavailable) as raised:
        require_usable("cuda")
    said = str(raised.value)
    assert said.startswith("device='cuda' cannot be used: ") and len(said.splitlines()) == 1
    assert what in said and way_out in said and "http" not in said


def test_a_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", raising(BUSY))
    require_usable("cpu")


def test_a_driver_that_is_too_old_is_the_reason_why_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", raising(TOO_OLD))
    assert run_command(["run", "--device", "cuda"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "sees no CUDA or HIP device here: The NVIDIA driver on your system is too old" in line
    assert line.endswith("Install the driver that this torch needs, or a torch for this driver.")
    with pytest.raises(AdapterUnavailable):
        checked_setup(device="cuda")


def test_doctor_says_that_a_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", raising(BUSY))
    [check] = [each for each in examine() if each.name == "device"]
    assert check.state == "broken" and "busy or unavailable" in check.found
    assert "graphs" not in [each.name for each in examine()]


def test_a_worker_refuses_to_open_a_device_that_it_cannot_use() -> None:
    """The real answer of a process whose torch has no GPU."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    handler = RequestHandler(lambda stage, step: None)
    answer = handler.answer(Open(setup=_COMPUTES))
    assert isinstance(answer, Refused) and answer.kind == "DeviceUnavailable"
    assert len(answer.message.splitlines()) == 1


def test_a_run_in_this_process_asks_the_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuzzgraph.open_target import open_setup

    monkeypatch.setattr(torch, "zeros", raising(BUSY))
    setup = Setup(device="cuda", graphs="device", isolation="off")
    with pytest.raises(DeviceUnavailable, match="busy or unavailable"):
        open_setup(setup)


# ---- in the middle of a case, on the emulated device


class Failing:
    """The built-in engine, whose replay raises."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        self._target: Any = open_target("builtin")
        self.unwrapped = self._target
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: Any, graphs: Any) -> Any:
        session = self._target.open(config, graphs)

        def replay(batch: Any) -> None:
            raise self._error

        session.replay = replay
        return session


def ran(text: str, graphs: Any = "emulated") -> Any:
    target: Any = Failing(RuntimeError(text))
    return Execution(target, Setup(graphs=graphs)).run_case(case(1))


@pytest.mark.parametrize("text", [BUSY, ECC, FALLEN])
def test_hardware_that_fails_under_an_engine_is_no_finding(text: str) -> None:
    with pytest.raises(DeviceUnavailable, match="the device failed by itself at stage 'replay'"):
        ran(text)


@pytest.mark.parametrize("text", [ASSERT, "CUDA error: unspecified launch failure", "out of slots"])
def test_what_a_kernel_did_is_the_engines_finding(text: str) -> None:
    [found] = ran(text).findings
    assert found.oracle == "survival"


def test_an_engine_on_a_cpu_may_say_what_it_likes() -> None:
    [found] = ran(BUSY, "recorder").findings
    assert found.oracle == "survival"


def test_a_device_that_is_lost_in_our_own_work_is_not_told_as_our_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fuzzgraph.execution.pool_writer.StepState.lay",
        raising("CUDA error: unspecified launch failure"),
    )
    with Opened() as execution, pytest.raises(DeviceUnavailable) as raised:
        execution.run_case(case(1))
    assert "the device was lost outside of the engine's work: CUDA error: unspecified" in str(
        raised.value
    )


class Opened:
    """An execution on the emulated device."""

    def __enter__(self) -> Execution:
        self._execution = Execution(open_target("builtin"), Setup(graphs="emulated"))
        return self._execution

    def __exit__(self, *_: object) -> None:
        self._execution.close()


# ---- between parent and child


class Fake:
    """A worker's parent whose children answer from a script."""

    def __init__(self, tmp_path: Path, *answers: Any) -> None:
        self.pauses: list[float] = []
        self.client = WorkerClient(Open(setup=_COMPUTES), folder=tmp_path, pause=self.pauses.append)
        self.asked: list[type] = []
        self._answers = list(answers)
        pool: Any = self.client._pool
        pool.start = self._start
        pool.kill = self._kill
        pool.prestart = lambda: None
        sender: Any = self.client._sender
        sender.ask = self._ask

    def _start(self) -> Any:
        self.client._pool.child = object()  # type: ignore[assignment]
        return self.client._pool.child

    def _kill(self) -> None:
        self.client._pool.child = None

    def _ask(self, message: Any, wanted: type, seconds: float) -> Any:
        self.asked.append(type(message))
        answer = self._answers.pop(0)
        if isinstance(answer, Ending):
            self._kill()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, one: Case | None = None) -> Any:
        return self.client.run_case(one or case(1))


GONE = DeviceUnavailable("device='cuda' cannot be used: CUDA error: no CUDA-capable device.")
FAULT = Ending("device_fault", "ended by illegal address", "illegal address", "CUDA error: ...")
LOST = Ending("device_fault", "lost its device", "no device", unusable=FALLEN)


def test_a_kernels_fault_is_a_finding_once_the_device_is_there_again(tmp_path: Path) -> None:
    fake = Fake(tmp_path, Ready(), FAULT, GONE, Ready())
    [found] = fake.run().findings
    assert found.symptom == "device_fault"
    assert fake.asked == [Open, RunCase, Open, Open]


def test_a_device_that_does_not_come_back_is_nobodys_finding(tmp_path: Path) -> None:
    fake = Fake(tmp_path, Ready(), FAULT, *[GONE] * 5)
    with pytest.raises(DeviceUnavailable, match="does not come back after a case in which the"):
        fake.run()


def test_the_same_where_the_engines_process_lives(tmp_path: Path) -> None:
    answer = Answer(findings=(finding(),), device_lost=True)
    fake = Fake(tmp_path, Ready(), answer, *[GONE] * 5)
    with pytest.raises(DeviceUnavailable, match="does not come back after a case in which its"):
        fake.run()


@pytest.mark.parametrize("failure", [LOST, DeviceUnavailable("the device failed by itself")])
def test_a_case_whose_device_failed_by_itself_is_run_again(
    failure: Exception, tmp_path: Path
) -> None:
    fake = Fake(tmp_path, Ready(), failure, Ready(), Answer(steps=1))
    assert fake.run().findings == ()
    assert (fake.client.deaths, fake.client.killed, fake.client.restarts) == (0, 0, 1)


@pytest.mark.parametrize("failure", [LOST, DeviceUnavailable("the device failed by itself")])
def test_a_device_that_fails_each_time_ends_the_run_without_a_finding(
    failure: Exception, tmp_path: Path
) -> None:
    fake = Fake(tmp_path, *[Ready(), failure] * 4)
    with pytest.raises(DeviceUnavailable, match="the device failed by itself"):
        fake.run()


def test_a_device_that_cannot_be_opened_at_first_is_not_waited_for(tmp_path: Path) -> None:
    fake = Fake(tmp_path, GONE)
    with pytest.raises(DeviceUnavailable):
        fake.client.start()
    assert fake.pauses == []


def test_a_worker_that_dies_while_it_opens_has_failed(tmp_path: Path) -> None:
    fake = Fake(tmp_path, Ending("signal", "ended by SIGSEGV", "SIGSEGV"))
    with pytest.raises(WorkerFailed, match="ended by SIGSEGV while it opened"):
        fake.client.start()


@pytest.mark.parametrize(
    ("device", "unusable"), [("cuda", FALLEN), ("cpu", "")], ids=["on a GPU", "on a CPU"]
)
def test_the_last_words_of_a_process_tell_that_its_device_was_lost(
    device: str, unusable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os, sys; print({FALLEN!r}, file=sys.stderr, flush=True); os.abort()"
    monkeypatch.setattr(
        fuzzgraph.worker.process, "module_command", lambda *words: [sys.executable, "-c", code]
    )
    child = Child(tmp_path, device=device)
    ending = child.ending()
    child.kill()
    assert ending.unusable == unusable and ending.innocent == bool(unusable)
