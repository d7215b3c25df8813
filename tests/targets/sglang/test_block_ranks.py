"""Blocks of DSpark and DFLASH on one of several data-parallel ranks."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.case.verify_budgets import BY_TOKENS
from tests.targets.sglang.hybrid_cases import NEWEST
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_data_ranks import step
from tests.targets.sglang.test_dflash import BACKENDS, least_page
from tests.targets.sglang.test_verify_budget import CUT

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.block_rank_mutants:"
_FIRST_REPLANNED = ("0.5.19", "0.5.21", NEWEST)
"""Releases that plan a verify without a graph behind its padding, the first of those tried on."""


def verify(rows: int, length: int, *others: int) -> ReplayStep:
    """So many rows of three tokens, beside other ranks."""
    return step("target_verify", rows, 3, length, *others)


def _beside(*steps: ReplayStep, **settings: Any) -> Case:
    config = EngineConfig(
        modes=("target_verify",), max_context_len=64, kv_pool_pages=120, draft_tokens=3,
        cpu_seq_lens=True, dp_size=4, dp_rank=2, **settings,
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


def in_graphs(target: str, *, idle: bool = True) -> Case:
    """A rank with few rows beside one with more, beside idle ones, and without a row of its own."""
    steps = [verify(1, 5, 4, 0, 1), verify(2, 8), verify(1, 12, 2, 0, 0)]
    steps[1:1] = [verify(0, 0, 0, 3, 1)] if idle else []
    return _beside(*steps, capture_bs=(1, 2, 4), page_size=least_page(target))


def without_graphs(target: str, *, idle: bool = True) -> Case:
    """The same in steps that are larger than any graph on some rank, and in one that takes none."""
    steps = [verify(1, 5, 4, 3, 4), verify(4, 8, 0, 1, 0), verify(2, 12, 3, 3, 3)]
    steps += [msgspec.structs.replace(verify(1, 16, 0, 2, 0), via="eager")]
    steps += [verify(0, 0, 3, 3, 3)] if idle else []
    return _beside(*steps, capture_bs=(1, 2), page_size=least_page(target))


def _named(backend: str) -> str:
    return f"sglang-dspark-verify-{backend}"


def _found(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    return {(each.oracle, each.buffer) for each in workers.findings(version, case, target)}


@pytest.mark.parametrize("backend", ["fa3", "triton", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", *_FIRST_REPLANNED])
def test_a_rank_replays_the_graph_of_the_largest_one(
    workers: Workers, version: str, backend: str
) -> None:
    target = _named(backend)
    assert _found(workers, version, in_graphs(target), target) == set()


def by_tokens(case: Case) -> Case:
    """The case in graphs that are captured by tokens, of a draft model with experts."""
    config = msgspec.structs.replace(case.config, verify_budget="verify_all")
    return validate(msgspec.structs.replace(case, config=config))


_SIZES_BESIDE = ((5, 5, 1), (3, 1, 1), (0, 0, 4), (2, 4, 1), (4, 4, 4))
"""Rows of the other ranks in each step of `CUT`."""


def cut_beside_ranks(target: str) -> Case:
    """Rows of any length beside ranks with fewer rows and with more, and a step without a row."""
    steps = [
        msgspec.structs.replace(each, other_ranks=others)
        for each, others in zip(CUT, _SIZES_BESIDE, strict=True)
    ]
    steps += [verify(0, 0, 2, 0, 3)]
    return _cut(*steps, target=target)


def _cut(*steps: ReplayStep, target: str) -> Case:
    config = EngineConfig(
        modes=("target_verify",), max_context_len=64, kv_pool_pages=120, draft_tokens=4,
        cpu_seq_lens=True, dp_size=4, dp_rank=2, page_size=least_page(target),
        verify_budget="compact", capture_bs=(1, 2, 3, 4, 5, 8),
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.16", *_FIRST_REPLANNED])
def test_ranks_whose_rows_are_cut_replay_the_graph_that_they_agree_on(
    workers: Workers, version: str, backend: str
) -> None:
    """But for what such graphs read; see reports/findings/sglang-dspark-accept-row.md."""
    target = _named(backend)
    shown = workers.findings(version, cut_beside_ranks(target), target)
    assert all("_gather_row_bonus_kernel" in each.message for each in shown)


def _fewer_rows_without_a_graph(rows: int, budget: str) -> Case:
    """So many rows beside a rank with three, in a step that takes no graph."""
    step = msgspec.structs.replace(verify(rows, 5, 3), via="eager")
    config = EngineConfig(
        modes=("target_verify",), max_context_len=64, kv_pool_pages=300, draft_tokens=3,
        capture_bs=(1, 2, 4), page_size=16, dp_size=2, verify_budget=budget,  # type: ignore[arg-type]
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=(step,)))


@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", _FIRST_REPLANNED)
def test_without_a_graph_a_layout_of_its_own_rows_fails_on_a_rank_that_is_padded(
    workers: Workers, version: str, backend: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-dspark-cut-for-ranks.md."""
    target = _named(backend)
    for budget in ("verify_all", "compact"):
        shown = workers.findings(version, _fewer_rows_without_a_graph(2, budget), target)
        said = "The size of tensor a (3) must match the size of tensor b (2)"
        assert any(said in each.message for each in shown)
    for rows, budget in ((2, "none"), (3, "compact")):
        shown = workers.findings(version, _fewer_rows_without_a_graph(rows, budget), target)
        assert all("_gather_row_bonus_kernel" in each.message for each in shown)


@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", *_FIRST_REPLANNED])
def test_a_rank_replays_the_graph_by_tokens_of_the_largest_one(
    workers: Workers, version: str, backend: str
) -> None:
    """But for what such graphs read; see reports/findings/sglang-dspark-accept-row.md."""
    target = _named(backend)
    shown = workers.findings(version, by_tokens(in_graphs(target)), target)
    assert all("_gather_row_bonus_kernel" in each.message for each in shown)


@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", _FIRST_REPLANNED)
def test_a_rank_whose_verify_no_graph_by_tokens_holds_verifies_it_whole(
    workers: Workers, version: str, backend: str
) -> None:
    """But for what such graphs read; see reports/findings/sglang-dspark-accept-row.md."""
    target = _named(backend)
    shown = workers.findings(version, by_tokens(without_graphs(target)), target)
    assert all("_gather_row_bonus_kernel" in each.message for each in shown)


def test_no_server_has_graphs_by_tokens_beside_ranks_on_other_backends_than_dsv4(
    workers: Workers,
) -> None:
    target = _named("fa3")
    case = in_graphs(target)
    assert "unless the draft model" in workers.unserved(NEWEST, by_tokens(case).config, target)
    assert workers.unserved(NEWEST, case.config, target) == ""


TOLD_BY_TOKENS = {
    "no_floor_of_all_ranks": by_tokens(in_graphs("sglang-dspark-verify-fa3")),
    "least_budget_of_all_ranks": cut_beside_ranks("sglang-dspark-verify-fa3"),
    "idle_ranks_take_the_smallest_graph": cut_beside_ranks("sglang-dspark-verify-fa3"),
}
"""Planted bug of graphs by tokens -> a case that shows it."""


@pytest.mark.parametrize("name", TOLD_BY_TOKENS)
def test_a_changed_line_that_ranks_agree_on_tokens_by_is_found(workers: Workers, name: str) -> None:
    found = workers.findings(NEWEST, TOLD_BY_TOKENS[name], f"{MUTANTS}{name}")
    assert any(re.search("a graph of .* was replayed, the largest", one.message) for one in found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", _FIRST_REPLANNED)
def test_without_a_graph_rows_pad_a_verify_for_the_other_ranks(
    workers: Workers, version: str, backend: str
) -> None:
    target = _named(backend)
    case = without_graphs(target, idle=backend != "triton")
    assert _found(workers, version, case, target) == set()


@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", NEWEST])
def test_an_idle_rank_brings_flashinfers_graph_a_mask_that_it_has_no_room_for(
    workers: Workers, version: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-dspark-idle-mask.md."""
    target = _named("flashinfer")
    assert _found(workers, version, in_graphs(target, idle=False), target) == set()
    (found,) = workers.findings(version, in_graphs(target), target)
    assert found.oracle == "survival"


@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_an_idle_rank_without_a_graph_fails_on_triton(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    target = _named("triton")
    (found,) = workers.findings(version, without_graphs(target), target)
    assert "'DFlashVerifyInput' object has no attribute 'kv_indptr'" in found.message


PLANNED_UNPADDED = {
    "fa3": "cache_seqlens has 1 entries, the graph has 4",
    "flashinfer": "q must have the 3 queries that were planned; got 12",
    "triton": "kv_indptr must hold padded_bs + 1 = 5 offsets; got 2",
    "trtllm-mha": "outside seq_lens (1 element)",
}
"""Backend -> what shows of a plan of one row for a batch of four."""


@pytest.mark.parametrize("backend", PLANNED_UNPADDED)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17"])
def test_up_to_0_5_17_the_plan_is_that_of_the_batch_before_its_padding(
    workers: Workers, version: str, backend: str
) -> None:
    """See reports/findings/sglang-dspark-padded-for-ranks.md."""
    target = _named(backend)
    found = workers.findings(version, without_graphs(target), target)
    assert any(PLANNED_UNPADDED[backend] in each.message for each in found)


IN_GRAPHS = {
    "counts_of_one_rank": "a graph of 1 was replayed, the largest data-parallel rank has 4",
    "votes_of_no_rank": "no graph was replayed although the batch fits",
    "tokens_for_requests": "no graph was replayed although the batch fits",
    "idle_blocks_of_one_token": "no graph was replayed although the batch fits",
    "idle_ranks_stay_away": "the worker came back without a forward of its target model",
}
"""Planted bug of batches that take a graph -> what the finding says."""


@pytest.mark.parametrize("name", IN_GRAPHS)
def test_a_changed_line_that_ranks_agree_by_is_found(workers: Workers, name: str) -> None:
    case = in_graphs("sglang-dspark-verify-fa3")
    found = workers.findings(NEWEST, case, f"{MUTANTS}{name}")
    assert any(IN_GRAPHS[name] in each.message for each in found)


WITHOUT_GRAPHS = {
    "planned_unpadded": "cache_seqlens has 1 entries, the graph has 4",
    "writes_to_a_slot_of_nobody": "out_cache_loc",
    "rows_of_the_first_request": "req_pool_indices",
    "cut_by_requests": "shape '[1, 3]' is invalid for input of size 1",
}
"""The same of batches that take none."""


@pytest.mark.parametrize("name", WITHOUT_GRAPHS)
def test_a_changed_line_of_the_padding_is_found(workers: Workers, name: str) -> None:
    case = without_graphs("sglang-dspark-verify-fa3")
    found = workers.findings(NEWEST, case, f"{MUTANTS}{name}")
    assert any(WITHOUT_GRAPHS[name] in each.message for each in found)


@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_generated_cases_are_silent(workers: Workers, version: str) -> None:
    """Graphs by tokens have open bugs of their own there (sglang-dspark-accept-row.md)."""
    target = _named("fa3")

    def wanted(config: EngineConfig) -> bool:
        return config.dp_size > 1 and config.verify_budget not in BY_TOKENS

    drawn = generated(target, wanted, blocks=2, each=100)
    assert len(drawn) > 30
    accused = [case for case in drawn if workers.findings(version, case, target)]
    assert accused == []


def beside_busy_ranks(target: str, **settings: Any) -> Case:
    """Steps in which every rank has requests, some of them more than the largest graph."""
    steps = [verify(1, 5, 4, 3, 1), verify(2, 8), verify(1, 12, 2, 1, 1), verify(1, 16, 1, 7, 2)]
    return _beside(*steps, capture_bs=(1, 2, 4), page_size=least_page(target), **settings)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dflash_verifies_beside_other_ranks(workers: Workers, backend: str) -> None:
    target = f"sglang-dflash-verify-{backend}"
    assert _found(workers, NEWEST, beside_busy_ranks(target), target) == set()


@pytest.mark.parametrize("backend", ["fa3", "flashinfer", "trtllm-mha"])
def test_dflash_takes_no_graph_beside_an_idle_rank(workers: Workers, backend: str) -> None:
    target = f"sglang-dflash-verify-{backend}"
    for case in (in_graphs(target), without_graphs(target)):
        assert _found(workers, NEWEST, case, target) == set()


def test_an_idle_rank_of_dflash_fails_on_triton(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    target = "sglang-dflash-verify-triton"
    (found,) = workers.findings(NEWEST, without_graphs(target), target)
    assert "'DFlashVerifyInput' object has no attribute 'kv_indptr'" in found.message


def test_servers_up_to_0_5_22_have_no_dflash_beside_ranks(workers: Workers) -> None:
    target = "sglang-dflash-verify-fa3"
    skipped = workers.skipped("0.5.22", beside_busy_ranks(target), target)
    assert "DFLASH beside data-parallel ranks from sglang 0.5.23 on" in skipped


OF_DRAFTS = {
    "drafts_of_no_vote": "no graph was replayed although the batch fits",
    "drafts_wait_for_ranks": "requires raw per-rank request counts",
}
"""Planted bug of DSpark's drafts -> what the finding says."""


@pytest.mark.parametrize("name", OF_DRAFTS)
def test_a_changed_line_of_drafts_beside_ranks_is_found(workers: Workers, name: str) -> None:
    case = beside_busy_ranks("sglang-dspark-draft-fa3", drafted_blocks="whole")
    found = workers.findings(NEWEST, case, f"{MUTANTS}{name}")
    assert any(OF_DRAFTS[name] in each.message for each in found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", _FIRST_REPLANNED)
def test_drafts_of_dspark_replay_graphs_of_their_own_rows(
    workers: Workers, version: str, backend: str
) -> None:
    target = f"sglang-dspark-draft-{backend}"
    case = beside_busy_ranks(target, drafted_blocks="whole")
    assert _found(workers, version, case, target) == set()


def test_drafts_of_dspark_took_no_graph_beside_ranks_before_0_5_19(workers: Workers) -> None:
    target = "sglang-dspark-draft-fa3"
    skipped = workers.skipped("0.5.17", beside_busy_ranks(target, drafted_blocks="whole"), target)
    assert "beside data-parallel ranks from sglang 0.5.19 on" in skipped
