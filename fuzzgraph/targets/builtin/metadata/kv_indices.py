"""Page map in compressed rows: kv_indptr and kv_indices, in tokens.

Writes what a kernel with one program per request row writes, as operations of fixed shape, so that
the same code runs before a graph or inside one. Lanes beyond the last offset change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.targets.builtin.pools import TokenMap
from fuzzgraph.targets.builtin.raw_addressing import reach


@dataclass(slots=True)
class KvView:
    """The parts of the buffers that a batch of `rows` rows uses, and what they are built from."""

    rows: int
    request_rows: torch.Tensor
    """int32 [rows] rows of the token map."""
    kv_lens: torch.Tensor
    """int32 [rows] tokens listed of each row."""
    skipped: torch.Tensor | None
    """int32 [rows] leading positions not listed, or None where all are."""
    indptr: torch.Tensor
    """int32 [rows + 1]"""
    indices: torch.Tensor
    """int32, from the first index to where the longest rows could end, past the buffer too."""
    ends: torch.Tensor
    starts: torch.Tensor
    bounds: torch.Tensor
    total: torch.Tensor
    lanes: torch.Tensor
    first_places: torch.Tensor
    places: torch.Tensor
    row_places: torch.Tensor
    owners: torch.Tensor
    beyond: torch.Tensor


class KvIndices:
    """Buffers of one page map, allocated once, and the writer that fills them."""

    def __init__(
        self, tokens: TokenMap, max_rows: int, row_width: int, device: torch.device
    ) -> None:
        self.tokens = tokens
        self.max_rows = max_rows
        self.row_width = row_width
        """Most tokens that one row can list."""
        self.indptr = torch.zeros(self.indptr_capacity(), dtype=torch.int32, device=device)
        self.indices = torch.zeros(self.indices_capacity(), dtype=torch.int32, device=device)
        lanes = self.max_rows * self.row_width
        first = tokens.flat.base
        self._lanes = torch.arange(lanes, dtype=torch.int32, device=device)
        self._first_places = torch.arange(first, first + lanes, device=device)
        self._places = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._owners = torch.zeros(lanes, dtype=torch.int32, device=device)
        self._beyond = torch.zeros(lanes, dtype=torch.bool, device=device)
        self._row_places = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def indptr_capacity(self) -> int:
        """Offsets: one more than the largest padded batch has rows."""
        return self.max_rows + 1

    def indices_capacity(self) -> int:
        """Indices in tokens: every row at its longest."""
        return self.max_rows * self.row_width

    def view(
        self,
        rows: int,
        request_rows: torch.Tensor,
        kv_lens: torch.Tensor,
        skipped: torch.Tensor | None = None,
    ) -> KvView:
        """Views for a batch of `rows` rows; made once per size, at capture."""
        indices = reach(self.indices, rows * self.row_width)
        lanes = indices.numel()
        return KvView(
            rows=rows,
            request_rows=request_rows,
            kv_lens=kv_lens,
            skipped=skipped,
            indptr=self.indptr[: rows + 1],
            indices=indices,
            ends=self.indptr[1 : rows + 1],
            starts=self.indptr[:rows],
            bounds=self.indptr[1:rows],
            total=self.indptr[rows],
            lanes=self._lanes[:lanes],
            first_places=self._first_places[:lanes],
            places=self._places[:lanes],
            row_places=self._row_places[:rows],
            owners=self._owners[:lanes],
            beyond=self._beyond[:lanes],
        )

    def write(self, view: KvView) -> None:
        """Fill offsets and indices of all rows, padded ones included."""
        self.write_indptr(view)
        self.write_indices(view)

    def write_indptr(self, view: KvView) -> None:
        """Prefix sums of the listed tokens; the first offset is 0 from allocation on."""
        torch.cumsum(view.kv_lens, 0, dtype=torch.int32, out=view.ends)

    def write_indices(self, view: KvView) -> None:
        """indices[indptr[r] + j] = slot of position skipped[r] + j of row r's request row."""
        self.find_places(view)
        torch.where(view.beyond, view.indices, self.load_slots(view), out=view.indices)

    def find_places(self, view: KvView) -> None:
        """Element of the token map that each lane reads."""
        self.first_places(view)
        torch.searchsorted(view.bounds, view.lanes, right=True, out_int32=True, out=view.owners)
        torch.index_select(view.row_places, 0, view.owners, out=view.places)
        torch.sub(view.first_places, view.places, out=view.places)
        torch.ge(view.lanes, view.total, out=view.beyond)
        view.places.masked_fill_(view.beyond, self.tokens.flat.base)

    def first_places(self, view: KvView) -> None:
        """Lane of a row's first index, less the element of the token map that it reads."""
        torch.sub(view.starts, view.request_rows, alpha=self.row_stride(), out=view.row_places)
        if view.skipped is not None:
            view.row_places.sub_(view.skipped)

    def row_stride(self) -> int:
        """Elements between two rows of the token map."""
        return self.tokens.table.stride(0)

    def load_slots(self, view: KvView) -> torch.Tensor:
        """int32 [lanes] what the token map holds at each lane's place."""
        return self.tokens.flat.load(view.places)
