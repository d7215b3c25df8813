"""Dimensions name what a case covers, and nothing else."""

from __future__ import annotations

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.coverage_values import coverage_values


def step(*seq_lens: int, first: int = 0, **fields: object) -> ReplayStep:
    """A decode step of requests `first`, `first + 1`, ... with these lengths."""
    rows = tuple(BatchRow(request=first + i, seq_len=n) for i, n in enumerate(seq_lens))
    return ReplayStep(rows=rows, **fields)  # type: ignore[arg-type]


def covered(config: EngineConfig, *steps: ReplayStep) -> frozenset[str]:
    return coverage_values(Case(schema_version=1, config=config, steps=steps))


def test_a_batch_below_its_captured_size_is_padded() -> None:
    config = EngineConfig(capture_bs=(4,))
    assert "raw<padded" in covered(config, step(1, 1, 1))
    assert "raw<padded" not in covered(config, step(1, 1, 1, 1))


def test_a_batch_above_the_ladder_is_no_graph() -> None:
    names = covered(EngineConfig(capture_bs=(1,)), step(1), step(1, 1), step(1))
    assert "larger eager between graphs" in names
    assert "above ladder" in names
    assert "eager between graphs" not in names


def test_lengths_are_named_by_the_edge_they_touch() -> None:
    config = EngineConfig(page_size=4, sliding_window=6)
    names = covered(config, step(5, 7, 16))
    assert {"len=page+1", "len=window+1", "len=context", "window>page"} <= names
    assert not {"len=page", "len=page-1", "len=window", "len=1"} & names


def test_a_length_is_named_by_its_place_in_the_last_of_several_pages() -> None:
    config = EngineConfig(page_size=4, max_context_len=16)
    names = {"later page just full", "later page just begun", "last page of the context"}
    assert names & covered(config, step(8)) == {"later page just full"}
    assert names & covered(config, step(9)) == {"later page just begun"}
    assert names & covered(config, step(13)) == {
        "later page just begun",
        "last page of the context",
    }
    assert not names & covered(config, step(3, 4, 5, 7))


def test_a_batch_next_to_its_captured_size_and_one_on_the_largest_graph_are_named() -> None:
    config, names = EngineConfig(capture_bs=(2, 4)), {"one padded row", "largest graph"}
    assert names & covered(config, step(1)) == {"one padded row"}
    assert names & covered(config, step(1, 1, 1)) == names
    assert names & covered(config, step(1, 1, 1, 1)) == {"largest graph"}
    assert not names & covered(config, step(1, 1, 1, 1, 1)), "above the ladder there is no graph"


def test_a_pool_is_full_of_requests_and_then_of_their_pages() -> None:
    config = EngineConfig(req_pool_size=2, page_size=4, max_context_len=16)
    names = {"request pool full", "KV pool full"}
    assert names & covered(config, step(16)) == set()
    assert names & covered(config, step(16), step(12, first=1)) == {"request pool full"}
    assert names & covered(config, step(16), step(13, first=1)) == names
    assert names & covered(config, step(16), step(13, first=1, finish=(0,))) == set()


def test_a_batch_that_falls_twice_differs_from_one_that_comes_back() -> None:
    config = EngineConfig(capture_bs=(8,))
    falling = covered(config, step(1, 1, 1), step(1, 1), step(1))
    returning = covered(config, step(1), step(1, 1), step(1))
    assert "shrinking twice" in falling and "small large small" not in falling
    assert "small large small" in returning and "shrinking twice" not in returning


def test_a_request_absent_from_a_step_is_parked_until_it_returns() -> None:
    config = EngineConfig()
    names = covered(config, step(1, 1), step(2), step(3, 2))
    assert {"parked request", "parked request returns"} <= names
    assert "parked request" not in covered(config, step(1, 1), step(2, finish=(1,)))


def test_a_prefix_counts_as_shared_only_where_no_step_writes_it() -> None:
    config = EngineConfig(page_size=2)
    shared = Case(schema_version=1, config=config, steps=(step(3, 5),), shared_prefix_pages=1)
    written = Case(schema_version=1, config=config, steps=(step(2, 5),), shared_prefix_pages=1)
    assert "shared prefix" in coverage_values(shared)
    assert "shared prefix" not in coverage_values(written)


def test_a_rank_without_live_rows_is_named() -> None:
    config = EngineConfig(capture_bs=(4,), attn_tp_size=2, attn_tp_rank=1)
    assert "rank without live rows" in covered(config, step(1, 1))
    assert "rank without live rows" not in covered(config, step(1, 1, 1))


def test_a_newcomer_one_token_longer_than_the_last_owner_of_its_row_is_named() -> None:
    name, config = "row reused by a request one token longer", EngineConfig(req_pool_size=2)
    assert name in covered(config, step(4), step(5, first=1, finish=(0,)))
    assert name not in covered(config, step(4), step(4, first=1, finish=(0,)))
    assert name not in covered(config, step(4), step(5)), "the same request has grown"


def test_an_eager_prefill_is_far_above_the_ladder_from_twice_its_top_on() -> None:
    name = "prefill far above the ladder"
    config = EngineConfig(modes=("prefill",), capture_tokens=(4,), max_context_len=16)

    def prefill(tokens: int) -> frozenset[str]:
        row = BatchRow(request=0, seq_len=tokens, new_tokens=tokens)
        return covered(config, ReplayStep(mode="prefill", rows=(row,)))

    assert name in prefill(9)
    assert name not in prefill(8)


def test_a_window_is_shorter_than_the_drafts_only_where_drafts_are_verified() -> None:
    name = "window<draft tokens"
    assert name in covered(EngineConfig(modes=("target_verify",), sliding_window=1), step(2))
    assert name not in covered(EngineConfig(modes=("target_verify",), sliding_window=2), step(2))
    assert name not in covered(EngineConfig(sliding_window=1), step(2))
