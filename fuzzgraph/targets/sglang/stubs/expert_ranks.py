"""The group of all data-parallel ranks with experts, stood in for by what the others have.

There is one process. Of the others it is known what they hand to a collective: the rows of their
tokens before the experts, and behind them their part of each token's sum
(`fuzzgraph.experts`). A collective here gives this rank what its contract says of these
inputs, and refuses arguments that the engine's own does not take (sglang parallel_state.py
GroupCoordinator). Rows of other ranks behind their live tokens are left as they are found: what an
earlier step or nobody wrote there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.capture_sizes import most_tokens_of_a_rank
from fuzzgraph.data_ranks import rank_sizes, tokens_of_ranks
from fuzzgraph.errors import EngineError
from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH
from fuzzgraph.experts.outputs import other_parts
from fuzzgraph.splitmix import hash_quarters
from fuzzgraph.targets.sglang.stubs.tp_groups import (
    Group,
    live_rows,
    live_rows_of_others,
    starts_in_sum,
    sum_of_ranks,
)
from fuzzgraph.world import Batch

Exchanged = Literal["rows", "parts"]
"""What goes around: the rows of tokens, or what experts give for them."""


class ExpertRanks(Group):
    """All ranks, each with an attention of its own, as one of them meets the others."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.dp_size, config.dp_rank)
        self.unique_name = "tp"
        self._config = config
        self.exchanged: Exchanged = "rows"

    def open(self, device: torch.device, own: torch.Tensor) -> int:
        """Make room for what the others hand over.

        Args:
            own: [VOCAB, columns] what each token brings to the layer itself.
        Returns:
            The most tokens that a rank may have, padded ones included.
        """
        config = self._config
        most = most_tokens_of_a_rank(config)
        shape = config.dp_size, most, EXPERT_WIDTH
        self._sizes = torch.zeros(config.dp_size, dtype=torch.int64, device=device)
        self.starts = torch.zeros_like(self._sizes)
        """Where the tokens of each rank begin in the rows that were gathered last."""
        self._rows = torch.empty(shape, dtype=own.dtype, device=device)
        self._parts = torch.zeros(shape, dtype=own.dtype, device=device)
        self._own = own.cpu()
        self._rest = other_parts(config).to(own.dtype)
        return most

    def past(self, batch: Batch) -> Iterable[tuple[torch.Tensor, Any, torch.Tensor]]:
        """What the others hand over in this step: memory, an index into it, what is put there.

        Of rows without a token the others give nothing: what they hold is not theirs to know.
        """
        sizes = rank_sizes(batch, self._config)
        yield self._sizes, slice(None), torch.tensor(sizes)
        parts = torch.zeros_like(self._parts, device="cpu")
        for rank, tokens in enumerate(tokens_of_ranks(batch, self._config)):
            ids, live = torch.from_numpy(tokens), slice(0, len(tokens))
            parts[rank, live] = self._rest[ids]
            if rank != self.rank:
                rows = rows_of_tokens(self._own, ids, batch.step, rank)
                yield self._rows, (rank, live), rows
        yield self._parts, slice(None), parts

    # Collectives

    def all_gather_into_tensor(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """The rows of all ranks, which have as many each."""
        rows = len(part)
        self._demand_rows(output, rows * self.world_size, "all_gather_into_tensor")
        self._gather(output, part, [rows] * self.world_size)

    def all_gatherv(
        self, part: torch.Tensor, sizes: Any = None, output: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """The rows of all ranks, which have as many as `sizes` says."""
        sizes = self._demand_sizes(sizes, self.world_size * len(part), "all_gatherv")
        self._demand_rows(part, sizes[self.rank], "all_gatherv")
        if output is None:
            output = part.new_empty(sum(sizes), *part.shape[1:])
        self._demand_rows(output, sum(sizes), "all_gatherv")
        self._gather(output, part, sizes)
        return [output]

    def _gather(self, output: torch.Tensor, part: torch.Tensor, sizes: Sequence[int]) -> None:
        for rank, (start, rows) in enumerate(zip(_starts(sizes), sizes, strict=True)):
            self.starts[rank] = start
            output[start : start + rows] = part if rank == self.rank else self._rows[rank, :rows]

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, each where its tokens lie and zero elsewhere."""
        most = self._rows.shape[1]
        if self.exchanged == "parts":
            live = live_rows(self._sizes, most)
            return sum_of_ranks(part, self._parts, live, self.starts)
        self.starts.copy_(starts_in_sum(self._sizes, len(part)))
        others = live_rows_of_others(self._sizes, most, self.rank)
        return sum_of_ranks(part, self._rows, others, self.starts)

    def reduce_scatter_tensor(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """This rank's share of the sum, where all have as many rows."""
        sizes = [len(output)] * self.world_size
        self._demand_rows(part, sum(sizes), "reduce_scatter_tensor")
        self._scatter(output, part, sizes)

    def reduce_scatterv(
        self, part: torch.Tensor, output: torch.Tensor | None = None, sizes: Any = None
    ) -> torch.Tensor:
        """This rank's share of the sum, where ranks have as many rows as `sizes` says."""
        sizes = self._demand_sizes(sizes, len(part), "reduce_scatterv")
        self._demand_rows(part, sum(sizes), "reduce_scatterv")
        if output is None:
            output = part.new_empty(sizes[self.rank], *part.shape[1:])
        self._demand_rows(output, sizes[self.rank], "reduce_scatterv")
        self._scatter(output, part, sizes)
        return output

    def _scatter(self, output: torch.Tensor, part: torch.Tensor, sizes: Sequence[int]) -> None:
        start, rows = _starts(sizes)[self.rank], sizes[self.rank]
        torch.add(part[start : start + rows], self._parts[self.rank, :rows], out=output)

    def _demand_sizes(self, sizes: Any, rows: int, called: str) -> list[int]:
        """Refuses what is no list of numbers that the host knows; without one all ranks have as
        many rows."""
        if sizes is None:
            return [rows // self.world_size] * self.world_size
        listed = isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
        if not listed or len(sizes) != self.world_size:
            raise EngineError(
                f"{called} got sizes={sizes!r}, which is a list of {self.world_size} numbers"
            )
        return list(sizes)

    def _demand_rows(self, given: torch.Tensor, rows: int, called: str) -> None:
        if len(given) != rows:
            raise EngineError(f"{called} got {len(given)} rows where the ranks have {rows}")


def rows_of_tokens(own: torch.Tensor, tokens: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    """[tokens, EXPERT_WIDTH] what another rank hands over of its tokens; attention's columns, which
    no expert reads, hold any numbers.

    Args:
        own: [VOCAB, columns] what each token brings to the layer itself.
    """
    numbers = hash_quarters(20_000 + 100 * step + rank, len(tokens), ATTENDED)
    return torch.cat((own[tokens], torch.from_numpy(numbers).to(own.dtype)), dim=1)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
