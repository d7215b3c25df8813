"""What a verify reserves in `req_to_token`, on released sglang."""

from __future__ import annotations

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.reservation_mutants"


def verify(*steps: tuple[tuple[int, int], ...], draft_tokens: int, **settings: int) -> Case:
    """Verifies of requests with so many tokens each."""
    config = EngineConfig(
        modes=("target_verify",),
        capture_bs=(2,),
        kv_pool_pages=200,
        req_pool_size=2,
        draft_tokens=draft_tokens,
        **settings,  # type: ignore[arg-type]
    )
    verifies = []
    for rows in steps:
        of_batch = (
            BatchRow(request=request, seq_len=length, new_tokens=draft_tokens)
            for request, length in rows
        )
        verifies.append(ReplayStep(mode="target_verify", rows=tuple(of_batch)))
    return validate(Case(schema_version=1, config=config, steps=tuple(verifies)))


# Row 0 ends behind the context, which is 12 tokens shorter than the case's.
BLOCKS = verify(((0, 49), (1, 30)), draft_tokens=16, max_context_len=49)
# Five steps of four branches, as for Llama by default, four tokens from the end.
BRANCHES = verify(((0, 36), (1, 20)), draft_tokens=4, max_context_len=39, spec_steps=5, spec_topk=4)
# A step accepts seven tokens, or a whole block of eight.
IN_TURN = verify(
    *(((0, 15 + 7 * step), (1, 20 + 8 * step)) for step in range(5)),
    draft_tokens=8,
    max_context_len=90,
)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("sglang-dflash-verify-triton", BLOCKS),
        ("sglang-dspark-verify-triton", BLOCKS),
        ("sglang-triton-verify", BRANCHES),
        ("sglang-flashinfer-verify", BRANCHES),
    ],
)
@pytest.mark.parametrize("version", ["0.5.16", NEWEST])
def test_places_reserved_behind_a_row_lie_in_the_next_one(
    workers: Workers, version: str, target: str, case: Case
) -> None:
    shown = found(workers, version, case, target)
    assert {("writes", "req_to_token"), ("computes", "attention")} <= shown


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("healthy", "case"), [("blocks_in_wide_rows", BLOCKS), ("branches_in_wide_rows", BRANCHES)]
)
def test_rows_that_hold_what_is_reserved_leave_the_next_one_alone(
    workers: Workers, healthy: str, case: Case
) -> None:
    assert found(workers, NEWEST, case, f"{MUTANTS}:{healthy}") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_places_that_nothing_was_reserved_for_are_found(workers: Workers) -> None:
    shown = found(workers, NEWEST, BLOCKS, f"{MUTANTS}:half_a_block_is_reserved")
    assert ("computes", "draft_context") in shown


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", NEWEST])
def test_a_server_reserves_enough_where_it_learns_a_step_late_what_was_accepted(
    workers: Workers, version: str
) -> None:
    for target in ("sglang-dflash-verify-triton", "sglang-triton-verify"):
        assert found(workers, version, IN_TURN, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", ["what_was_reserved_is_not_counted", "more_is_counted_than_was_reserved"]
)
def test_what_the_next_step_has_reserved_shows_what_was_counted_at_this_one(
    workers: Workers, bug: str
) -> None:
    assert ("computes", "draft_context") in found(workers, NEWEST, IN_TURN, f"{MUTANTS}:{bug}")
