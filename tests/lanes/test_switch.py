"""The switch: what is put on comes off again, and foreign versions are refused in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from fuzzgraph.errors import UsageError
from fuzzgraph.lanes import Lanes, lanes, versions
from fuzzgraph.memory import GuardedMemory
from tests.lanes.kernels import planted, tutorials


def everything() -> dict[tuple[str, str], Any]:
    """Every attribute of Triton that a launch could touch."""
    targets = (
        tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.block_type, tl.standard, interpreter,
        tl.core.tensor_descriptor_base, interpreter.GridExecutor, interpreter.InterpretedFunction,
        interpreter.InterpreterBuilder,
    )  # fmt: skip
    found = {
        (str(target), name): value for target in targets for name, value in vars(target).items()
    }
    semantic = interpreter.interpreter_semantic
    found["semantic", "class"] = type(semantic)
    found["semantic", "builder"] = semantic.builder
    found["module", "range"] = planted.copy.fn.__globals__.get("range")
    return found


def test_nothing_of_triton_stays_patched() -> None:
    x, out = torch.ones(4), torch.zeros(4)
    planted.copy[(1,)](x, out, 4, BLOCK=4)
    before = everything()
    with lanes():
        planted.copy[(1,)](x, out, 4, BLOCK=4)
        planted.by_helper[(2,)](x, out, 1)
        between = everything()
        with pytest.raises(interpreter.InterpreterError):
            planted.raising[(4,)](x, out, 0)
    assert everything() == before
    changed = {key for key in before if between[key] is not before[key]}
    assert [name for _, name in changed] == ["__call__"], "only the launch itself, between launches"


@pytest.mark.parametrize("launches", [1, 4], ids=["as written", "from its trace"])
def test_zero_by_zero_is_nan_without_a_warning_as_on_a_device(launches: int) -> None:
    zeros, out = torch.zeros(4), torch.zeros(4)
    with lanes() as report:
        for _ in range(launches):
            planted.ratio[(4,)](zeros, zeros, out)
    assert out.isnan().all()
    assert report.fallbacks == {}


def test_inside_another_switch_the_inner_one_reports() -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with lanes() as outer, lanes() as inner:
        planted.copy[(1,)](x, out, 4, BLOCK=4)
    assert (outer.launches, inner.launches) == (0, 1)


def test_an_unknown_triton_runs_its_own_interpreter_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton, "__version__", "9.9.9")
    x, out = torch.ones(4), torch.zeros(4)
    with lanes() as report:
        planted.copy[(1,)](x, out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4
    assert report.lines() == [
        f"lanes: Triton 9.9.9 was not tested. Use Triton {versions.text_of_versions()}."
        " Until then accesses and races of kernels are not checked."
    ]
    assert (report.launches, report.runs) == (1, 0)


def test_guarded_memory_launches_under_an_unknown_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "9.9.9")
    memory = GuardedMemory()
    with memory.intercept("engine"), memory.over_lanes():
        x, out = torch.ones(4), torch.zeros(4)
        planted.copy[(1,)](x, out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4
    (reason,) = memory.lanes.report.unchecked_launches
    assert reason == f"Triton 9.9.9 was not tested. Use Triton {versions.text_of_versions()}."


@pytest.mark.parametrize("when", ["before ours", "over ours"])
def test_a_hook_of_somebody_else_does_not_send_a_launch_round_in_circles(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", "9.9.9")
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", interpreter.GridExecutor.__call__)
    seen = []
    x, out = torch.ones(4), torch.zeros(4)

    def put_on() -> Any:
        before: Any = interpreter.GridExecutor.__call__

        def theirs(*args: Any, **kwargs: Any) -> Any:
            seen.append(1)
            return before(*args, **kwargs)

        interpreter.GridExecutor.__call__ = theirs
        return before

    if when == "before ours":
        put_on()
    with lanes():
        found = put_on() if when == "over ours" else None
        planted.copy[(1,)](x, out, 4, BLOCK=4)
    assert (out.tolist(), seen) == ([1.0] * 4, [1])
    if found is not None:
        interpreter.GridExecutor.__call__ = found  # a hook of ours that is set no more
        with lanes():
            planted.copy[(1,)](x, out, 4, BLOCK=4)
        assert seen == [1]


def test_without_a_launch_the_report_does_not_read_as_clean() -> None:
    with lanes() as report:
        pass
    assert report.lines() == ["no kernel was launched, so nothing was checked"]


def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel as it is where TRITON_INTERPRET was forgotten, its launch without a device."""
    monkeypatch.setattr(JITFunction, "run", lambda function, *args, **kwargs: None)
    return JITFunction(planted.copy.fn)


def test_compiled_kernels_alone_are_an_error_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = compiled(monkeypatch)
    x, out = torch.ones(4), torch.zeros(4)
    with pytest.raises(UsageError) as caught, lanes():
        kernel[(1,)](x, out, 4, BLOCK=4)
        kernel[(1,)](x, out, 4, BLOCK=4)
    assert str(caught.value) == (
        "lanes: 2 launches of compiled kernels were not checked (copy)."
        " Set TRITON_INTERPRET=1 before triton is imported."
    )


def test_compiled_kernels_beside_interpreted_ones_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(monkeypatch)
    x, out = torch.ones(4), torch.zeros(4)
    with lanes() as report:
        planted.copy[(1,)](x, out, 4, BLOCK=4)
        kernel[(1,)](x, out, 4, BLOCK=4)
        kernel.warmup(x, out, 4, BLOCK=4, grid=(1,))
    assert [line[:10] for line in report.lines()] == ["1 launches"]


def test_an_error_inside_is_not_hidden_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(monkeypatch)
    x = torch.ones(4)
    with pytest.raises(KeyError), lanes():
        kernel[(1,)](x, x, 4, BLOCK=4)
        raise KeyError("of the caller")


def test_the_package_loads_without_triton() -> None:
    code = "import sys, fuzzgraph.lanes; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_launcher_works_without_the_context() -> None:
    launcher = Lanes()
    x, out = torch.ones(4), torch.zeros(4)
    kernel = planted.copy
    executor = interpreter.GridExecutor(kernel.rewrite(), kernel.arg_names, (1,), [])
    launcher(executor, x, out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4
    assert launcher.report.runs == 1


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("only 0-dimensional arrays can be converted to Python scalars", UsageError),
        ("only this kernel fails", interpreter.InterpreterError),
    ],
)
def test_an_interpreter_that_fails_with_this_numpy_is_no_fault_of_the_kernel(
    said: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise interpreter.InterpreterError(repr(TypeError(said)))

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", fail)
    x = torch.ones(4)
    with pytest.raises(raised) as caught, Lanes(off="stock kernels").installed():
        planted.copy[(1,)](x, x, 4, BLOCK=4)
    if raised is UsageError:
        assert f"does not run this kernel with numpy {np.__version__}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_warps": 0}, "copy: num_warps must be a power of 2; got 0"),
        ({"num_warps": 3}, "copy: num_warps must be a power of 2; got 3"),
        ({"num_warps": 2.0}, "copy: num_warps must be a power of 2; got 2.0"),
        ({"BLOK": 4}, "copy: keyword argument BLOK is unrecognised"),
    ],
)
def test_options_that_no_compiler_takes_are_refused(options: dict[str, Any], said: str) -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with pytest.raises((AssertionError, KeyError), match=said), lanes():
        planted.copy[(1,)](x, out, 4, BLOCK=4, **options)
    assert not out.any()


@pytest.mark.parametrize(
    "options",
    [{"num_warps": 1, "num_stages": 2}, {"num_warps": 32, "launch_pdl": True}, {"waves_per_eu": 2}],
)
def test_options_of_a_compiler_change_nothing(options: dict[str, Any]) -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with lanes():
        planted.copy[(1,)](x, out, 4, BLOCK=4, **options)
    assert out.tolist() == [1.0] * 4


def test_an_empty_grid_does_nothing() -> None:
    out = torch.zeros(4)
    with lanes() as report:
        planted.copy[(0,)](out, out, 4, BLOCK=4)
        planted.copy[(3, 0, 2)](out, out, 4, BLOCK=4)
    assert (report.launches, report.programs, report.runs) == (2, 0, 0)


def test_a_million_programs_run_in_chunks() -> None:
    out = torch.zeros(1_000_000, dtype=torch.int32)
    with lanes() as report:
        planted.mark[(1_000_000,)](out, 999_999, BLOCK=1)
    assert int(out.sum()) == 999_999
    assert 100 < report.runs < 1000


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda x: planted.copy[(1,)](x, x), id="an argument is missing"),
        pytest.param(lambda x: planted.copy[(1, 1, 1, 1)](x, x, 4, BLOCK=4), id="four axes"),
        pytest.param(lambda x: planted.copy[("a",)](x, x, 4, BLOCK=4), id="a grid of text"),
        pytest.param(lambda x: planted.copy[(1,)](x.numpy(), x, 4, BLOCK=4), id="a numpy array"),
        pytest.param(lambda x: planted.copy[(1,)](None, x, 4, BLOCK=4), id="None"),
        pytest.param(lambda x: planted.copy[(1,)](x, x, 1 << 70, BLOCK=4), id="a huge integer"),
        pytest.param(lambda x: planted.copy[(1,)](x, x, 4, BLOCK=3), id="not a power of two"),
        pytest.param(lambda x: planted.copy[(1,)](x.to(torch.complex64), x, 4, BLOCK=4), id="c64"),
        pytest.param(lambda x: planted.raising[(4,)](x, x, 0), id="an assertion"),
    ],
)
def test_bad_input_ends_as_in_the_stock_interpreter(call: Any) -> None:
    def outcome() -> tuple[type, str, list[float]]:
        x = torch.arange(4.0)
        with pytest.raises(Exception) as caught:
            call(x)
        return caught.type, str(caught.value), x.tolist()

    expected = outcome()
    with lanes():
        assert outcome() == expected


def test_stores_before_an_error_stay_as_in_the_stock_interpreter() -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    with lanes() as report, pytest.raises(interpreter.InterpreterError, match="no third program"):
        planted.raising[(4,)](x, out, 0)
    assert out.tolist() == [0.0, 1.0, 2.0, 0.0]
    ((kernel, reason),) = report.fallbacks
    assert kernel == "raising"
    assert re.fullmatch(r"raised AssertionError: no third program at planted\.py:\d+", reason)


def test_hooks_of_a_kernel_run() -> None:
    seen: list[int] = []
    kernel = interpreter.InterpretedFunction(planted.copy.fn)
    kernel.add_pre_run_hook(lambda x, out, count, BLOCK: seen.append(count))
    x, out = torch.ones(4), torch.zeros(4)
    with lanes():
        kernel[(1,)](x, out, 3, BLOCK=4)
    assert seen == [3]


def test_launch_options_that_the_kernel_does_not_take_are_dropped() -> None:
    x, out = torch.ones(4), torch.zeros(4)
    with lanes():
        planted.copy[(1,)](x, out, 4, BLOCK=4, num_warps=4, num_stages=2)
    assert out.tolist() == [1.0] * 4


def test_a_grid_may_ask_for_the_arguments() -> None:
    launch = tutorials.draw_matmul(np.random.default_rng(1))
    with lanes() as report:
        launch.run()
    assert report.programs == launch.grid(launch.constants)[0]
