"""The V1 runner of released vLLM: persistent batch, padded replay, idle ranks, outputs judged."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TARGETS = ("vllm-fa", "vllm-triton")
NEWEST = "0.33.0"
IDLE = ReplayStep(mode="idle")


def decode(*lengths: tuple[int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    """One step; a request and its length for each row."""
    rows = tuple(BatchRow(request=request, seq_len=length) for request, length in lengths)
    return ReplayStep(rows=rows, finish=finish)


def case(*steps: ReplayStep, **settings: Any) -> Case:
    config = EngineConfig(
        **{
            "capture_bs": (2, 4), "page_size": 16, "max_context_len": 48, "num_q_heads": 4,
            "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 8, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


# Rows in the engine's order: the third request takes the place of the first, which has left.
MOVED = (
    decode((0, 5), (1, 16), (2, 31)),
    decode((1, 17), (2, 32), finish=(0,)),
    decode((2, 33), (3, 48), (1, 18)),
)
# The last row is left by a request that was new a step ago.
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("version", ["0.17.1", "0.20.2", "0.25.1", NEWEST])
def test_requests_that_move_in_the_batch_keep_their_pages_and_tokens(
    vllm: Workers, version: str, target: str
) -> None:
    found = {(one.oracle, one.buffer) for one in vllm.findings(version, case(*MOVED), target)}
    assert found <= ({("contract", "is_prefilling")} if version == "0.20.2" else set())


def test_a_request_that_waits_goes_on_where_it_was(vllm: Workers) -> None:
    waits = decode((0, 16), (1, 3)), decode((1, 4)), decode((0, 17), (1, 5))
    assert vllm.findings(NEWEST, case(*waits), "vllm-fa") == ()


def test_a_preempted_request_resumes_with_other_pages(vllm: Workers) -> None:
    steps = (
        decode((0, 16), (1, 3)),
        decode((1, 4), finish=(0,)),
        decode((2, 30), (1, 5)),
        decode((0, 17), (1, 6)),
    )
    assert vllm.findings(NEWEST, case(*steps), "vllm-fa") == ()


def test_a_batch_above_the_ladder_runs_eagerly(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 6), (2, 7)), decode((0, 6), (1, 7))
    assert vllm.findings(NEWEST, case(*steps, capture_bs=(2,)), "vllm-triton") == ()


@pytest.mark.parametrize(("version", "stale"), [("0.17.1", True), ("0.20.2", False)])
def test_an_idle_rank_of_0_17_1_keeps_pages_of_requests_that_left(
    vllm: Workers, version: str, stale: bool
) -> None:
    steps = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE
    found = {one.buffer for one in vllm.findings(version, case(*steps), "vllm-triton")}
    assert ("block_table" in found) == stale


@pytest.mark.parametrize(("version", "stale"), [("0.20.2", True), (NEWEST, False)])
def test_padded_rows_of_0_20_2_count_as_prefill(vllm: Workers, version: str, stale: bool) -> None:
    found = {one.buffer for one in vllm.findings(version, case(*FULL_THEN_PADDED), "vllm-fa")}
    assert found == ({"is_prefilling"} if stale else set())


def test_dummy_rows_of_an_idle_rank_count_as_prefill(vllm: Workers) -> None:
    """Open in 0.33.0; see corpus/known_bugs/vllm-stale-prefilling-idle.toml."""
    found = vllm.findings(NEWEST, case(decode((0, 4)), IDLE), "vllm-fa")
    assert {one.buffer for one in found} == {"dummy_is_prefilling"}


@pytest.mark.parametrize(("version", "outside"), [("0.20.2", True), (NEWEST, False)])
def test_unified_attention_of_0_20_2_reads_behind_a_narrow_table(
    vllm: Workers, version: str, outside: bool
) -> None:
    # Without a graph, where the kernel is the one that takes a row in one piece.
    narrow = case(decode((0, 1), (1, 1)), capture_bs=(1,), max_context_len=1)
    found = vllm.findings(version, narrow, "vllm-triton")
    assert any("block_table.gpu" in one.message for one in found) == outside


@pytest.mark.parametrize("planted", ["padded_lengths", "first_pages_only"])
def test_a_planted_bug_of_the_runner_is_found(vllm: Workers, planted: str) -> None:
    steps = {
        "padded_lengths": FULL_THEN_PADDED,
        "first_pages_only": (decode((0, 16), (1, 3)), decode((0, 17), (1, 4))),
    }[planted]
    found = vllm.findings(NEWEST, case(*steps), f"tests.targets.vllm.mutants:{planted}")
    named = {"padded_lengths": "seq_lens", "first_pages_only": "block_table"}[planted]
    assert named in {one.buffer for one in found}


def test_a_graph_reads_the_table_that_it_was_captured_with(vllm: Workers) -> None:
    steps = decode((0, 5), (1, 20)), decode((0, 6), (1, 21))
    found = vllm.findings(NEWEST, case(*steps), "tests.targets.vllm.mutants:tables_elsewhere")
    assert ("reference", "attention") in {(one.oracle, one.buffer) for one in found}


def test_values_of_another_width_than_keys_are_not_driven() -> None:
    config = EngineConfig(page_size=16, head_dim=8, v_head_dim=4)
    refused = open_target("vllm-fa").unsupported(config)
    assert refused == "the engine's cache has one head size for keys and values"
