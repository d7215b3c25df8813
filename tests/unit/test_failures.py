"""Whatever an engine raises becomes one printable line that every file takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import FuzzGraphError, KernelNotModelled, KernelRefused, NotInRelease
from fuzzgraph.execution import Execution
from fuzzgraph.execution.failures import Border, SessionFailed
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import FindingNew, decode_event, encode_event, finding_id
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.world import Batch


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Nameless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


ERRORS = [
    (ValueError("cannot open \udcff"), r"ValueError: cannot open \udcff"),
    (ValueError("\x1b[31mred\x00"), r"ValueError: \x1b[31mred\x00"),
    (Mute(), "Mute: (no message: its __str__ raised RuntimeError)"),
    (Nameless(), "Nameless: (no message: its __str__ raised TypeError)"),
    (ValueError("two\n  lines of größe"), "ValueError: two lines of größe"),
    (KeyError(), "KeyError: "),
]
IDS = ["a lone surrogate", "control characters", "__str__ raises", "no str", "two lines", "nothing"]
CASE = Case(
    schema_version=1,
    config=EngineConfig(capture_bs=(1,), max_context_len=4),
    steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=2),)),),
)


def verdict_on(error: Exception) -> Verdict:
    """What becomes of a case whose engine raises this before its first replay."""

    class Raises(GraphRunner):
        def prepare_replay(self, batch: Batch) -> None:
            raise error

    target = BuiltinTarget(replace(Components(), decode=Raises))
    return Execution(target).run_case(CASE)


def finding_of(error: Exception) -> Finding:
    (found,) = verdict_on(error).findings
    return found


@pytest.mark.parametrize(("error", "said"), ERRORS, ids=IDS)
def test_what_an_engine_raises_is_a_finding_that_can_be_written(
    error: Exception, said: str
) -> None:
    found = finding_of(error)
    assert (found.symptom, found.detail["error"]) == ("exception", said)
    assert str(found.detail["where"]).startswith("test_failures.py:")
    event = FindingNew(id=finding_id(found.key), finding=found, case=CASE)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("kind", [KernelNotModelled, NotInRelease])
def test_what_no_model_follows_or_the_release_lacks_skips_the_case_and_says_why(
    kind: type[FuzzGraphError],
) -> None:
    verdict = verdict_on(kind("the model of f does not follow window=(3, 0)"))
    assert verdict.findings == ()
    assert verdict.skipped == "the model of f does not follow window=(3, 0)"


def test_a_call_that_the_kernel_refuses_is_a_finding_with_its_rule() -> None:
    found = finding_of(KernelRefused("f: lengths must be int32; got int64 (docs of f 1.0)"))
    assert found.oracle == "survival"
    assert "lengths must be int32; got int64 (docs of f 1.0)" in found.message


def test_a_line_of_code_without_a_printable_file_is_named_all_the_same() -> None:
    code = compile("raise ValueError('x')", "/made/up\x1b.py", "exec")
    with pytest.raises(ValueError, match="x") as caught:
        exec(code)
    with pytest.raises(SessionFailed) as lost:
        Border(BuiltinTarget()).judge(caught.value, "replay")
    assert lost.value.failure.where == r"up\x1b.py:1 in <module>"


def test_a_kernel_that_a_devices_compiler_refuses_leaves_the_case_out() -> None:
    refused = type("CompilationError", (Exception,), {"__module__": "triton.compiler.errors"})
    verdict = verdict_on(refused("Input shapes should have K >= 16"))
    assert verdict.findings == ()
    assert verdict.skipped.startswith("a kernel of the engine does not compile for this device: ")


def test_an_error_of_that_name_by_anybody_else_is_a_finding() -> None:
    own = type("CompilationError", (Exception,), {"__module__": "engine.compiler"})
    assert finding_of(own("no")).symptom == "exception"
