"""The part of a metadata buffer that a step used: what lies beyond it differs legitimately."""

from __future__ import annotations

import torch

from fuzzgraph.observation import Field

__all__ = ["below_lengths", "below_lengths_packed", "used_part"]


def used_part(field: Field, buffer: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    """The part of a static buffer that a graph over so many rows and tokens reads; a view.

    Args:
        field: says on which axis the buffer lies; indices and tables are cut by the session.
        rows, tokens: padded ones included.
    """
    size = {"tokens": tokens, "requests": rows, "indptr": rows + 1}.get(field.axis)
    # The last axis: positions of several dimensions are [dimensions, tokens].
    return buffer if size is None else buffer[..., :size]


def below_lengths(
    table: torch.Tensor, lens: torch.Tensor, page_size: int, rows_each: int = 1
) -> torch.Tensor:
    """[rows of `lens`, widest used] pages of a page table, 0 beyond each row's length; a copy.

    Args:
        table: [rows * rows_each or more, pages].
        lens: [rows] tokens.
        rows_each: rows of the table that a request has, one for each of its tokens; they are put
            side by side.
    """
    pages = (lens.to(torch.int64) + page_size - 1) // page_size
    width = int(pages.max()) if len(pages) else 0
    used = table[: len(lens) * rows_each, :width].clone()
    columns = torch.arange(used.shape[1], device=used.device)
    used.masked_fill_(columns >= pages.repeat_interleave(rows_each)[:, None], 0)
    return used.view(len(lens), rows_each * used.shape[1])


def below_lengths_packed(
    table: torch.Tensor, lens: torch.Tensor, rows_each: int = 1
) -> dict[str, torch.Tensor]:
    """A table of slots as `token_indices`, those below each row's length, and their offsets.

    Args:
        table, lens, rows_each: as for `below_lengths`, of slots in place of pages.
    """
    below = lens.to(torch.int64).repeat_interleave(rows_each)
    rows = [table[row, :length] for row, length in enumerate(below.tolist())]
    ends = torch.cumsum(below, 0)
    return {
        "token_indices": torch.cat(rows),
        "token_indptr": torch.cat((ends.new_zeros(1), ends)).int(),
    }
