"""A decode runner written for a GPU alone: compiled kernels, `cuda` by name, its own graphs.

It knows nothing of FuzzGraph; `gpu_target.py` brings the two together on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fast_kernels.decode import tiles_of

RESERVED_ROW = 0
FILL = 1


class DecodeRunner:
    """Static metadata and one graph for each batch size."""

    def __init__(self, sizes: Sequence[int], req_to_token: torch.Tensor) -> None:
        largest, width = max(sizes), req_to_token.shape[1]
        self.sizes, self.req_to_token = sorted(sizes), req_to_token
        self.tiles = tiles_of(torch.cuda.get_device_properties(0).multi_processor_count)
        self.stream = torch.cuda.Stream()
        self.req_pool_indices = torch.zeros(largest, dtype=torch.int64, device="cuda")
        self.seq_lens = torch.ones(largest, dtype=torch.int64, device="cuda")
        self.kv_indptr = torch.zeros(largest + 1, dtype=torch.int32, device="cuda")
        self.kv_indices = torch.zeros(largest * width, dtype=torch.int32, device="cuda")
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.padded_bs = largest

    def forward(self, rows: int) -> torch.Tensor:
        """Slot of each row's last token."""
        return self.kv_indices[self.kv_indptr[1 : rows + 1].long() - 1]

    def capture(self) -> None:
        for size in reversed(self.sizes):
            self.prepare([], [], size)
            with torch.cuda.stream(self.stream):
                self.forward(size)
            torch.cuda.synchronize()
            self.graphs[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[size], stream=self.stream):
                self.forward(size)

    def size_of(self, live: int) -> int:
        """The smallest graph that holds so many rows."""
        return next(size for size in self.sizes if size >= live)

    def prepare(self, rows: Sequence[int], lens: Sequence[int], size: int) -> None:
        """Write a batch, padded to `size` rows."""
        self.padded_bs = size
        self.req_pool_indices[: len(rows)] = torch.tensor(rows, device="cuda")
        self.seq_lens[: len(rows)] = torch.tensor(lens, device="cuda")
        self.reset(slice(len(rows), size))
        self.kv_indptr[1 : size + 1] = self.seq_lens[:size].cumsum(0)
        self.kv_indptr[0] = 0
        for row, name in enumerate(self.req_pool_indices[:size].tolist()):
            begin, end = self.kv_indptr[row : row + 2].tolist()
            self.kv_indices[begin:end] = self.req_to_token[name, : end - begin]

    def reset(self, padded: slice) -> None:
        """What padded rows hold."""
        self.req_pool_indices[padded] = RESERVED_ROW
        self.seq_lens[padded] = FILL
