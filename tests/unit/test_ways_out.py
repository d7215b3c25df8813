"""Every way out of an engine's code is a finding, and a target's own mistake is none."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import EngineError, TargetFailed
from fuzzgraph.execution import Execution
from fuzzgraph.finding import Finding
from fuzzgraph.process.interrupts import noting_interrupts, signal_may_have_raised

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
NAMES = ("block_engine", "block_target")
CASE = Case(
    schema_version=1,
    config=EngineConfig(capture_bs=(1, 2), max_context_len=8),
    steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=2),)),),
)

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the repository")


@pytest.fixture(autouse=True)
def examples() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    for name in NAMES:
        sys.modules.pop(name, None)


def engine_that(does: Callable[[], object], where: str = "fill") -> Any:
    """The example's target on an engine whose method does this instead."""
    engine, target = (import_module(name) for name in NAMES)

    def instead(*_: object) -> None:
        does()

    class Inputs(engine.Inputs):  # type: ignore[name-defined, misc]
        fill = instead if where == "fill" else engine.Inputs.fill

    class Runner(engine.DecodeRunner):  # type: ignore[name-defined, misc]
        inputs_class = Inputs
        capture = instead if where == "capture" else engine.DecodeRunner.capture

    # The classes are the engine's: a change made in its own repository.
    for made in (Inputs, Runner):
        made.__module__ = "block_engine"
    target.BlockSession.runner_class = Runner
    return target.BlockTarget()


def target_that_fails_in(method: str) -> Any:
    """The example's target with a mistake in one method of its session."""
    target: Any = import_module("block_target")
    namespace: dict[str, Any] = {"target": target, "__name__": "block_target"}
    source = f"class Session(target.BlockSession):\n    def {method}(self, *_):\n        [][1]\n"
    exec(compile(source, str(EXAMPLES / "block_target.py"), "exec"), namespace)
    target.BlockSession = namespace["Session"]
    return target.BlockTarget()


def found(target: Any) -> tuple[Finding, ...]:
    execution = Execution(target)
    try:
        return execution.run_case(CASE).findings
    finally:
        execution.close()


def raising(error: BaseException) -> Callable[[], object]:
    def go() -> None:
        raise error

    return go


LEAVING = [SystemExit(0), SystemExit("bye"), KeyboardInterrupt(), GeneratorExit(), StopIteration()]


class Own(BaseException):
    """An engine's own kind, as those of asyncio and trio."""


@pytest.mark.parametrize("error", [*LEAVING, Own()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("where", "stage"), [("fill", "prepare"), ("capture", "capture")])
def test_an_engine_that_leaves_by_any_exception_makes_a_finding(
    error: BaseException, where: str, stage: str
) -> None:
    (finding,) = found(engine_that(raising(error), where))
    assert (finding.oracle, finding.symptom, finding.stage) == ("survival", "exception", stage)
    assert type(error).__name__ in finding.message


def test_an_engine_that_comes_back_makes_none() -> None:
    assert found(import_module("block_target").BlockTarget()) == ()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler, also where the shell started these tests with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_persons_interrupt_in_the_engines_code_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        found(engine_that(lambda: signal.raise_signal(signal.SIGINT)))


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_without_a_signal_is_not_taken_for_a_persons() -> None:
    with noting_interrupts():
        assert not signal_may_have_raised()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal_may_have_raised()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("method", ["observe", "captured_addresses", "promised_outputs", "warm_up"])
def test_a_mistake_in_the_target_is_no_finding_and_names_its_line(method: str) -> None:
    with pytest.raises(TargetFailed, match="IndexError.*at block_target.py:3 in .*check-target"):
        found(target_that_fails_in(method))


def test_a_session_that_lacks_a_method_is_refused_when_it_opens() -> None:
    target = import_module("block_target")
    del target.BlockSession.keeps_outputs
    with pytest.raises(TargetFailed, match="BlockSession lacks keeps_outputs; see docs/writing"):
        found(target.BlockTarget())


def test_a_method_with_other_arguments_is_named_with_those_it_must_take() -> None:
    target = import_module("block_target")
    target.BlockSession.keeps_outputs = lambda self: False
    with pytest.raises(TargetFailed, match=r"takes other arguments than keeps_outputs\(self, mode"):
        found(target.BlockTarget())


def test_outputs_that_the_target_does_not_say_are_judged_are_refused() -> None:
    target = import_module("block_target")
    target.BlockTarget.outputs_judged = {}
    message = r"promises outputs of decode \(attention\), and outputs_judged=\{\} of its target"
    with pytest.raises(TargetFailed, match=message):
        found(target.BlockTarget())


@pytest.mark.parametrize(("when", "refused"), [("", True), ("one branch", False)])
def test_outputs_that_are_said_to_be_judged_and_not_promised_are_refused(
    when: str, refused: bool
) -> None:
    target = import_module("block_target")
    target.BlockTarget.outputs_judged = {"decode": when}
    target.BlockSession.promised_outputs = lambda self, mode: ()
    if not refused:
        assert found(target.BlockTarget()) == ()
        return
    with pytest.raises(TargetFailed, match="promises no outputs of decode, which outputs_judged"):
        found(target.BlockTarget())


def test_an_output_of_which_no_truth_is_known_may_not_be_promised() -> None:
    target = import_module("block_target")
    target.BlockSession.promised_outputs = lambda self, mode: ("attention", "logits_of_mine")
    message = r"promised_outputs\('decode'\) names logits_of_mine, of which no truth is known"
    with pytest.raises(TargetFailed, match=message):
        found(target.BlockTarget())


def test_an_engine_that_raises_at_its_end_is_told() -> None:
    target = engine_that(lambda: None, "nowhere")
    close = raising(SystemExit(0))
    engine: Any = import_module("block_engine")
    engine.Graphs = type("Graphs", (dict,), {"clear": lambda _: close()})
    execution = Execution(target)
    assert execution.run_case(CASE).findings == ()
    (session,) = (opened.session for opened in execution._sessions._sessions.values())
    session.runner.graphs = engine.Graphs()  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="close raised SystemExit: 0"):
        execution.close()
