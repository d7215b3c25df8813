"""The group of all data-parallel ranks with one head, stood in for by what the others have.

There is one process. Of the others it is known what they hand to a collective: the hidden states of
their tokens (`fuzzgraph.language_head`), where the counts of tokens put them that all ranks have
alike; and behind the head their parts of the logits of all tokens that were gathered. A collective
here gives this rank what its contract says of these inputs (sglang parallel_state.py
GroupCoordinator). Rows of other ranks behind their live tokens are zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.capture_sizes import most_tokens_of_a_rank
from fuzzgraph.data_ranks import rank_sizes
from fuzzgraph.errors import EngineError
from fuzzgraph.language_head import (
    PADDED_VOCABULARY,
    hidden_columns,
    hidden_of_ranks,
    padded_head_weight,
)
from fuzzgraph.targets.sglang.stubs.tp_groups import (
    Group,
    live_rows_of_others,
    rows_of_ranks,
    sum_of_ranks,
    with_own_storage,
)
from fuzzgraph.world import Batch


class HeadRanks(Group):
    """All ranks, each with tokens of its own and a part of the vocabulary."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config.dp_size, config.dp_rank)
        self.unique_name = "tp"
        self._config = config

    def open(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make room for what ranks hand over."""
        config = self._config
        most = most_tokens_of_a_rank(config)
        columns, each = hidden_columns(config), PADDED_VOCABULARY // config.dp_size
        self._rows = torch.zeros(config.dp_size, most, columns, dtype=dtype, device=device)
        self._sizes = torch.zeros(config.dp_size, dtype=torch.int64, device=device)
        self._starts = torch.zeros_like(self._sizes)
        self._given = torch.zeros(config.dp_size * most, each, dtype=dtype, device=device)
        self._weight = padded_head_weight(columns).to(device, dtype)
        self._gathered = self._rows[0, :0]

    def past(self, batch: Batch) -> Iterable[tuple[torch.Tensor, Any, torch.Tensor]]:
        """What the others hand over in this step: memory, an index into it, what is put there."""
        yield self._sizes, slice(None), torch.tensor(rank_sizes(batch, self._config))
        for rank, hidden in enumerate(hidden_of_ranks(batch, self._config)):
            yield self._rows, (rank, slice(0, len(hidden))), hidden.to(self._rows.dtype)

    def place(self, counts: torch.Tensor) -> None:
        """Say how many rows each rank has in the next exchange, by the engine's counts."""
        self._starts.copy_(counts.cumsum(0) - counts)

    def given(self, batch: Batch) -> torch.Tensor:
        """[tokens of all ranks, columns] this rank's part of their logits in the last run."""
        return rows_of_ranks(self._given, self._starts, rank_sizes(batch, self._config))

    # Collectives

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, each where its tokens lie and zero elsewhere."""
        others = live_rows_of_others(self._sizes, self._rows.shape[1], self.rank)
        self._gathered = sum_of_ranks(part, self._rows, others, self._starts)
        return self._gathered

    def all_gather(self, part: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The logits of all ranks, side by side, for the tokens that were gathered last."""
        each = PADDED_VOCABULARY // self.world_size
        if part.shape != (len(self._gathered), each) or dim not in (-1, 1):
            raise EngineError(
                f"all_gather got logits {tuple(part.shape)} along {dim}, of "
                f"{len(self._gathered)} tokens and {each} columns along -1"
            )
        self._given[: len(part)] = part
        logits = self._gathered @ self._weight.T
        first = self.rank * each
        found = torch.cat((logits[:, :first], part, logits[:, first + each :]), dim=1)
        return with_own_storage(found)
