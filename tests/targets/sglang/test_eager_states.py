"""What hybrid models keep for the prefix cache without a graph, on released sglang."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.hybrid_cases import KEPT_IN_A_FULL_GRAPH, NEWEST, decodes, step
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import prefill_case

_MUTANTS = "tests.targets.sglang.eager_state_mutants"
# Both rows reach a multiple of the interval at once, in a graph.
_BOTH = (step((0, 15), (1, 31)), step((0, 16), (1, 32)))


def _stages(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    return {(one.clause, one.stage) for one in workers.findings(version, case, target)}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["gdn", "kda", "mamba", "lightning"])
def test_a_state_kept_for_another_row_without_a_graph_is_found(
    workers: Workers, planted: str
) -> None:
    case = decodes(*_BOTH, state_track_interval=16, capture_bs=(2,))
    assert _stages(workers, NEWEST, case, f"sglang-{planted}") == set()
    seen = _stages(workers, NEWEST, case, f"{_MUTANTS}:{planted}")
    assert seen == {("computes", "eager")}


@pytest.mark.sglang
@pytest.mark.slow
def test_one_of_two_rows_that_is_kept_elsewhere_is_a_write_of_the_eager_run(
    workers: Workers,
) -> None:
    case = decodes(*KEPT_IN_A_FULL_GRAPH, state_track_interval=16)
    seen = _stages(workers, NEWEST, case, f"{_MUTANTS}:gdn")
    assert seen == {("computes", "eager"), ("writes", "eager")}


@pytest.mark.sglang
@pytest.mark.slow
def test_inputs_of_a_prompt_that_are_kept_for_another_row_are_found(workers: Workers) -> None:
    """Graphs of KDA's kernels read tables of their own."""
    given = {
        "recurrent_state": True,
        "dtype": "float16",
        "page_size": 16,
        "max_context_len": 144,
        "capture_tokens": (8, 144),
        "state_track_interval": 64,
    }
    case = prefill_case("breakable", ((0, 0, 64), (1, 0, 70)), **given)
    found = ("computes", "eager")
    assert found not in _stages(workers, NEWEST, case, "sglang-kda-glm-prefill")
    assert found in _stages(workers, NEWEST, case, f"{_MUTANTS}:kda_prefill")
