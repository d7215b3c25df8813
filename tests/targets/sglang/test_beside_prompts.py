"""Decodes of recurrent layers beside data-parallel ranks that compute prompts, on released sglang.

No rank replays a graph then. Where ranks exchange tokens of equal lengths, decodes and idle batches
become prompts that are padded to the longest: of one token each, or of all of them.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST, decodes, found, step
from tests.targets.sglang.released import Workers

_MUTANTS = "tests.targets.sglang.beside_prompt_mutants"


def beside(one: ReplayStep, *others: int, prompts: bool = True) -> ReplayStep:
    return msgspec.structs.replace(one, other_ranks=others, others_prefill=prompts)


_STEPS = (
    beside(step((0, 5), (1, 16)), 2, 0, prompts=False),
    beside(step((0, 6), (1, 17)), 4, 0),
    beside(step(mode="idle"), 7, 0),
    beside(step((1, 18), (0, 7)), 1, 1, prompts=False),
)


def case(*, even: bool, steps: tuple[ReplayStep, ...] = _STEPS, **settings: Any) -> Case:
    given = {"capture_bs": (2, 4), "dp_size": 3, "dtype": "float16", **settings}
    return decodes(*steps, even_ranks=even, **given)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sglang-gdn", "sglang-kda"])
@pytest.mark.parametrize(
    ("version", "even"),
    [
        ("0.5.13", False), ("0.5.17", False),
        ("0.5.21", False), ("0.5.21", True),
        (NEWEST, False), (NEWEST, True),
    ],
)  # fmt: skip
def test_states_follow_their_requests_beside_prompts(
    workers: Workers, target: str, version: str, even: bool
) -> None:
    assert found(workers, version, case(even=even), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", "0.5.19"])
def test_a_decode_beside_prompts_fails_up_to_0_5_20(workers: Workers, version: str) -> None:
    """sglang PR 34535; see reports/findings/sglang-decode-beside-prompts.md."""
    findings = workers.findings(version, case(even=True), "sglang-gdn")
    assert any("extend-idle conversion expects an empty rank" in one.message for one in findings)
    idle = case(even=True, steps=(_STEPS[0], _STEPS[2]))
    assert found(workers, version, idle, "sglang-gdn") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "even"),
    [
        ("layers_by_the_label", True),
        ("past_with_the_new_token", True),
        ("rows_start_alike", True),
        ("graph_beside_prompts", False),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, even: bool) -> None:
    assert found(workers, NEWEST, case(even=even), f"{_MUTANTS}:{planted}") != set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_rings_of_states_follow_the_mode_behind_the_label(workers: Workers, planted: bool) -> None:
    """Without a ring, decodes and prompts of one token read the same metadata."""
    target = f"{_MUTANTS}:metadata_by_the_label" if planted else "sglang-gdn"
    steps = (*_STEPS[:2], beside(step((0, 7), (1, 18)), 4, 0), _STEPS[2])
    rings = case(even=True, steps=steps, state_ring_len=3)
    assert bool(found(workers, NEWEST, rings, target)) == planted


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_pplx_says_so(workers: Workers) -> None:
    assert "has no pplx" in workers.skipped("0.5.13", case(even=True), "sglang-gdn")


def test_other_targets_do_not_drive_it() -> None:
    config = EngineConfig(dp_size=3, even_ranks=True, dtype="float16")
    assert "even_ranks=True is not driven" in str(open_target("sglang-triton").unsupported(config))
