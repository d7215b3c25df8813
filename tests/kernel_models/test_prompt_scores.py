"""Scores of prompts' tokens for groups: what kernels write, against a formula in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.prompt_scores import mask_scores, packed_scores, relative_scores
from tests.kernel_models.strict_runs import strictly

HEADS, WIDTH, ROWS, KEYS = 2, 16, 6, 11
TILE, BLOCK = 4, 3


def call(**changed: Any) -> dict[str, Any]:
    torch.manual_seed(6)
    return {
        "q": torch.randn(ROWS * HEADS, WIDTH).bfloat16(),
        "k": torch.randn(KEYS, WIDTH).bfloat16(),
        "logits": torch.full((ROWS, KEYS), torch.nan),
        "starts": torch.tensor([0, 0, 5, 5, 5, 5], dtype=torch.int32),
        "ends": torch.tensor([1, 3, 6, 6, 7, 11], dtype=torch.int32),
        "heads": HEADS,
        "head_dim": WIDTH,
        "block_n": TILE,
        "block_q": BLOCK,
        **changed,
    }


def score(given: dict[str, Any], row: int, key: int) -> float:
    """The formula: products of each head with a key, those below 0 left out, added up."""
    queries = given["q"].view(-1, HEADS, WIDTH)[row].double()
    return float((queries * given["k"][key].double()).sum(1).clamp_min(0).sum())


def close(found: torch.Tensor, want: float) -> bool:
    return abs(float(found) - want) < 1e-5


def test_a_row_has_scores_below_its_keys_in_the_tiles_of_its_block() -> None:
    given = call()
    with strictly():
        packed_scores(**given)
    # The first block's tiles are keys 0 to 7, those of the second 5 to 12, of which two are none.
    for row in range(ROWS):
        written = range(8) if row < BLOCK else range(5, KEYS)
        for key in range(KEYS):
            found = given["logits"][row, key]
            assert close(found, score(given, row, key)) if key in written else found.isnan()


def test_a_row_has_scores_from_its_own_first_key_on_where_they_are_relative() -> None:
    given = call(logits=torch.full((ROWS, 4), torch.nan))
    with strictly():
        relative_scores(**given)
    for row in range(ROWS):
        first = int(given["starts"][row])
        tiles = range(8) if row < BLOCK else range(5, 13)
        for column in range(4):
            found, key = given["logits"][row, column], first + column
            assert close(found, score(given, row, key)) if key in tiles else found.isnan()


def test_keys_behind_the_last_one_count_as_zero() -> None:
    given = call(logits=torch.full((ROWS, 12), torch.nan))
    with strictly():
        relative_scores(**given)
    assert given["logits"][ROWS - 1, 6:8].tolist() == [0, 0]
    assert given["logits"][ROWS - 1, 8:].isnan().all()


def test_a_block_of_rows_without_keys_writes_nothing() -> None:
    starts = torch.tensor([3] * ROWS, dtype=torch.int32)
    for scores in (packed_scores, relative_scores):
        given = call(starts=starts, ends=starts.clone())
        with strictly():
            scores(**given)
        assert given["logits"].isnan().all()


def test_rows_that_a_block_lacks_count_as_rows_of_the_first_key() -> None:
    given = call(block_q=4)
    with strictly():
        packed_scores(**given)
    assert close(given["logits"][ROWS - 1, 0], score(given, ROWS - 1, 0))


def test_columns_outside_of_a_rows_range_are_masked() -> None:
    given = call()
    logits = torch.zeros(ROWS, KEYS)
    with strictly():
        mask_scores(logits, given["starts"], given["ends"])
    for row in range(ROWS):
        for key in range(KEYS):
            inside = given["starts"][row] <= key < given["ends"][row]
            assert float(logits[row, key]) == (0 if inside else -torch.inf)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"q": torch.zeros(ROWS * HEADS, WIDTH)}, "q must be bfloat16"),
        ({"q": torch.zeros(ROWS * HEADS - 1, WIDTH).bfloat16()}, "q must be"),
        ({"k": torch.zeros(KEYS, WIDTH + 1).bfloat16()}, "k must be"),
        ({"k": torch.zeros(2 * KEYS, WIDTH).bfloat16()[::2]}, "k must be contiguous"),
        ({"starts": torch.zeros(ROWS, dtype=torch.int64)}, "starts must be int32"),
        ({"ends": torch.zeros(ROWS - 1, dtype=torch.int32)}, "ends must be"),
        ({"logits": torch.zeros(ROWS, KEYS).double()}, "logits must be float32"),
    ],
)
def test_a_call_that_the_kernels_do_not_take_is_refused(changed: dict[str, Any], rule: str) -> None:
    for scores in (packed_scores, relative_scores):
        with pytest.raises(KernelRefused, match=rule):
            scores(**call(**changed))


def test_packed_scores_have_a_column_for_each_key() -> None:
    with pytest.raises(KernelRefused, match="logits must be"):
        packed_scores(**call(logits=torch.zeros(ROWS, KEYS - 1)))
