"""What each tensor of states holds of a batch before its step and must hold after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fuzzgraph import delta_rule, recurrence
from fuzzgraph.content import Content
from fuzzgraph.execution.pool_memory import STATE_SIGNATURE, PoolPlane
from fuzzgraph.ports import Pools
from fuzzgraph.world import Batch, IntArray


@dataclass(frozen=True, slots=True)
class StateRows:
    """Some rows of a tensor of states."""

    rows: IntArray
    """[n] rows of the batch whose they are."""
    slots: IntArray
    """[n] where they lie."""
    values: torch.Tensor
    """[n, ...] what is there."""


_Rows = Callable[[Batch, IntArray, IntArray], torch.Tensor]
"""(batch, rows of the batch, lengths) -> what is there behind so many tokens of each row."""


@dataclass(frozen=True, eq=False)
class StatePlane:
    """One tensor of states, a row for each slot."""

    plane: PoolPlane
    values: _Rows

    def before(self, batch: Batch) -> StateRows:
        """What a batch finds."""
        return self._all_rows(batch, batch.cached_lens)

    def after(self, batch: Batch) -> StateRows:
        """What a batch leaves."""
        return self._all_rows(batch, batch.seq_lens)

    def _all_rows(self, batch: Batch, lens: IntArray) -> StateRows:
        rows = np.arange(len(batch.state_slots))
        return StateRows(rows, batch.state_slots, self.values(batch, rows, lens[: len(rows)]))


def state_planes(pools: Pools, content: Content) -> Iterator[StatePlane]:
    """Those of a session's pools."""
    found: tuple[tuple[str, torch.Tensor | None, Callable[..., torch.Tensor]], ...] = (
        ("state", pools.state, _sums),
        ("conv_state", pools.conv_state, recurrence.conv_rows_at),
        ("delta_state", pools.delta_state, delta_rule.delta_states),
        ("delta_conv_state", pools.delta_conv_state, delta_rule.delta_conv_rows),
    )
    for name, tensor, values in found:
        if tensor is not None:
            yield StatePlane(PoolPlane(name, tensor, STATE_SIGNATURE), _of(content, values))


def _of(content: Content, values: Callable[..., torch.Tensor]) -> _Rows:
    return lambda batch, rows, lens: values(content, batch, rows, lens)


def _sums(content: Content, batch: Batch, rows: IntArray, lens: IntArray) -> torch.Tensor:
    return content.states_at(batch, rows, lens)
