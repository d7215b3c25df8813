"""The persistent decode kernel that AMD's GPUs have for Triton attention: graphs of many rows hold
it by default, and its programs wait for parts that later ones compute."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
NEWEST = "0.5.23"
_MUTANTS = "tests.targets.sglang.lean_mutants"


def _case(rows: int, size: int, **settings: Any) -> Case:
    """Rows of which most have two or three blocks of 128 keys, then the same a token later."""
    given = {"page_size": 1, "max_context_len": 512, "kv_pool_pages": 6000, "head_dim": 16}
    heads = {"num_q_heads": 4, "num_kv_heads": 4, "v_head_dim": 16, "platform": "rocm"}
    config = EngineConfig(
        capture_bs=(size,), req_pool_size=size + 1, **{**given, **heads, **settings}
    )
    lengths = [90 + 23 * row for row in range(rows)]
    steps = tuple(
        ReplayStep(
            rows=tuple(BatchRow(request=n, seq_len=each + t) for n, each in enumerate(lengths))
        )
        for t in range(3)
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


_MANY = _case(14, 16)
_FEW = _case(7, 8, num_q_heads=2, num_kv_heads=1, v_head_dim=8)
"""Where values are narrower than keys, as in latent attention, 8 rows are enough."""


def _clauses(workers: Workers, version: str, of: Case, target: str = "sglang-triton") -> set[str]:
    return {one.clause for one in workers.findings(version, of, target)}


@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
@pytest.mark.parametrize("of", [_MANY, _FEW], ids=["many rows", "narrow values"])
def test_rows_are_computed_by_programs_that_wait(workers: Workers, version: str, of: Case) -> None:
    assert _clauses(workers, version, of) == set()


@pytest.mark.parametrize(
    "planted",
    ["locks_left", "parts_scaled_alike", "parts_of_later_ones_left_out", "keys_behind_a_row"],
)
def test_a_planted_bug_of_the_kernel_is_found(workers: Workers, planted: str) -> None:
    assert _clauses(workers, NEWEST, _FEW, f"{_MUTANTS}:{planted}")


def test_graphs_of_fewer_rows_do_not_hold_the_kernel(workers: Workers) -> None:
    few = _case(7, 8)
    assert _clauses(workers, NEWEST, few, f"{_MUTANTS}:parts_scaled_alike") == set()
