"""Layers that attend in chunks on released sglang, as Llama 4 has them."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import found, step, verify
from tests.targets.sglang.released import Workers

TARGET, VERIFIES, NEWEST = "sglang-fa3-chunked", "sglang-fa3-chunked-verify", "0.5.23"
# Rows end a chunk of 8, begin one, and lie inside, and change between these.
EDGES = (
    step((0, 5), (1, 16), (2, 31)),
    step((0, 8), (1, 17), (2, 32)),
    step((1, 24), (2, 25), finish=(0,)),
)
IN_THE_FIRST_CHUNK = (step((0, 5), (1, 6)),)


def chunked(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (2, 4), "page_size": 2, "max_context_len": 32, "attention_chunk_size": 8}
    config = EngineConfig(**{**given, "modes": (steps[0].mode,), **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", NEWEST])
@pytest.mark.parametrize("settings", [{}, {"page_size": 1}, {"capture_bs": (1,)}])
def test_decodes_see_the_keys_of_their_chunk(
    workers: Workers, version: str, settings: dict[str, Any]
) -> None:
    assert found(workers, version, chunked(*EDGES, **settings), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.19"])
def test_pages_of_chunks_are_looked_up_by_tokens_up_to_0_5_19(
    workers: Workers, version: str
) -> None:
    """sglang PR 32902: without a graph wrong keys, in a graph a table of one column."""
    eager = chunked(*EDGES, capture_bs=(1,))
    assert ("computes", "attention") in found(workers, version, eager, TARGET)
    assert ("reads", "local_block_table") in found(workers, version, chunked(*EDGES), TARGET)


@pytest.mark.sglang
@pytest.mark.slow
def test_graphs_of_verifies_attend_beyond_the_chunk(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-chunks.md."""
    case = chunked(verify((0, 11), (1, 24)), draft_tokens=3)
    assert ("computes", "attention") in found(workers, NEWEST, case, VERIFIES)
    within = chunked(verify((0, 5), (1, 8)), draft_tokens=3)
    assert ("computes", "attention") not in found(workers, NEWEST, within, VERIFIES)


def test_other_targets_have_no_chunks() -> None:
    config = EngineConfig(attention_chunk_size=16)
    assert "attention_chunk_size=16 is not driven" in str(
        open_target("sglang-fa3").unsupported(config)
    )


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["a_page_more", "sees_all", "first_chunks", "one_too_few"])
def test_a_planted_bug_of_chunks_is_found(workers: Workers, planted: str) -> None:
    target = f"tests.targets.sglang.chunk_mutants:{planted}"
    assert ("computes", "attention") in found(workers, NEWEST, chunked(*EDGES), target)
