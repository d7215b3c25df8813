"""Full prefill graphs of released sglang: attention inside, requests padded to slots."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

_TARGET = "sglang-full-prefill"
_MUTANTS = "tests.targets.sglang.full_prefill_mutants"

LONGER: tuple[Rows, ...] = (((0, 0, 6), (1, 0, 2)), ((2, 2, 4),))
"""Two requests, then another one alone, whose keys are in part of an earlier step."""
HEALTHY: dict[str, tuple[tuple[Rows, ...], dict[str, Any]]] = {
    "more requests, then fewer": (LONGER, {}),
    "ragged rows with a past": ((((0, 0, 2), (1, 5, 1), (2, 3, 4)), ((0, 2, 3), (2, 7, 2))), {}),
    "more requests than slots": ((((0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)), ((0, 1, 7),)), {}),
    "tokens of several contexts": ((((0, 0, 6), (1, 0, 6), (2, 0, 6)), ((3, 0, 3),)),
        {"max_context_len": 6, "capture_tokens": (4, 18)}),
    "heads and values of their own widths": ((((0, 1, 3),), ((1, 2, 5), (2, 0, 1))),
        {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 4}),
    "half precision": ((((0, 0, 5),), ((0, 5, 3), (1, 0, 2))), {"dtype": "bfloat16"}),
    "a full bucket of two ranks": ((((0, 0, 8),), ((1, 3, 2), (2, 0, 2))),
        {"attn_tp_size": 2, "attn_tp_rank": 1}),
}  # fmt: skip
"""On pages of one token, with layers of one kind, as the first release has them."""
LATER: dict[str, tuple[tuple[Rows, ...], dict[str, Any]]] = {
    **HEALTHY,
    "pages of 16": ((((0, 15, 3), (1, 16, 2)), ((0, 18, 3),)), {"page_size": 16,
        "max_context_len": 32}),
    "a layer behind a window": ((((0, 0, 5), (1, 0, 3)), ((0, 5, 3), (1, 3, 2)), ((2, 0, 3),)),
        {"swa_window": 2, "page_size": 2}),
}  # fmt: skip


def full_case(*batches: Rows, **settings: Any) -> Any:
    return prefill_case("full", *batches, **{"prefill_slots": 3, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_a_healthy_engine_is_silent(workers: Workers, version: str) -> None:
    found = {
        name: workers.findings(version, full_case(*batches, **settings), _TARGET)
        for name, (batches, settings) in LATER.items()
    }
    assert found == dict.fromkeys(LATER, ())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.15", "0.5.18"])
def test_releases_whose_graphs_lack_the_count_show_no_more(workers: Workers, version: str) -> None:
    """sglang PR 35588; from 0.5.16 on ranks of attention-TP have the count."""
    found = {
        name: {
            (one.oracle, one.buffer)
            for one in workers.findings(version, full_case(*batches, **settings), _TARGET)
        }
        for name, (batches, settings) in HEALTHY.items()
        if "several contexts" not in name  # sglang PR 30206
    }
    lacks = {("contract", "num_token_non_padded")}
    ranks = found.pop("a full bucket of two ranks")
    assert ranks == (lacks if version == "0.5.15" else set())
    assert found == dict.fromkeys(found, lacks)


@pytest.mark.sglang
@pytest.mark.slow
def test_the_first_release_has_no_pages_and_no_windows(workers: Workers) -> None:
    for settings in ({"page_size": 16, "max_context_len": 32}, {"swa_window": 2}):
        case = full_case(((0, 0, 3),), **settings)
        said = workers.skipped("0.5.15", case, _TARGET)
        assert said == "pages and windows are driven from sglang 0.5.16 on"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_the_engine_itself_pads_and_replays_one_graph(workers: Workers, version: str) -> None:
    assert workers.findings(version, full_case(*LONGER), f"{_MUTANTS}:watched") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    ("mutant", "finding"),
    [
        ("keeps_lengths", ("contract", "seq_lens")),
        ("keeps_rows", ("contract", "req_pool_indices")),
        ("keeps_prefixes", ("contract", "extend_prefix_lens")),
        ("keeps_count", ("contract", "num_token_non_padded")),
        ("welds_queries_to_keys", ("contract", "cu_seqlens_q")),
        ("rounds_pages_down", ("contract", "page_table")),
        ("keeps_window_slots", ("contract", "swa_out_cache_loc")),
        ("hands_out_no_logits", ("reference", "last_attention")),
        ("replays_nothing", ("reference", "attention")),
        ("has_a_pool_for_each_graph", ("survival", "")),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, version: str, mutant: str, finding: tuple[str, str]
) -> None:
    settings = {"swa_window": 3, "page_size": 2} if "window" in mutant or "pages" in mutant else {}
    case = full_case(*LONGER, ((2, 6, 1), (3, 0, 2)), **settings)
    found = workers.findings(version, case, f"{_MUTANTS}:{mutant}")
    assert finding in {(one.oracle, one.buffer.rpartition(".")[2]) for one in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_rows_that_pad_a_prompt_to_its_bucket_reach_live_rows(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-full-prefill-padded-rows.md."""
    case = full_case(((0, 0, 3),), row_mixing="nan")
    found = {(one.oracle, one.buffer) for one in workers.findings("0.5.23", case, _TARGET)}
    assert found == {("noninterference", "mixed"), ("eager", "mixed"), ("reference", "mixed")}


def test_more_tokens_than_the_slots_can_hold_are_not_driven() -> None:
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(33,), max_context_len=16, prefill_runner="full",
        prefill_slots=2,
    )  # fmt: skip
    said = open_target(_TARGET).unsupported(config)
    assert said == "no graph has 33 tokens: 2 slots end at 32"
