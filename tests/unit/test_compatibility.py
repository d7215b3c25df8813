"""Which targets run on which releases: the case that is tried, and the table."""

from __future__ import annotations

import pytest

from fuzzgraph.case import validate
from fuzzgraph.cli.targets import TargetRecord
from fuzzgraph.cli.targets_page import page
from fuzzgraph.compatibility import Probe, probe_case, released_targets, table, tried_before
from fuzzgraph.layout import plan


@pytest.mark.parametrize("name", sorted(released_targets("sglang")))
def test_the_case_that_is_tried_is_one_that_the_target_can_express(name: str) -> None:
    target = released_targets("sglang")[name]
    case = validate(probe_case(target))
    assert target.unsupported(case.config) is None
    assert [batch.raw_bs for batch in plan(case)] == [2, 1]


def test_a_target_of_another_package_is_not_tried() -> None:
    assert "builtin" not in released_targets("sglang")


def test_what_does_not_run_is_explained_below_the_table_once() -> None:
    why = "has no such runner"
    trials = [
        Probe(package="engine", target="a", release="1.0", runs=False, why=why),
        Probe(package="engine", target="b", release="1.0", runs=False, why=why),
        Probe(package="engine", target="a", release="1.1", runs=True),
        Probe(package="engine", target="b", release="1.1", runs=True),
    ]
    text = table(trials)
    assert "| `a` | [1] | runs |" in text
    assert "| `b` | [1] | runs |" in text
    assert text.count(why) == 1


def test_a_reason_that_many_targets_and_releases_share_is_told_once() -> None:
    trials = [
        Probe(
            package="engine", target=target, release=release, runs=False,
            why=f"Engine {release} has no such runner, which target '{target}' drives.",
        )
        for target in ("a", "b") for release in ("1.1", "1.10")
    ]  # fmt: skip
    text = table(trials)
    assert "| `b` | [1] | [1] |" in text
    assert text.endswith("\n[1] The release has no such runner, which the target drives.\n")


def test_what_a_table_tells_can_be_read_again() -> None:
    trials = (
        Probe(package="engine", target="a", release="1.0", runs=False, why="The release has no a."),
        Probe(package="engine", target="a", release="1.1", runs=True),
        Probe(package="engine", target="b", release="1.1", runs=True),
    )
    text = table(trials)
    assert "| `b` | not tried | runs |" in text
    assert tried_before("engine", text) == trials
    assert tried_before("engine", "") == ()


def test_a_target_that_is_tried_alone_leaves_the_other_rows_of_the_page() -> None:
    records = [TargetRecord(name="a"), TargetRecord(name="b")]
    tried = [
        Probe(package="engine", target=target, release=release, runs=True)
        for release in ("1.2", "1.10") for target in ("a", "b", "gone")
    ]  # fmt: skip
    before = page(tried, records)
    now = Probe(package="engine", target="a", release="1.10", runs=False, why="It hangs.")
    text = page([now], records, before)
    assert "| target | 1.2 | 1.10 |" in text
    assert "| `a` | runs | [1] |" in text and "| `b` | runs | runs |" in text
    assert "gone" not in text
