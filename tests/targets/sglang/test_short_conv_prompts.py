"""Prompts of short convolutions on released sglang, which captures none of them."""

from __future__ import annotations

import pytest

from fuzzgraph.finding import Finding
from tests.targets.sglang.hybrid_cases import NEWEST
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_hybrid_prefill import PARTS_OF_PROMPTS
from tests.targets.sglang.test_prefill import prefill_case

TARGET = "sglang-short-conv-prefill"
MUTANTS = "tests.targets.sglang.short_conv_prompt_mutants"
_GIVEN = {"recurrent_state": True, "page_size": 16, "max_context_len": 32}


def _findings(
    workers: Workers, version: str, target: str, dtype: str = "float32"
) -> tuple[Finding, ...]:
    case = prefill_case("breakable", *PARTS_OF_PROMPTS, **{**_GIVEN, "dtype": dtype})
    return workers.findings(version, case, target)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", "0.5.22", NEWEST])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_prompt_goes_on_from_its_last_inputs(workers: Workers, version: str, dtype: str) -> None:
    assert _findings(workers, version, TARGET, dtype) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("past_lost", ("computes", "gated_conv")),
        ("slots_of_the_first_rows", ("computes", "conv[0]")),
        ("gates_swapped", ("computes", "gated_conv")),
        ("slots_are_not_refreshed", ("metadata", "cache_indices")),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, named: tuple[str, str]) -> None:
    seen = _findings(workers, NEWEST, f"{MUTANTS}:{planted}")
    assert named in {(one.clause, one.buffer.rpartition(".")[2]) for one in seen}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_past_that_is_lost_shows_in_drawn_cases(workers: Workers) -> None:
    drawn = generated(TARGET, lambda config: True, blocks=1, each=12)
    found = [workers.findings(NEWEST, case, f"{MUTANTS}:past_lost") for case in drawn]
    assert any(found)


def test_it_needs_a_release_with_triton_attention_beside(workers: Workers) -> None:
    case = prefill_case("breakable", *PARTS_OF_PROMPTS, **_GIVEN)
    with pytest.raises(Exception, match="runs no short convolutions beside Triton attention"):
        workers.findings("0.5.17", case, TARGET)
