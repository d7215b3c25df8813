"""What is demanded of metadata, as pure functions of what was seen."""

from __future__ import annotations

import numpy as np
import pytest

from fuzzgraph.rules.metadata import (
    counts_no_more_than_there_are,
    names_own_pages,
    names_own_slots,
)


@pytest.mark.parametrize(
    ("table", "lens", "told"),
    [
        ([[3, 4]], [4], []),
        ([[4, 3]], [4], ["t[0, 0] is page 4, the row's page there is 3"]),
        ([[3, 9]], [4], ["t of row 0 holds page 9, which is not its own"]),
        ([[3]], [4], ["t has 1 pages for row 0, whose 4 tokens lie in 2"]),
        ([[3, 4, 3]], [6], ["t has 3 pages for row 0, which owns 2"]),
    ],
)
def test_a_row_of_a_page_table_names_its_own_pages(
    table: list[list[int]], lens: list[int], told: list[str]
) -> None:
    """The lengths are the engine's, so that they may say more pages than the row has."""
    found = names_own_pages(
        "t",
        np.array(table),
        pages=[[3, 4]],
        seq_lens=lens,
        page_size=2,
        padding="reserved",
        value=0,
        in_order=True,
    )
    assert list(found) == told


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ([3, 4, 0], []),
        ([3, 3, 0], ["t_indices of row 0 holds page 3 2 times"]),
        ([3, 9, 0], ["t_indices of row 0 holds page 9, which is not its own"]),
        ([3, 4, 3], ["t_indices of padded row 1 holds page 3, which is not its own"]),
        ([3, 0, 0], ["t_indices of row 0 lacks page 4, 1 of its 2 pages"]),
    ],
)
def test_a_list_of_pages_names_those_of_each_row(listed: list[int], told: list[str]) -> None:
    found = names_own_slots(
        "t_indices",
        np.array(listed),
        np.array([0, 2, 3]),
        own=[[3, 4]],
        drafted=[[]],
        padded_bs=2,
        reserved=0,
        needed=[[3, 4]],
        what="page",
    )
    assert list(found) == told


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([3, 3, 9], []),
        ([3, 4, 9], ["n gives 2 rows 7 tokens, 6 are handed over"]),
    ],
)
def test_rows_have_no_more_tokens_than_are_handed_over(counts: list[int], told: list[str]) -> None:
    """What a buffer holds behind the rows of a graph does not count."""
    found = counts_no_more_than_there_are("n", np.array(counts), padded_bs=2, tokens=6)
    assert list(found) == told
