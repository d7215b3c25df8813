"""The group of all data-parallel ranks with adapters, stood in for by what the others have.

There is one process. Of the others it is known what they hand to a collective: the adapters of
their requests by name, the slots of their tokens, which lie in each rank's pool as in this one's
because all of them load alike, and the rows of their tokens before the layers that all ranks share.
A collective here gives this rank what its contract says of these inputs (sglang parallel_state.py
GroupCoordinator).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from fuzzgraph.adapted_layer import ADAPTED_INPUT, adapters_of_ranks
from fuzzgraph.case import EngineConfig
from fuzzgraph.case.capture_sizes import most_tokens_of_a_rank
from fuzzgraph.data_ranks import rank_sizes, tokens_of_ranks
from fuzzgraph.errors import EngineError
from fuzzgraph.targets.sglang.stubs.tp_groups import (
    Group,
    live_rows_of_others,
    starts_in_sum,
    sum_of_ranks,
)
from fuzzgraph.world import Batch

SlotOf = Callable[[int], int]
"""Where an adapter lies in the pool of every rank, 0 for requests without one."""


class AdapterRanks(Group):
    """All ranks, each with requests of its own, as one of them meets the others."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.dp_size, config.dp_rank)
        self.unique_name = "tp"
        self._config = config
        self._width = config.draft_tokens if "target_verify" in config.modes else 1
        self._slot_of: SlotOf = lambda _: 0
        self._adapters: list[list[int]] = [[] for _ in range(config.dp_size)]

    def open(self, device: torch.device, own: torch.Tensor) -> int:
        """Make room for what the others hand over.

        Args:
            own: [VOCAB, ADAPTED_INPUT] what each token brings to the layers.
        Returns:
            The most tokens that a rank may have, padded ones included.
        """
        config = self._config
        most = most_tokens_of_a_rank(config)
        self._sizes = torch.zeros(config.dp_size, dtype=torch.int64, device=device)
        self.starts = torch.zeros_like(self._sizes)
        """Where the tokens of each rank begin in the rows that were gathered last."""
        shape = config.dp_size, most, ADAPTED_INPUT
        self._rows = torch.empty(shape, dtype=own.dtype, device=device)
        self._own = own.cpu()
        return most

    def find_slots(self, slot_of: SlotOf) -> None:
        """Tell where adapters lie, as soon as there is a pool."""
        self._slot_of = slot_of

    def meet(self, batch: Batch) -> None:
        """Say whose requests the others have in this step. Before the first one they have none, as
        when graphs are captured."""
        self._adapters = [each.tolist() for each in adapters_of_ranks(batch, self._config)]

    def past(self, batch: Batch) -> Iterable[tuple[torch.Tensor, Any, torch.Tensor]]:
        """How many rows each has in this step, and those of the others: memory, an index into it,
        what is put there."""
        yield self._sizes, slice(None), torch.tensor(rank_sizes(batch, self._config))
        for rank, tokens in enumerate(tokens_of_ranks(batch, self._config)):
            if rank != self.rank:
                rows = self._own[torch.from_numpy(tokens)]
                yield self._rows, (rank, slice(0, len(rows))), rows

    # Collectives

    def all_gather_object(self, own: list[str | None]) -> list[list[str | None]]:
        """The adapter of each row of every rank, by name; rows of no request have none."""
        found = []
        for adapters in self._adapters:
            names = [name_of(adapter) if adapter else None for adapter in adapters]
            found.append(names + [None] * (len(own) - len(names)))
        found[self.rank] = list(own)
        return found

    def all_gather_into_tensor(self, output: torch.Tensor, part: torch.Tensor) -> None:
        """What all ranks have, which have as many rows each."""
        rows = len(part)
        if len(output) != rows * self.world_size:
            raise EngineError(
                f"all_gather_into_tensor got {len(output)} rows where the ranks have "
                f"{rows * self.world_size}"
            )
        for rank in range(self.world_size):
            self.starts[rank] = start = rank * rows
            output[start : start + rows] = (
                part if rank == self.rank else self._handed_over(rank, rows, part)
            )

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, each where its tokens lie and zero elsewhere."""
        found = part.clone()
        self._all_reduce_in_place(found)
        return found

    def _all_reduce_in_place(self, part: torch.Tensor) -> None:
        self.starts.copy_(starts_in_sum(self._sizes, len(part)))
        if part.is_floating_point():
            others = live_rows_of_others(self._sizes, self._rows.shape[1], self.rank)
            part.copy_(sum_of_ranks(part, self._rows, others, self.starts))
        else:
            self._add_slots(part)

    def _add_slots(self, part: torch.Tensor) -> None:
        # Where adapters lie is told to kernels before a graph runs, never in one, so that the host
        # may look at numbers.
        sizes = [self._width * len(adapters) for adapters in self._adapters]
        if sum(sizes) != len(part):  # of a graph
            sizes = [len(part) // self.world_size] * self.world_size
        for rank, (start, rows) in enumerate(zip(_starts(sizes), sizes, strict=True)):
            if rank != self.rank:
                part[start : start + rows] += self._handed_over(rank, rows, part)

    def _handed_over(self, rank: int, rows: int, like: torch.Tensor) -> torch.Tensor:
        """What another rank hands over of its first rows: those of tokens, or their slots."""
        if like.is_floating_point():
            return self._rows[rank, :rows]
        slots = [self._slot_of(own) for own in self._adapters[rank] for _ in range(self._width)]
        slots += [self._slot_of(0)] * (rows - len(slots))  # of rows without a request
        return torch.tensor(slots[:rows], dtype=like.dtype, device=like.device)


def name_of(adapter: int) -> str:
    """What the server calls an adapter."""
    return f"adapter-{adapter}"


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)][:-1]
