"""Two KV cache groups of the built-in engine: planted faults are named, healthy twins silent."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.repro import standalone_script
from fuzzgraph.targets import open_target


def case(*lengths: tuple[int, ...], **settings: Any) -> Case:
    """A step for each tuple, with a row of each length; 0 for a request that is not in it."""
    config = EngineConfig(**{
        "capture_bs": (2, 4), "page_size": 4, "swa_window": 3, "swa_page_size": 2,
        "max_context_len": 24, "kv_pool_pages": 200, **settings,
    })  # fmt: skip
    rows = [
        tuple(BatchRow(request=at, seq_len=length) for at, length in enumerate(step) if length)
        for step in lengths
    ]
    steps = tuple(ReplayStep(rows=each) for each in rows)
    return validate(Case(schema_version=1, config=config, steps=steps))


# Two requests grow out of pages and window, a third comes and takes a freed page.
GROWING = ((5, 9), (6, 10), (7, 11, 4), (8, 12))


def findings(case: Case, fault: str = "") -> tuple[Finding, ...]:
    return Execution(open_fault(fault) if fault else open_target("builtin")).run_case(case).findings


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"swa_page_size": 0, "page_size": 1},
        {"page_map": "page_table", "split_kv": 3},
        {"metadata": "raw_in_graph", "kv_dtype": "float8_e4m3fn"},
        {"attention": "mla", "head_dim": 8, "v_head_dim": 4, "sliding_window": 2},
        {"runner": "cpu_graph", "recurrent_state": True},
        {"attn_tp_size": 2, "row_mixing": "fp8_scale", "max_encoder_len": 3},
        {"dtype": "bfloat16", "num_q_heads": 4, "num_kv_heads": 2},
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_a_healthy_engine_with_two_groups_shows_nothing(settings: dict[str, Any]) -> None:
    assert findings(case(*GROWING, **settings)) == ()


@pytest.mark.parametrize(
    ("fault", "clauses", "buffer", "settings"),
    [
        ("sglang-pr-24743-second-groups-slots-stale", {"metadata"}, "swa_out_cache_loc", {}),
        ("vllm-pr-50169-slots-of-another-group", {"metadata"}, "swa_out_cache_loc", {}),
        ("tensorrt-llm-pr-18769-second-plan-not-refreshed", {"computes"}, "swa_attention", {}),
        (
            "vllm-pr-31540-page-size-of-another-group",
            {"computes"},
            "swa_attention",
            {"page_map": "page_table"},
        ),
        (
            "vllm-pr-47574-freed-pages-read",
            {"reads", "history", "computes"},
            "swa_attention",
            {"page_map": "page_table", "swa_page_size": 1, "swa_window": 1},
        ),
    ],
)
def test_a_fault_of_the_second_group_is_named(
    fault: str, clauses: set[str], buffer: str, settings: dict[str, Any]
) -> None:
    shrinking = ((5, 9, 3, 4), (6, 10, 4), (7, 0, 5))
    grown = case(*shrinking, **settings)
    named = {one.clause for one in findings(grown, fault) if one.buffer == buffer}
    assert named & clauses
    assert findings(grown) == ()


def test_a_write_to_the_pool_of_the_second_group_is_a_foreign_write() -> None:
    found = findings(case((5,), page_size=2), "vllm-pr-50169-slots-of-another-group")
    (written,) = [one for one in found if one.symptom == "foreign_write" and "k" in one.buffer[-1:]]
    assert written.buffer == "swa_kv_pool.k"
    script = standalone_script(
        case((5,), page_size=2), written, open_fault("vllm-pr-50169-slots-of-another-group")
    )
    assert "k_pool_of_group_1" in script or "swa_kv_pool" in script
