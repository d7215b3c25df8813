"""EAGLE's drafts and draft-extends of released sglang on DeepSeek V4's attention."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_drafts import draft_case
from tests.targets.sglang.test_qsa_draft_extend import extended

TARGET, EXTENDS = "sglang-dsv4-draft", "sglang-dsv4-draft-extend"
MUTANTS = "tests.targets.sglang.dsv4_draft_mutants"
NEWEST = "0.5.23"
COLUMNS = ["0.5.13", "0.5.16", "0.5.20"]
"""Releases whose draft workers make metadata of groups."""
RIGHT = ["0.5.21", "0.5.22", NEWEST]
CAPTURED = ["0.5.16", "0.5.19", "0.5.21", NEWEST]
"""Releases that capture draft-extends on this backend."""

Rows = tuple[int, ...]
LAYER: dict[str, Any] = {
    "page_size": 256, "attention": "mla", "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8,
    "kv_compression": "window", "kv_pool_pages": 24, "max_context_len": 768,
}  # fmt: skip


def drafts(*batches: Rows, **settings: Any) -> Case:
    """Rows with so many tokens behind them, and two steps of a draft."""
    given = {**LAYER, "draft_reach": "past", "spec_steps": 2, "draft_tokens": 3}
    return draft_case(*batches, **{**given, **settings})


ROWS: tuple[Rows, ...] = ((148, 100, 66), (600, 255, 127), (129,), (128, 8, 74, 300))
"""Some fill their window, some a page."""
ALONE: tuple[Rows, ...] = ((148,), (600,), (3,))
EXTENDED = extended(
    ((148, 4), (100, 2), (64, 1)), ((252, 4), (104, 4)), ((126, 3),), ((255, 1), (8, 4)),
    **{**LAYER, "index_group": 1, "index_topk": 0, "num_q_heads": 2},
)  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RIGHT)
def test_each_step_sees_the_last_tokens_of_its_past(workers: Workers, version: str) -> None:
    assert workers.findings(version, drafts(*ROWS), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", COLUMNS)
def test_without_a_graph_metadata_of_groups_take_slots_of_other_steps(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-mla-draft-slots.md."""
    eager = drafts((148, 100), capture_bs=(1,))
    found = workers.findings(version, eager, TARGET)
    assert {each.buffer for each in found} == {"raw_out_loc_ptr"}
    assert workers.findings(version, drafts(*ALONE), TARGET) == ()
    assert workers.findings(version, eager, f"{MUTANTS}:slots_laid_out") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_draft_of_two_steps_without_a_graph_fails_in_0_5_12(workers: Workers) -> None:
    """sglang PR 26239."""
    found = workers.findings("0.5.12", drafts((5, 6), capture_bs=(1,)), TARGET)
    assert {each.clause for each in found} == {"survives"}
    assert workers.findings("0.5.12", drafts((5,), spec_steps=1, draft_tokens=2), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("one_key_less", "attention"),
        ("windows_do_not_move", "step1_seq_lens_casual"),
        ("rows_of_the_first_request", "step1_page_table"),
        ("upgraded_before_the_graph", "step0_seq_lens_casual"),
    ],
)
def test_a_planted_bug_in_drafts_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, drafts(*ROWS), f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", CAPTURED)
def test_accepted_tokens_see_the_last_tokens_before_them(workers: Workers, version: str) -> None:
    assert workers.findings(version, EXTENDED, EXTENDS) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("drafts_unseen", "attention"),
        ("requests_of_the_first_row", "attention"),
        ("keys_in_the_slot_of_padding", "attention"),
        ("metadata_of_the_capture", "attention"),
    ],
)
def test_a_planted_bug_in_draft_extends_is_found(
    workers: Workers, planted: str, output: str
) -> None:
    found = workers.findings(NEWEST, EXTENDED, f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", NEWEST])
@pytest.mark.parametrize("target", [TARGET, EXTENDS])
def test_generated_cases_are_silent(workers: Workers, version: str, target: str) -> None:
    for case in generated(target, lambda config: True, blocks=2, each=10):
        assert workers.findings(version, case, target) == ()
