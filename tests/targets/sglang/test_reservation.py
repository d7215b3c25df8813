"""What a verify reserves in `req_to_token`, on released sglang."""

from __future__ import annotations

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.reservation_mutants"


def verify(rows: tuple[tuple[int, int], ...], draft_tokens: int, **settings: int) -> Case:
    """One verify of requests with so many tokens."""
    config = EngineConfig(
        modes=("target_verify",),
        capture_bs=(2,),
        kv_pool_pages=200,
        req_pool_size=2,
        draft_tokens=draft_tokens,
        **settings,  # type: ignore[arg-type]
    )
    of_batch = (
        BatchRow(request=request, seq_len=length, new_tokens=draft_tokens)
        for request, length in rows
    )
    step = ReplayStep(mode="target_verify", rows=tuple(of_batch))
    return validate(Case(schema_version=1, config=config, steps=(step,)))


# Row 0 ends behind the context, which is 12 tokens shorter than the case's.
BLOCKS = verify(((0, 49), (1, 30)), 16, max_context_len=49)
# Five steps of four branches, as for Llama by default, four tokens from the end.
BRANCHES = verify(((0, 36), (1, 20)), 4, max_context_len=39, spec_steps=5, spec_topk=4)


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
