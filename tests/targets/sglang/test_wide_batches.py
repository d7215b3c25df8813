"""Batches of released sglang past the blocks of rows that its planners take at once."""

from __future__ import annotations

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, Via, validate
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_MUTANTS = "tests.targets.sglang.wide_mutants"


def wide_case(rows: int) -> Case:
    """All rows of a graph but one, twice, the second time without the graph, then three of them."""
    config = EngineConfig(
        capture_bs=(rows + 1,), req_pool_size=rows + 1, max_context_len=8,
        kv_pool_pages=8 * (rows + 1) + 2,
    )  # fmt: skip
    steps = (_step(rows, 0), _step(rows, 1, via="eager"), _step(3, 2))
    return validate(Case(schema_version=1, config=config, steps=steps))


def _step(rows: int, grown: int, via: Via = "graph") -> ReplayStep:
    made = (BatchRow(request=row, seq_len=2 + row % 4 + grown) for row in range(rows))
    return ReplayStep(rows=tuple(made), via=via)


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
@pytest.mark.parametrize("target", ["sglang-triton", "sglang-fa3", "sglang-flashinfer"])
def test_rows_behind_each_block_are_computed_as_the_others(
    workers: Workers, version: str, target: str
) -> None:
    assert workers.findings(version, wide_case(260), target) == ()


def test_offsets_that_stay_behind_row_256_are_found_in_a_batch_of_more(workers: Workers) -> None:
    target = f"{_MUTANTS}:sums_of_a_block"
    assert workers.findings("0.5.23", wide_case(250), target) == ()
    assert workers.findings("0.5.23", wide_case(260), target) != ()


def test_lengths_that_stay_behind_row_128_are_found_in_a_batch_of_more(workers: Workers) -> None:
    target = f"{_MUTANTS}:lengths_of_a_block"
    assert workers.findings("0.5.23", wide_case(120), target) == ()
    assert workers.findings("0.5.23", wide_case(140), target) != ()
