"""Breakable prefill graphs of models with recurrent layers, on released sglang."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

GDN, KDA, GLM = "sglang-gdn-prefill", "sglang-kda-prefill", "sglang-kda-glm-prefill"
_MUTANTS = "tests.targets.sglang.hybrid_prefill_mutants"
_GIVEN = {"recurrent_state": True, "dtype": "float16", "page_size": 16, "max_context_len": 32}

PARTS_OF_PROMPTS: tuple[Rows, ...] = (
    ((0, 0, 5), (1, 0, 3)),
    ((1, 3, 4), (0, 5, 2)),
    ((0, 7, 2),),
    ((2, 0, 7),),
)
"""Two prompts in two parts each; then one row alone, and a request that takes a slot anew."""


def found(
    workers: Workers, version: str, target: str, kind: str = "breakable"
) -> set[tuple[str, str]]:
    """(clause, last part of the buffer's name) of each finding of prompts in parts."""
    case = prefill_case(kind, *PARTS_OF_PROMPTS, **_GIVEN)
    findings = workers.findings(version, case, target)
    return {(one.clause, one.buffer.rpartition(".")[2]) for one in findings}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "version"),
    [
        (GDN, "0.5.13"), (GDN, NEWEST),
        (KDA, "0.5.17"), (KDA, "0.5.19"),
        (GLM, NEWEST),
    ],
)  # fmt: skip
def test_a_prompt_in_parts_goes_on_from_its_state(
    workers: Workers, target: str, version: str
) -> None:
    assert found(workers, version, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "version"),
    [("gdn", "0.5.9"), ("gdn", "0.5.21"), ("kda", "0.5.17"), ("kda", "0.5.21")],
)
def test_pieces_end_at_linear_attention(workers: Workers, layer: str, version: str) -> None:
    assert found(workers, version, f"sglang-{layer}-piecewise-prefill", "piecewise") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_breakable_graphs_of_0_5_12_hold_linear_attention(workers: Workers) -> None:
    assert ("computes", "gated_delta") in found(workers, "0.5.12", GDN)


@pytest.mark.sglang
@pytest.mark.slow
def test_a_graph_takes_logits_beside_gates_by_heads_for_betas(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-kda-prefill-beta.md."""
    assert ("computes", "channel_delta") in found(workers, NEWEST, KDA)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("states_not_written", ("computes", "temporal")),
        ("past_of_the_convolution_lost", ("computes", "gated_delta")),
        ("slots_of_the_first_rows", ("metadata", "state_indices")),
        ("gates_of_the_token_before", ("computes", "temporal")),
        ("tables_made_once", ("metadata", "query_start_loc")),
        ("no_row_has_a_past", ("computes", "channel_delta")),
        ("slots_in_another_order", ("metadata", "state_indices")),
        ("one_token_fewer", ("computes", "channel_delta")),
        ("offsets_one_row_late", ("computes", "channel_delta")),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, named: tuple[str, str]) -> None:
    assert named in found(workers, NEWEST, f"{_MUTANTS}:{planted}")


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        (GDN, {"max_context_len": 65}, "max_context_len=65 is more than the 64 positions"),
        (KDA, {"max_context_len": 33}, "max_context_len=33 is more than the 32 positions"),
        ("sglang-kda-piecewise-prefill", {}, "prefill_runner='breakable' is not driven"),
        (GDN, {"recurrent_state": False}, "recurrent_state must be true"),
        (GLM, {"dtype": "float32"}, "dtype='float32' is not driven, only float16"),
    ],
)
def test_configs_that_the_model_cannot_have_are_refused(
    target: str, settings: dict[str, Any], said: str
) -> None:
    given = {**_GIVEN, "modes": ("prefill",), "capture_tokens": (4,), "prefill_runner": "breakable"}
    assert said in str(open_target(target).unsupported(EngineConfig(**{**given, **settings})))
