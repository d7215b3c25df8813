"""Findings with a config that no server has: told so, ranked below, left for one that some has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution import Execution
from fuzzgraph.finding import Finding
from fuzzgraph.ports import why_unserved
from fuzzgraph.reporting.causes import ranked
from fuzzgraph.reporting.plain_text import finding_head
from fuzzgraph.run.events import finding_id
from fuzzgraph.strategies import minimise
from fuzzgraph.targets.builtin import BuiltinTarget
from tests.fakes import FakeRunner, case, finding
from tests.unit.campaigns import CampaignRun

WHY = "the engine refuses page_size=1"


def no_small_pages(config: EngineConfig) -> str:
    return WHY if config.page_size == 1 else ""


def everywhere(one: Case) -> tuple[Finding, ...]:
    return (finding(),)


def only_on_small_pages(one: Case) -> tuple[Finding, ...]:
    return (finding(),) if one.config.page_size == 1 else ()


def on_branches(one: Case) -> tuple[Finding, ...]:
    return (finding(),) if one.config.spec_topk > 1 else ()


class Unserved(BuiltinTarget):
    """The built-in engine, with servers that have no pages of one token."""

    unserved = staticmethod(no_small_pages)


def test_shrinking_stays_with_configs_that_a_server_has(tmp_path: Path) -> None:
    saved = case(1, 2, page_size=16)
    run = CampaignRun(
        tmp_path, FakeRunner(everywhere), corpus=[saved], examples=0, unserved=no_small_pages
    )
    (reported,) = run.run().findings
    assert reported.case.config.page_size > 1
    assert len(reported.case.steps) == 1


def test_shrinking_leaves_a_config_that_no_server_has_for_one_nearby(tmp_path: Path) -> None:
    def no_branches_on_pages(config: EngineConfig) -> str:
        refused = config.spec_topk > 1 and config.page_size > 1
        return "the engine refuses branches on pages" if refused else ""

    branches = case(1, page_size=16)
    config = msgspec.structs.replace(branches.config, modes=("target_verify",), spec_topk=2)
    step = msgspec.structs.replace(branches.steps[0], mode="target_verify")
    saved = msgspec.structs.replace(branches, config=config, steps=(step,))
    runner = FakeRunner(on_branches)
    run = CampaignRun(tmp_path, runner, corpus=[saved], examples=0, unserved=no_branches_on_pages)
    (reported,) = run.run().findings
    assert (reported.case.config.page_size, reported.case.config.spec_topk) == (1, 2)


def test_a_finding_that_no_server_can_meet_is_shrunk_all_the_same(tmp_path: Path) -> None:
    runner = FakeRunner(only_on_small_pages)
    run = CampaignRun(tmp_path, runner, corpus=[case(1, 2, 4)], examples=0, unserved=no_small_pages)
    (reported,) = run.run().findings
    assert len(reported.case.steps) == 1


def test_confirming_tells_that_no_server_has_the_config() -> None:
    execution = Execution(Unserved())
    assert execution.confirm(case(1), finding(), 1).unserved == WHY
    assert execution.confirm(case(1, page_size=16), finding(), 1).unserved == ""
    execution.close()


def test_the_rate_is_never_told_without_that_word() -> None:
    seen = msgspec.structs.replace(finding(confirmed="3/3"), unserved=WHY)
    (line,) = [line for line in finding_head(seen) if line.lstrip().startswith("sure")]
    assert line.endswith(f"shows in 3 of 3 fresh sessions, with a config that no server has: {WHY}")


def test_it_ranks_below_what_a_server_can_meet(tmp_path: Path) -> None:
    run = CampaignRun(
        tmp_path, FakeRunner(everywhere), corpus=[case(1)], examples=0, minimise=lambda one, _: one
    )
    (worst,) = run.run().findings
    mild = msgspec.structs.replace(finding("contract", "metadata", "seq_lens"), confirmed="3/3")
    unmet = msgspec.structs.replace(worst, finding=_unserved(worst.finding))
    served = msgspec.structs.replace(worst, id=finding_id(mild.key), finding=mild)
    assert [one.finding.oracle for one in ranked([unmet, served])] == ["contract", "footprint"]


def _unserved(seen: Finding) -> Finding:
    return msgspec.structs.replace(seen, unserved=WHY)


class Confused(BuiltinTarget):
    def unserved(self, config: EngineConfig) -> object:
        return {"no server": config}[config.page_size]  # type: ignore[index]


class Talkative(BuiltinTarget):
    def unserved(self, config: EngineConfig) -> object:
        return True


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Confused(), r"unserved\(\) raised KeyError: 1"),
        (Talkative(), r"unserved\(\) returned True"),
    ],
)
def test_a_target_that_cannot_say_is_told_to_its_author(target: BuiltinTarget, said: str) -> None:
    with pytest.raises(TargetFailed, match=said):
        why_unserved(target, EngineConfig())


def test_a_target_that_says_nothing_is_taken_at_its_servers_word() -> None:
    assert why_unserved(BuiltinTarget(), EngineConfig()) == ""


def test_shrinking_by_hand_prefers_a_served_config_too() -> None:
    from fuzzgraph.campaign import smallest

    small = smallest(case(1, 2, page_size=16), lambda one: True, minimise, no_small_pages)
    assert (small.config.page_size > 1, len(small.steps)) == (True, 1)
