"""EAGLE's drafts of released sglang on Qwen's sparse attention."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_drafts import draft_case
from tests.targets.sglang.test_qsa import HEADS

TARGET = "sglang-qsa-draft"
MUTANTS = "tests.targets.sglang.qsa_draft_mutants"
NEWEST = "0.5.23"
RELEASES = ["0.5.20", "0.5.21", "0.5.22", NEWEST]

Rows = tuple[int, ...]


def drafts(*batches: Rows, **settings: Any) -> Case:
    """Rows with so many tokens behind them, and two steps of a draft."""
    given: dict[str, Any] = {
        "capture_bs": (1, 2, 4), "page_size": 64, "max_context_len": 192, "kv_pool_pages": 40,
        "spec_steps": 2, "draft_tokens": 3, "index_group": 4, "index_topk": 3, **HEADS,
    }  # fmt: skip
    return draft_case(*batches, **{**given, **settings})


ROWS: tuple[Rows, ...] = ((148, 100, 66), (152, 104, 74), (68,), (128, 8, 74, 84))
"""No draft lies where an older token of an open group is kept; some complete a group."""


def no_draft_collides(case: Case) -> bool:
    """Whether in no row a draft lies where an older token of its open group is kept."""
    steps = case.config.spec_steps
    lens = [row.seq_len for step in case.steps for row in step.rows]
    return case.config.shared_selection or all(
        not each % 4 or each % 4 + steps <= 4 for each in lens
    )


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_each_step_sees_its_best_groups_and_leaves_keys(workers: Workers, version: str) -> None:
    assert workers.findings(version, drafts(*ROWS), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_a_draft_lies_where_an_older_token_of_its_group_was(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-qsa-verify-ring.md."""
    found = workers.findings(version, drafts((63,)), TARGET)
    assert {each.buffer for each in found} == {"group_strays"}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_drafts_that_share_a_selection_do_not_see_themselves(
    workers: Workers, version: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-qsa-shared-selection.md."""
    case = drafts(*ROWS, shared_selection=True)
    found = workers.findings(version, case, TARGET)
    assert "attention" in {each.buffer for each in found}
    assert workers.findings(version, case, f"{MUTANTS}:mended") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("own_key_unseen", "attention"),
        ("steps_of_one_length", "step1_sequence_lengths"),
        ("padded_rows_are_live", "step0_sequence_lengths"),
        ("requests_of_another_step", "step1_row_req_pool_indices"),
        ("pages_of_another_step", "attention"),
        ("requests_kept_by_size", "attention"),
        ("padding_kept_by_size", "attention"),
        ("lengths_do_not_grow", "attention"),
        ("keys_of_open_groups_lost", "group_keys"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, drafts(*ROWS), f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_lengths_that_do_not_grow_are_found_where_each_step_is_prepared_by_itself(
    workers: Workers,
) -> None:
    found = workers.findings("0.5.20", drafts(*ROWS), f"{MUTANTS}:lengths_do_not_grow")
    assert "step1_sequence_lengths" in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["newest_draft_unseen", "selection_of_the_first_row"])
def test_a_bug_in_a_shared_selection_is_found(workers: Workers, planted: str) -> None:
    case = drafts(*ROWS, shared_selection=True)
    found = workers.findings(NEWEST, case, f"{MUTANTS}:{planted}")
    assert "attention" in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_generated_drafts_that_do_not_collide_are_silent(workers: Workers, version: str) -> None:
    drawn = generated(TARGET, lambda config: config.dp_size == 1, blocks=8, each=12)
    apart = [case for case in drawn if no_draft_collides(case)][:20]
    assert len(apart) >= 10
    for case in apart:
        assert workers.findings(version, case, f"{MUTANTS}:mended") == ()
