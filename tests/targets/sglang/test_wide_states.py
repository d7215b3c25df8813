"""Mamba2 with states as wide as models have them, on released sglang: kernels take their rows and
columns in several blocks."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.hybrid_cases import (
    KEPT_IN_A_FULL_GRAPH,
    KEPT_LESS_AND_LESS,
    MOVED,
    NEWEST,
    decodes,
    found,
    verifies,
)
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_linear_heads import PROMPTS
from tests.targets.sglang.test_prefill import prefill_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
_COLUMNS = (128, 256)


def _prompts(**settings: Any) -> Case:
    given = {"recurrent_state": True, "dtype": "float32", "page_size": 16}
    sizes = {"max_context_len": 144, "capture_tokens": (8, 96)}
    return prefill_case("breakable", *PROMPTS, **{**given, **sizes, **settings})


def _cases(columns: int) -> dict[str, Case]:
    wide = {"linear_head_dim": columns}
    return {
        "decode": decodes(*MOVED, capture_bs=(2, 3), **wide),
        "decode in half precision": decodes(*MOVED, capture_bs=(2, 3), dtype="float16", **wide),
        "kept": decodes(*KEPT_IN_A_FULL_GRAPH, state_track_interval=16, **wide),
        "verify": verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,), **wide),
        "prompts": _prompts(**wide),
        "prompts in half precision": _prompts(dtype="float16", **wide),
        "kept prompts": _prompts(state_track_interval=16, **wide),
    }


@pytest.mark.parametrize("columns", _COLUMNS)
@pytest.mark.parametrize(
    ("version", "target", "case"),
    [
        ("0.5.9", "sglang-mamba", "decode"),
        ("0.5.16", "sglang-mamba", "decode"),
        (NEWEST, "sglang-mamba", "decode"),
        (NEWEST, "sglang-mamba", "decode in half precision"),
        (NEWEST, "sglang-mamba", "kept"),
        ("0.5.9", "sglang-mamba-verify", "verify"),
        (NEWEST, "sglang-mamba-verify", "verify"),
        ("0.5.16", "sglang-mamba-prefill", "prompts"),
        (NEWEST, "sglang-mamba-prefill", "prompts"),
        (NEWEST, "sglang-mamba-prefill", "prompts in half precision"),
        (NEWEST, "sglang-mamba-prefill", "kept prompts"),
    ],
)
def test_all_blocks_of_a_state_are_computed(
    workers: Workers, version: str, target: str, case: str, columns: int
) -> None:
    assert found(workers, version, _cases(columns)[case], target) == set()


_MUTANTS = "tests.targets.sglang.wide_state_mutants"


@pytest.mark.parametrize(
    ("planted", "case", "columns"),
    [
        ("rows_of_the_first_block", "decode", 128),
        ("verified_rows_of_the_first_block", "verify", 128),
        ("readout_of_the_first_columns", "prompts", 128),
        ("columns_of_the_first_block", "prompts", 128),
        ("state_read_over_its_first_columns", "prompts", 256),
    ],
)
def test_a_wrong_block_shows_in_wide_states_alone(
    workers: Workers, planted: str, case: str, columns: int
) -> None:
    target = f"{_MUTANTS}:{planted}"
    seen = found(workers, NEWEST, _cases(columns)[case], target)
    assert "computes" in {clause for clause, _ in seen}
    assert found(workers, NEWEST, _cases(0)[case], target) == set()
