"""No target accepts a setting that it does not drive, whatever a case can come to say."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fuzzgraph.capabilities import Capabilities, unsupported_case
from fuzzgraph.case import DIMENSIONS, BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.case.dimension import Most, OneOf, Switch
from fuzzgraph.corpus import load
from fuzzgraph.ports import Target
from fuzzgraph.strategies import CI, cases, generation
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.targets import BUILT_IN, open_target, target_names

ROOT = Path(__file__).resolve().parents[2]


def strange(capabilities: Capabilities) -> list[tuple[str, Any]]:
    """One setting each that lies beyond these capabilities, for every rule of the table."""
    found: list[tuple[str, Any]] = []
    for name, row in DIMENSIONS.items():
        rule = row.spec.needs
        if rule is None or name == "kernels":  # told apart below
            continue
        has = getattr(capabilities, rule.name)
        if isinstance(rule, OneOf):
            absent = [value for value in row.choices if value not in has]
            found += [(name, (value,) if name == "modes" else value) for value in absent]
        elif isinstance(rule, Switch) and not has:
            several = row.choices[:1] if row.default == () else not row.default
            found.append((name, 4 if row.number else several))
        elif isinstance(rule, Most) and rule.one_is_none and has == 1:
            found.append((name, 2))
    return found


def within(target: Target) -> EngineConfig:
    """A config that the target drives."""
    drawn: list[Case] = []
    generation.draw(cases(target.capabilities, CI), 1, 10, drawn.append)
    return next(case.config for case in drawn if target.unsupported(case.config) is None)


def accepted(target: Target) -> list[tuple[str, Any]]:
    """Settings beyond its capabilities that a target takes all the same."""
    config = within(target)
    return [
        (name, value)
        for name, value in strange(target.capabilities)
        if target.unsupported(msgspec.structs.replace(config, **{name: value})) is None
    ]


@pytest.mark.parametrize("name", [row.name for row in BUILT_IN])
def test_a_target_refuses_what_lies_beyond_its_reach(name: str) -> None:
    assert accepted(open_target(name)) == []


def test_the_target_of_the_page_refuses_what_lies_beyond_its_reach(page: ModuleType) -> None:
    assert accepted(page.TinyTarget()) == []
    assert len(strange(page.TinyTarget.capabilities)) > 10


def test_the_targets_of_the_examples_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    assert accepted(import_module("block_target").BlockTarget()) == []
    assert accepted(import_module("stale_target").StaleTarget()) == []
    for name in ("block_target", "stale_target", "block_engine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", [name for name in target_names() if name.startswith("sglang-")])
def test_kernels_and_page_sizes_that_a_released_engine_ignores_are_refused(name: str) -> None:
    target: Any = open_target(name)
    config = within(target)
    said = target.unsupported(msgspec.structs.replace(config, kernels="triton"))
    assert said == "kernels='triton' is not driven, only torch"
    odd_pages = msgspec.structs.replace(config, page_size=7, state_track_interval=0)
    odd = target.unsupported(odd_pages)
    assert (odd is None) == target.any_page_size


@pytest.mark.parametrize("name", ["builtin", "builtin-triton"])
def test_the_built_in_engine_serves_every_saved_case(name: str) -> None:
    target = open_target(name)
    entries = load(ROOT / "corpus" / "cases").entries
    assert entries and not [one.path for one in entries if target.unsupported(one.case.config)]


def test_each_target_says_in_a_line_of_its_own_what_it_drives() -> None:
    said = [getattr(row.open(), "about", "") for row in BUILT_IN]
    assert len({*said}) == len(said)
    assert all(said) and not [line for line in said if "\n" in line]


def test_a_line_of_the_list_of_targets_fits_a_hundred_columns() -> None:
    width = max(len(row.name) for row in BUILT_IN) + 2
    said = {row.name: getattr(row.open(), "about", "") for row in BUILT_IN}
    assert [name for name, about in said.items() if width + len(about) > 100] == []


def test_a_verify_with_fewer_drafts_is_refused_where_the_target_takes_whole_ones() -> None:
    rows = (
        BatchRow(request=0, seq_len=4, new_tokens=2),
        BatchRow(request=1, seq_len=3, new_tokens=3),
    )
    case = Case(
        schema_version=1,
        config=EngineConfig(modes=("target_verify",), draft_tokens=3),
        steps=(ReplayStep(mode="target_verify", rows=rows),),
    )
    can = Capabilities(modes=("target_verify",), max_draft_tokens=4)
    assert unsupported_case(can, case) == "steps[0] verifies 2 tokens of a row, which is not driven"
    assert unsupported_case(can.replace(ragged_verify=True), case) is None


@pytest.mark.parametrize("name", [row.name for row in BUILT_IN])
def test_a_target_says_without_its_engine_which_configs_it_drives(name: str) -> None:
    target = open_target(name)
    for number in range(60):
        config = swarm_config(target.capabilities, CI, number)
        assert target.unsupported(config) != ""
