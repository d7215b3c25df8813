"""Recurrent layers with heads as wide as models have them, on released sglang: kernels take their
columns in several blocks."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import (
    KEPT,
    KEPT_LESS_AND_LESS,
    MOVED,
    NEWEST,
    decodes,
    found,
    verifies,
)
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_prefill import Rows, prefill_case
from tests.targets.sglang.test_rings import checked, rings

_MUTANTS = "tests.targets.sglang.linear_head_mutants"
_WIDE = 128
PROMPTS: tuple[Rows, ...] = (((0, 0, 70), (1, 0, 3)), ((1, 3, 24), (0, 70, 66)))
"""Prompts of several chunks, which go on where one ends and within one."""


def _prompts(kind: str, dim: int, **settings: Any) -> Case:
    given = {"recurrent_state": True, "dtype": "float16", "page_size": 16}
    sizes = {"max_context_len": 144, "capture_tokens": (8, 96)}
    return prefill_case(kind, *PROMPTS, linear_head_dim=dim, **{**given, **sizes, **settings})


def _cases(dim: int) -> dict[str, Case]:
    return {
        "decode": decodes(*MOVED, capture_bs=(2, 3), linear_head_dim=dim),
        "decode in half precision": decodes(
            *MOVED, capture_bs=(2, 3), dtype="float16", linear_head_dim=dim
        ),
        "kept": decodes(*KEPT, state_track_interval=16, linear_head_dim=dim),
        "rings": rings(linear_head_dim=dim),
        "verify": verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,), linear_head_dim=dim),
        "verify by rings": checked(linear_head_dim=dim),
        "breakable": _prompts("breakable", dim),
        "piecewise": _prompts("piecewise", dim),
        "kept prompts": _prompts("breakable", dim, state_track_interval=64),
    }


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "target", "case"),
    [
        ("0.5.9", "sglang-gdn", "decode"),
        ("0.5.16", "sglang-gdn", "decode"),
        (NEWEST, "sglang-gdn", "decode"),
        (NEWEST, "sglang-gdn", "decode in half precision"),
        (NEWEST, "sglang-gdn", "kept"),
        ("0.5.16", "sglang-gdn", "rings"),
        (NEWEST, "sglang-gdn", "rings"),
        ("0.5.16", "sglang-kda", "decode"),
        (NEWEST, "sglang-kda", "decode"),
        (NEWEST, "sglang-kda", "kept"),
        (NEWEST, "sglang-kda", "rings"),
        ("0.5.9", "sglang-gdn-verify", "verify"),
        ("0.5.16", "sglang-gdn-verify", "verify"),
        (NEWEST, "sglang-gdn-verify", "verify"),
        (NEWEST, "sglang-gdn-verify", "verify by rings"),
        ("0.5.20", "sglang-kda-verify", "verify"),
        (NEWEST, "sglang-kda-verify", "verify"),
        ("0.5.20", "sglang-kda-verify", "verify by rings"),
        (NEWEST, "sglang-kda-verify", "verify by rings"),
        ("0.5.16", "sglang-gdn-prefill", "breakable"),
        (NEWEST, "sglang-gdn-prefill", "breakable"),
        (NEWEST, "sglang-gdn-prefill", "kept prompts"),
        ("0.5.16", "sglang-gdn-piecewise-prefill", "piecewise"),
        ("0.5.17", "sglang-kda-prefill", "breakable"),
        ("0.5.20", "sglang-kda-piecewise-prefill", "piecewise"),
        (NEWEST, "sglang-kda-glm-prefill", "breakable"),
    ],
)
def test_all_blocks_of_columns_are_computed(
    workers: Workers, version: str, target: str, case: str
) -> None:
    assert found(workers, version, _cases(_WIDE)[case], target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "case"),
    [
        ("keys_of_the_loop_before", "breakable"),
        ("keys_of_the_first_block", "breakable"),
        ("first_block_alone_solved", "breakable"),
        ("state_over_its_first_block", "breakable"),
        ("values_of_the_first_block", "decode"),
        ("verified_values_of_the_first_block", "verify"),
    ],
)
def test_a_wrong_block_shows_in_wide_heads_alone(workers: Workers, planted: str, case: str) -> None:
    target = f"{_MUTANTS}:{planted}"
    seen = found(workers, NEWEST, _cases(_WIDE)[case], target)
    assert "computes" in {clause for clause, _ in seen}
    assert found(workers, NEWEST, _cases(0)[case], target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["keys_of_the_first_block", "first_block_alone_solved"])
def test_generated_cases_find_a_wrong_block(workers: Workers, planted: str) -> None:
    name = "sglang-kda-glm-prefill" if planted.startswith("keys") else "sglang-gdn-prefill"
    drawn = generated(
        name, lambda config: config.linear_head_dim == _WIDE, blocks=24, each=60, enough=8
    )
    assert any(found(workers, NEWEST, case, f"{_MUTANTS}:{planted}") for case in drawn[:8])


def test_lightning_attention_has_no_wide_heads_and_states_of_256_columns_are_of_mamba2() -> None:
    wide, wider = (_cases(columns)["decode"].config for columns in (_WIDE, 256))
    assert "linear_head_dim=128" in str(open_target("sglang-lightning").unsupported(wide))
    assert open_target("sglang-kda").unsupported(wide) is None
    assert "linear_head_dim=256" in str(open_target("sglang-kda").unsupported(wider))
    assert open_target("sglang-mamba").unsupported(wider) is None
