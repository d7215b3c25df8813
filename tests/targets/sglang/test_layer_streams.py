"""DeepSeek V4's layer gives work to streams in its graphs, with and without the waits it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.targets.sglang.hybrid_cases import NEWEST
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_dsv4 import paged_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.layer_stream_mutants:"


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Workers with the host a step ahead, where streams run as late as waits allow."""
    opened = Workers(tmp_path_factory.mktemp("ahead"), overlap=True)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.20", NEWEST])
def test_every_order_of_the_streams_gives_the_same(ahead: Workers, version: str, kind: str) -> None:
    assert ahead.findings(version, paged_case(kind), "sglang-dsv4") == ()


def test_up_to_0_5_12_the_compressor_does_not_wait_for_the_upgrade_of_metadata(
    ahead: Workers,
) -> None:
    """sglang PR 25729."""
    found = ahead.findings("0.5.12", paged_case("c4", ((8, 300),)), "sglang-dsv4")
    assert {each.oracle for each in found} == {"overlap"}
    assert any(each.buffer == "compressor_states" for each in found)
    assert all("side stream" in each.message for each in found)


NOT_JOINED = (
    "keys_behind_attention",
    "compressed_behind_attention",
    "selected_behind_attention",
    "queries_behind_scores",
)


@pytest.mark.parametrize("name", NOT_JOINED)
def test_a_capture_that_does_not_wait_for_a_stream_fails(workers: Workers, name: str) -> None:
    (found,) = workers.findings(NEWEST, paged_case("c4"), f"{MUTANTS}{name}")
    assert "ends before work of a side stream" in found.message


def test_work_that_waits_for_nothing_of_the_capture_is_missing_in_replays(
    workers: Workers,
) -> None:
    found = workers.findings(NEWEST, paged_case("c4"), f"{MUTANTS}keys_beside_the_graph")
    assert any(each.oracle == "reference" and each.buffer == "attention" for each in found)


def test_a_missing_wait_between_two_side_streams_shows_with_the_host_ahead(
    ahead: Workers, workers: Workers
) -> None:
    case, target = paged_case("c4", index_topk=64), f"{MUTANTS}weights_behind_queries"
    assert workers.findings(NEWEST, case, target) == ()
    assert {each.oracle for each in ahead.findings(NEWEST, case, target)} == {"overlap"}


@pytest.mark.parametrize("target", ["sglang-dsv4", "sglang-dsv4-verify"])
def test_generated_cases_are_silent(ahead: Workers, target: str) -> None:
    drawn = generated(target, lambda config: config.kv_compression == "c4", blocks=1, each=60)
    assert len(drawn) > 12
    assert [case for case in drawn if ahead.findings(NEWEST, case, target)] == []
