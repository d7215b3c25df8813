"""What is reserved for verifies of blocks on a stream of its own, with and without its waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.finding import Finding
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST
from tests.targets.sglang.planted import with_a_line_changed
from tests.targets.sglang.released import Workers, decode_case, generated
from tests.targets.sglang.test_dflash import BLOCKS, case

TARGETS = (
    "sglang-dflash-draft-fa3", "sglang-dflash-verify-triton",
    "sglang-dspark-draft-triton", "sglang-dspark-verify-fa3",
)  # fmt: skip
_INPUT = "sglang.srt.speculative.dflash_info_v2:DFlashDraftInputV2"


def _planted(line: str) -> Callable[[], Any]:
    opened = lambda: open_target("sglang-dflash-draft-fa3")  # noqa: E731
    return with_a_line_changed(opened, _INPUT, "prepare_for_decode", line, "pass")


forward_does_not_wait = _planted("caller_stream.wait_stream(plan_stream)")


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Workers with the host a step ahead, where streams run as late as waits allow."""
    opened = Workers(tmp_path_factory.mktemp("ahead"), overlap=True)
    yield opened
    opened.close()


def blocks(**settings: Any) -> Case:
    return case(*BLOCKS, plan_stream=True, **settings)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", "0.5.21", NEWEST])
def test_what_is_reserved_on_a_stream_of_its_own_is_there_in_time(
    ahead: Workers, version: str
) -> None:
    assert ahead.findings(version, blocks(), "sglang-dflash-draft-fa3") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_forward_that_does_not_wait_is_found_with_the_host_ahead(
    ahead: Workers, workers: Workers
) -> None:
    target = f"{__name__}:forward_does_not_wait"
    assert workers.findings(NEWEST, blocks(), target) == ()
    found = ahead.findings(NEWEST, blocks(), target)
    assert {each.oracle for each in found} == {"overlap"}
    assert all("side stream" in each.message for each in found)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_plan_stream_changes_nothing_in_generated_blocks(ahead: Workers, target: str) -> None:
    drawn = generated(
        target,
        lambda config: config.plan_stream and config.dp_size == 1,
        blocks=6,
        each=12,
        enough=5,
    )
    assert len(drawn) >= 5
    for each in drawn:
        without = msgspec.structs.replace(each.config, plan_stream=False)
        # At the end of the context some verifies fail, with such a stream or without.
        before = ahead.findings(NEWEST, msgspec.structs.replace(each, config=without), target)
        now = ahead.findings(NEWEST, each, target)
        assert _kinds(now) == _kinds(before)


def _kinds(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(each.oracle, each.buffer) for each in findings]


def test_decodes_have_no_plan_stream() -> None:
    with pytest.raises(InvalidCase, match="plan_stream"):
        decode_case((3,), plan_stream=True)
