"""EAGLE's draft-extend of released sglang on Qwen's sparse attention."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_qsa import HEADS, no_token_collides

TARGET = "sglang-qsa-draft-extend"
MUTANTS = "tests.targets.sglang.qsa_extend_mutants"
NEWEST = "0.5.23"
RELEASES = ["0.5.20", "0.5.21", "0.5.22", NEWEST]
TRACKS = ["0.5.22", NEWEST]
"""Those whose draft-extends are told where states are kept."""

Rows = tuple[tuple[int, int], ...]


def extended(*batches: Rows, **settings: Any) -> Case:
    """Rows with so many tokens before the step, and so many that were accepted."""
    steps = tuple(
        ReplayStep(
            mode="draft_extend",
            rows=tuple(
                BatchRow(request=100 * at + row, seq_len=cached + accepted, new_tokens=accepted)
                for row, (cached, accepted) in enumerate(rows)
            ),
            finish=tuple(100 * (at - 1) + row for row in range(len(batches[at - 1]))) if at else (),
        )
        for at, rows in enumerate(batches)
    )
    given: dict[str, Any] = {
        "modes": ("draft_extend",), "capture_bs": (1, 2, 4), "page_size": 64,
        "max_context_len": 192, "kv_pool_pages": 40, "draft_tokens": 4, "index_group": 4,
        "index_topk": 3, **HEADS,
    }  # fmt: skip
    config = EngineConfig(**{**given, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


CASE = extended(((148, 4), (100, 2), (64, 1)), ((152, 3), (104, 4)), ((68, 3),), ((128, 1), (8, 4)))
"""Each row begins a group, so that no token lies where an older one of its group was."""


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_accepted_tokens_see_their_best_groups_and_leave_keys(
    workers: Workers, version: str
) -> None:
    assert workers.findings(version, CASE, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("index_topk", "dtype"), [(0, "bfloat16"), (1, "float32")])
def test_other_selections_are_right(workers: Workers, index_topk: int, dtype: str) -> None:
    case = extended(((148, 4), (100, 2)), ((64, 3),), index_topk=index_topk, dtype=dtype)
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", RELEASES)
def test_tokens_overwrite_those_of_a_group_before_its_key_is_made(
    workers: Workers, version: str
) -> None:
    case = extended(((10, 4),), index_topk=1)
    found = workers.findings(version, case, TARGET)
    assert "group_keys" in {each.buffer for each in found}
    assert workers.findings(version, case, f"{MUTANTS}:mended") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_token_that_was_not_accepted_lies_where_an_older_one_of_its_group_was(
    workers: Workers,
) -> None:
    found = workers.findings(NEWEST, extended(((9, 1),)), f"{MUTANTS}:mended")
    assert {each.buffer for each in found} == {"group_strays"}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("own_key_unseen", "attention"),
        ("every_place_seen", "attention"),
        ("requests_of_the_first_row", "attention"),
        ("rows_by_accepted_tokens", "attention"),
        ("lone_rows_not_prepared", "attention"),
        ("keys_of_open_groups_lost", "group_keys"),
        ("keys_one_slot_late", "group_strays"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, CASE, f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.22", NEWEST])
def test_generated_cases_without_collisions_are_silent(workers: Workers, version: str) -> None:
    tracks = version in TRACKS
    drawn = generated(
        TARGET, lambda config: tracks or not config.state_track_interval, blocks=12, each=20
    )
    apart = [case for case in drawn if no_token_collides(case)]
    assert len(apart) >= 5
    for case in apart:
        assert workers.findings(version, case, f"{MUTANTS}:mended") == ()
