"""Drafts of several branches, of whose tokens the best are chosen, on released sglang."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.hybrid_cases import NEWEST, found, step
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.branch_mutants"

grows = partial(step, new=0, mode="draft")

# A graph is full, then padded; rows change places.
DRAFTS = (
    grows((0, 20), (1, 9), (2, 16), (3, 12)),
    grows((2, 18), (0, 21)),
    grows((3, 13), (0, 22), (1, 12)),
)


def case(*steps: ReplayStep, topk: int, spec_steps: int = 2, **settings: Any) -> Case:
    config = EngineConfig(
        modes=("draft",),
        capture_bs=(4,),
        max_context_len=32,
        kv_pool_pages=300,
        spec_topk=topk,
        spec_steps=spec_steps,
        draft_branches="chosen",
        **{"draft_tokens": 4, **settings},
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "backend", "topk"),
    [("0.5.13", "triton", 2), (NEWEST, "triton", 4), (NEWEST, "flashinfer", 2)],
)
def test_the_best_tokens_of_all_branches_go_on(
    workers: Workers, version: str, backend: str, topk: int
) -> None:
    of = case(*DRAFTS, topk=topk, spec_steps=3)
    assert found(workers, version, of, f"sglang-{backend}-draft") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_releases_whose_loop_is_stood_in_for_choose_none(workers: Workers) -> None:
    of = case(*DRAFTS, topk=2)
    assert "0.5.13" in workers.skipped("0.5.12", of, "sglang-triton-draft")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("hidden_states_stay_where_they_were", "hidden_states"),
        ("hidden_states_of_the_first_row", "hidden_states"),
        ("scores_of_other_branches", "tree_tokens"),
        ("parents_of_the_step_behind", "tree_parents"),
        ("tokens_of_the_first_places", "attention"),
        ("keys_of_all_steps_lie_in_the_first_ones_slots", "attention"),
        ("parents_without_the_first_step", "tree_parents"),
    ],
)
def test_a_planted_bug_of_branches_is_found(workers: Workers, planted: str, named: str) -> None:
    shown = found(workers, NEWEST, case(*DRAFTS, topk=3), f"{MUTANTS}:{planted}")
    assert ("computes", named) in shown
