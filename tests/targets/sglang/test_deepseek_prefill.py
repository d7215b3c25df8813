"""Full prefill graphs of DeepSeek in released sglang: a graph keeps what its capture decided."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_latent_prefill import GROWING, HEALTHY, latent_case

_TARGET = "sglang-full-prefill-deepseek"
_MUTANTS = "tests.targets.sglang.deepseek_prefill_mutants"
LATENT: dict[str, Any] = {}
AT_ONCE = {"chunked_prefix_cache_threshold": 1}
IN_CHUNKS = {"chunked_prefix_cache_threshold": 1, "max_kv_chunk_capacity": 8}
BY_THE_PAST = {"chunked_prefix_cache_threshold": 12, "max_kv_chunk_capacity": 16}
RELEASES = ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]


def _cases(settings: dict[str, Any]) -> dict[str, Case]:
    return {
        name: latent_case(*batches, **{**each, **settings})
        for name, (batches, each) in HEALTHY.items()
    }


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_an_engine_that_stays_latent_is_silent(workers: Workers, version: str) -> None:
    found = {
        name: workers.findings(version, case, _TARGET) for name, case in _cases(LATENT).items()
    }
    assert found == dict.fromkeys(HEALTHY, ())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("settings", [AT_ONCE, IN_CHUNKS, BY_THE_PAST])
def test_an_engine_whose_graphs_use_their_chunks_is_silent(
    workers: Workers, version: str, settings: dict[str, Any]
) -> None:
    found = {
        name: workers.findings(version, case, f"{_MUTANTS}:mended")
        for name, case in _cases(settings).items()
    }
    assert found == dict.fromkeys(HEALTHY, ())


@pytest.mark.sglang
@pytest.mark.parametrize("version", RELEASES)
def test_a_graph_that_expands_at_once_keeps_the_slots_of_its_capture(
    workers: Workers, version: str
) -> None:
    """reports/findings/sglang-full-prefill-one-shot.md"""
    found = workers.findings(version, latent_case(*GROWING, **AT_ONCE), _TARGET)
    assert {"contract", "noninterference", "eager", "reference"} <= {one.oracle for one in found}
    assert {one.step for one in found if one.oracle == "reference"} == {1}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    ("mutant", "settings", "oracle"),
    [
        ("absorbs_other_heads", LATENT, "reference"),
        ("lists_new_tokens_alone", AT_ONCE, "eager"),
        ("fetches_no_past", AT_ONCE, "eager"),
        ("puts_rotary_parts_of_other_rows", {**AT_ONCE, "num_q_heads": 3}, "reference"),
        ("asks_for_no_sums", IN_CHUNKS, "survival"),  # by what the model unpacks
        ("takes_a_past_for_new_tokens", IN_CHUNKS, "contract"),
        ("reads_the_first_chunk_again", IN_CHUNKS, "reference"),
        ("keeps_the_latent_row_of_another", AT_ONCE, "reference"),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, version: str, mutant: str, settings: dict[str, Any], oracle: str
) -> None:
    case = latent_case(*GROWING, **settings)
    found = workers.findings(version, case, f"{_MUTANTS}:{mutant}")
    assert oracle in {one.oracle for one in found}
