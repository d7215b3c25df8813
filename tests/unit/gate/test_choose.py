"""Which targets a change concerns, and the share of each."""

from __future__ import annotations

from fuzzgraph.gate.changes import MODULE, Changes, TouchedFile
from fuzzgraph.gate.choose import choose
from fuzzgraph.gate.executed import Executed


def executed(target: str, why: str = "", **functions: list[str]) -> Executed:
    files = {f"{name}.py": "0" for name in (*functions, "imported")}
    ran = {f"{name}.py": names for name, names in functions.items()}
    return Executed(target=target, files=files, functions=ran, cases=1, why=why)


def records(*made: Executed) -> dict[str, Executed]:
    return {one.target: one for one in made}


def touched(path: str, *functions: str, kernels: bool = False) -> Changes:
    return Changes((TouchedFile(path, frozenset(functions), kernels, 1),))


def names(changes: Changes, known: dict[str, Executed], seconds: float = 1000.0) -> list[str]:
    return [one.target for one in choose(changes, known, seconds, 1).chosen]


KNOWN = records(
    executed("one", a=["f", "g"]), executed("two", a=["g"], b=["h"]), executed("three", b=["h"])
)


def test_those_that_execute_a_touched_function_are_chosen() -> None:
    assert names(touched("a.py", "f"), KNOWN) == ["one"]
    assert sorted(names(touched("a.py", "g"), KNOWN)) == ["one", "two"]
    assert names(touched("a.py", "never called"), KNOWN) == []


def test_lines_outside_functions_concern_all_that_import_the_file() -> None:
    assert sorted(names(touched("imported.py", MODULE), KNOWN)) == ["one", "three", "two"]
    assert names(touched("another.py", MODULE), KNOWN) == []


def test_a_kernel_concerns_those_that_run_code_of_its_file() -> None:
    assert sorted(names(touched("b.py", "kernel", kernels=True), KNOWN)) == ["three", "two"]
    assert names(touched("imported.py", "kernel", kernels=True), KNOWN) == []


def test_a_target_that_does_not_run_on_the_engine_is_not_chosen() -> None:
    assert names(touched("a.py", "f"), records(executed("one", "no such module", a=["f"]))) == []


def test_a_small_budget_goes_to_those_that_cover_the_change() -> None:
    both = Changes(
        (
            TouchedFile("a.py", frozenset({"f", "g"}), lines=1),
            TouchedFile("b.py", frozenset({"h"}), lines=1),
        )
    )
    choice = choose(both, KNOWN, 40.0, 1)
    assert [one.target for one in choice.chosen] == ["one", "two"]
    assert (choice.left_out, choice.chosen[0].seconds) == (("three",), 20.0)
    assert len(choose(both, KNOWN, 40.0, 2).chosen) == 3
