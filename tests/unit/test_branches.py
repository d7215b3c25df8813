"""The engine's branches that a case takes: counted by line, in the engine's packages alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("coverage")

from fuzzgraph.campaign import open_setup
from fuzzgraph.case import Case
from fuzzgraph.errors import UsageError
from fuzzgraph.execution.branches import BranchTrace, TracedExecution
from fuzzgraph.ports import engine_packages
from fuzzgraph.run_options import checked_setup
from fuzzgraph.targets import open_target
from tests.fakes import FakeTarget, case

SOURCE = """\
def rows(raw_bs):
    if raw_bs > 2:
        raw_bs += 1
    return raw_bs

def fails():
    raise ValueError
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package `engine` with one module, and another one beside it."""
    for package in ("engine", "engines"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "runner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("engine.runner")
    for name in ("engine", "engine.runner", "engines", "engines.runner"):
        sys.modules.pop(name, None)


def taken(call: Callable[[], object]) -> frozenset[str]:
    with (trace := BranchTrace(["engine"])):
        call()
    return trace.taken()


def test_a_branch_is_a_line_and_the_one_that_ran_next(engine: ModuleType) -> None:
    inside = taken(lambda: engine.rows(3))
    assert inside >= {f"engine.runner:{step}" for step in ("2->3", "3->4")}
    past = taken(lambda: engine.rows(1))
    assert past - inside == {"engine.runner:2->4"}


def test_modules_of_other_packages_are_left_out(engine: ModuleType) -> None:
    other = importlib.import_module("engines.runner")
    assert taken(lambda: other.rows(3)) == frozenset()


def test_an_error_of_the_engine_ends_the_trace_and_keeps_what_it_saw(engine: ModuleType) -> None:
    before = sys.gettrace()
    trace = BranchTrace(["engine"])
    with pytest.raises(ValueError), trace:
        engine.fails()
    assert sys.gettrace() is before
    assert any(name.startswith("engine.runner:7->") for name in trace.taken())
    with trace:
        pass
    assert trace.taken() == frozenset(), "it starts anew when it is entered again"


def test_without_the_package_coverage_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coverage", None)
    with pytest.raises(UsageError, match="pip install coverage"):
        BranchTrace(["engine"])


def test_a_case_takes_the_same_branches_whatever_ran_before_it() -> None:
    padded, full = case(2, 3), case(4)
    traced = TracedExecution(open_target("builtin"))
    verdicts = {one: [traced.run_case(one).branches for _ in range(2)] for one in (padded, full)}
    assert len(set(verdicts[padded])) == len(set(verdicts[full])) == 1
    again = TracedExecution(open_target("builtin"))
    assert [again.run_case(one).branches for one in (full, padded)] == [
        verdicts[full][0],
        verdicts[padded][0],
    ]
    assert verdicts[padded][0] != verdicts[full][0]


def test_a_worker_tells_the_branches_that_this_process_tells() -> None:
    def told(isolation: str, one: Case) -> frozenset[str]:
        opened = open_setup(checked_setup(isolation=isolation), branches=True)
        try:
            return opened.runner.run_case(one).branches
        finally:
            opened.close()

    here = told("off", case(1))
    assert here == told("on", case(1))
    assert {name.partition(":")[0].rpartition(".")[0] for name in here} >= {
        "fuzzgraph.targets.builtin",
        "fuzzgraph.targets.builtin.runners",
    }
    assert all(name.startswith("fuzzgraph.targets.builtin.") for name in here)


def test_no_branches_are_told_unless_asked_for() -> None:
    opened = open_setup(checked_setup())
    assert opened.runner.run_case(case(1)).branches == frozenset()
    opened.close()


class Released(FakeTarget):
    package = "sglang"


class Named(Released):
    engine_packages = ("engine", "engine_kernels")


def test_a_target_names_its_engine_or_its_package_or_is_taken_for_its_own() -> None:
    assert engine_packages(Named()) == ("engine", "engine_kernels")
    assert engine_packages(Released()) == ("sglang",)
    assert engine_packages(FakeTarget()) == ("tests",)
    assert engine_packages(open_target("builtin")) == ("fuzzgraph.targets.builtin",)
