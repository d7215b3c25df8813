"""Qwen's sparse attention of released sglang, which selects groups of keys."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case, generated

_TARGET = "sglang-qsa"
_MUTANTS = "tests.targets.sglang.block_index_mutants:"
HEADS = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8}


def decodes(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows whose context is of whole pages."""
    fixed: dict[str, Any] = {
        "page_size": 64,
        "max_context_len": 192,
        "kv_pool_pages": 40,
        "index_group": 4,
    }
    return decode_case(*batches, **{**fixed, **HEADS, "index_topk": 3, **settings})


def verified(
    *lengths: int,
    index_topk: int = 1,
    drafts: int = 4,
    other_ranks: tuple[int, ...] = (),
    **settings: Any,
) -> Case:
    """A row of these lengths at its steps, whose last so many tokens are drafts.

    Args:
        other_ranks: rows of other ranks, beside which steps run without a graph.
    """
    fixed: dict[str, Any] = {
        "modes": ("target_verify",),
        "page_size": 64,
        "max_context_len": 192,
        "kv_pool_pages": 40,
        "draft_tokens": drafts,
        "index_group": 4,
        "index_topk": index_topk,
    }
    config = EngineConfig(**{**fixed, **HEADS, **settings})
    rows = [BatchRow(request=0, seq_len=length, new_tokens=drafts) for length in lengths]
    more: dict[str, Any] = {"via": "eager", "other_ranks": other_ranks} if other_ranks else {}
    steps = tuple(ReplayStep(mode="target_verify", rows=(row,), **more) for row in rows)
    return validate(Case(schema_version=1, config=config, steps=steps))


CASE = decodes(
    (72, 80, 76), (84, 68, 72), (76, 88, 73), (92, 80, 84), (79,), (192,), (13,), index_topk=16
)
"""Most rows complete a group, which is one of their best by odds."""


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("index_topk", "dtype"), [(0, "float32"), (0, "bfloat16"), (1, "bfloat16"), (3, "float32")]
)
def test_rows_attend_to_their_best_groups_and_the_tokens_behind_them(
    workers: Workers, index_topk: int, dtype: str
) -> None:
    case = decodes((148, 100, 66), (149, 101, 67), index_topk=index_topk, dtype=dtype)
    assert workers.findings("0.5.23", case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_every_release_attends_to_them(workers: Workers, version: str) -> None:
    assert workers.findings(version, CASE, _TARGET) == ()


@pytest.mark.sglang
def test_generated_cases_of_a_mended_release_are_silent(workers: Workers) -> None:
    drawn = generated(_TARGET, lambda config: config.index_topk > 0, blocks=3, each=12, enough=5)
    assert len(drawn) >= 5
    for case in drawn:
        assert workers.findings("0.5.23", case, f"{_MUTANTS}mended") == ()


@pytest.mark.sglang
def test_a_page_that_the_context_does_not_fill_is_missing_in_tables(workers: Workers) -> None:
    case = decodes((149, 148), max_context_len=150)
    found = workers.findings("0.5.23", case, _TARGET)
    assert {each.buffer for each in found} >= {"attention", "qsa_mqa_decode.page_table"}
    assert workers.findings("0.5.23", case, f"{_MUTANTS}mended") == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "buffer"),
    [
        ("groups_end_one_late", "attention"),
        ("ring_of_the_padding", "qsa_index_q_prep.cache_loc"),
        ("members_of_the_group_before", "group_keys"),
        ("lengths_round_up", "fast_topk.lengths"),
        ("pages_of_the_padding", "attention"),
        ("newest_token_unseen", "attention"),
        ("tokens_of_the_first_row", "attention"),
        ("keys_of_the_row_before", "_fa2_scratch"),
        ("lone_rows_not_prepared", "attention"),
        ("keys_of_open_groups_lost", "group_keys"),
    ],
)
def test_a_changed_line_is_found(workers: Workers, mutant: str, buffer: str) -> None:
    found = workers.findings("0.5.23", CASE, _MUTANTS + mutant)
    assert any(buffer in each.buffer for each in found)


@pytest.mark.sglang
def test_drafts_overwrite_tokens_of_a_group_before_its_key_is_made(workers: Workers) -> None:
    case = verified(14)
    found = workers.findings("0.5.23", case, f"{_TARGET}-verify")
    assert "attention" in {each.buffer for each in found}
    assert workers.findings("0.5.23", case, f"{_MUTANTS}verify_mended") == ()


@pytest.mark.sglang
def test_drafts_attend_to_the_best_groups_and_the_tokens_behind_them(workers: Workers) -> None:
    for length in (68, 76, 80):  # the first draft begins a group, and none lies behind its end
        case = verified(length, index_topk=3)
        assert workers.findings("0.5.23", case, f"{_TARGET}-verify") == ()


@pytest.mark.sglang
def test_a_draft_whose_key_is_not_kept_is_found_by_what_the_step_leaves(workers: Workers) -> None:
    case = verified(75, index_topk=3, drafts=2)
    assert workers.findings("0.5.23", case, f"{_TARGET}-verify") == ()
    found = workers.findings("0.5.23", case, f"{_MUTANTS}newest_draft_lost")
    assert {each.buffer for each in found} == {"group_keys", "group_strays"}


@pytest.mark.sglang
@pytest.mark.parametrize(("drafts", "found"), [(3, {"group_strays"}), (2, set())])
def test_a_token_that_pads_a_verify_for_ranks_lies_in_the_requests_ring(
    workers: Workers, drafts: int, found: set[str]
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    ranks: dict[str, Any] = {"attn_tp_size": 2, "dp_size": 2, "other_ranks": (1,)}
    heads: dict[str, Any] = {"capture_bs": (2,), "num_q_heads": 4, "num_kv_heads": 4}
    case = verified(60 + drafts, drafts=drafts, **ranks, **heads)
    findings = workers.findings("0.5.23", case, f"{_TARGET}-verify")
    assert {each.buffer for each in findings} == found


@pytest.mark.sglang
def test_a_rejected_draft_lies_where_an_older_token_of_its_group_was(workers: Workers) -> None:
    # Of drafts at 9 to 12 the first one stays; the last one lies where the key of 8 was.
    case = verified(13, 14, index_topk=3)
    found = workers.findings("0.5.23", case, f"{_MUTANTS}verify_mended")
    assert {each.buffer for each in found} == {"group_strays"}


def no_token_collides(case: Case) -> bool:
    """Whether in no row a token that a step computes lies where an older one of its group was."""
    rows = [row for step in case.steps for row in step.rows]
    all_places = case.config.draft_tokens if "draft_extend" in case.config.modes else 0
    open_before = [
        ((row.seq_len - row.new_tokens) % 4, max(row.new_tokens, all_places)) for row in rows
    ]
    return all(not older or older + new <= 4 for older, new in open_before)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.22", "0.5.23"])
def test_generated_verifies_whose_drafts_do_not_collide_are_silent(
    workers: Workers, version: str
) -> None:
    drawn = generated(f"{_TARGET}-verify", lambda config: config.dp_size == 1, blocks=8, each=20)
    apart = [case for case in drawn if no_token_collides(case)]
    assert len(apart) >= 5
    for case in apart:
        assert workers.findings(version, case, f"{_MUTANTS}verify_mended") == ()


def test_keys_that_are_selected_one_by_one_are_not_driven() -> None:
    config = decodes((5,), index_group=1).config
    assert "index_group=1" in str(open_target(_TARGET).unsupported(config))
