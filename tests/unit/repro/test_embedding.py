"""What a script contains of FuzzGraph's rules is their very source."""

from __future__ import annotations

import inspect
from types import FunctionType

import pytest

from fuzzgraph.repro import export_script
from fuzzgraph.repro.embedding import EMBEDDABLE, Embedded, embeddable_in
from fuzzgraph.rules import comparison, metadata, writes
from tests.unit.repro.faulty import KINDS

RULES = [
    value
    for module in (comparison, metadata, writes)
    for value in vars(module).values()
    if isinstance(value, (FunctionType, type)) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_is_embedded_as_it_is_written(rule: FunctionType) -> None:
    assert inspect.getsource(rule).rstrip() in Embedded([rule.__name__]).text()


@pytest.mark.parametrize("name", sorted(EMBEDDABLE))
def test_what_is_embedded_runs_without_fuzzgraph(name: str) -> None:
    found = Embedded([name])
    assert not [line for line in found.imports if "fuzzgraph" in line]
    scope: dict[str, object] = {"__name__": __name__}
    lines = ["from __future__ import annotations", *sorted(found.imports), found.text()]
    exec(compile("\n".join(lines), "script", "exec"), scope)
    assert name in scope


def test_a_function_brings_what_it_calls_from_other_modules() -> None:
    text = Embedded(["changed_rows"]).text()
    assert "def bits(" in text and "_BITS = {" in text


def test_what_a_script_has_already_is_not_embedded_twice() -> None:
    helpers = Embedded(["poison_zones"])
    assert "def filled(" in helpers.text()
    assert "def filled(" not in Embedded(["region"], beside=helpers).text()


def test_only_what_a_text_calls_is_embedded() -> None:
    assert embeddable_in("x = report(first_difference(a, b))") == {"report", "first_difference"}


def test_an_exported_script_contains_the_rule_that_found_the_bug() -> None:
    kind = next(kind for kind in KINDS if kind.name == "slot-twice")
    text = export_script(kind.case, kind.finding(), kind.target(), proven=False)
    assert inspect.getsource(metadata.names_own_slots) in text
