"""Puts what a session shows into the terms of the logical batch, by which every oracle judges.

An engine with a persistent batch has an order of rows of its own, and shows whole rows of its page
tables. Sessions show both as they are; nothing else is changed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.errors import TargetFailed
from fuzzgraph.fields import TOLD, Field
from fuzzgraph.handover import Later
from fuzzgraph.memory import Crossings
from fuzzgraph.observation import Observation
from fuzzgraph.world import Batch, IntArray, segments


def on_host(seen: Observation, crossings: Crossings, later: Later | None = None) -> Observation:
    """What was seen, on the host, where oracles look at it from all sides.

    Args:
        later: what was handed over meanwhile, to be completed by the same crossing.
    """
    if not crossings.gathered:
        return seen
    copies = [] if later is None else later.copies
    moved = iter(crossings.to_host([*seen.outputs.values(), *seen.metadata.values(), *copies]))
    found = replace(
        seen,
        outputs={name: next(moved) for name in seen.outputs},
        metadata={name: next(moved) for name in seen.metadata},
    )
    if later is not None:
        later.fill(moved)
    return found


def in_terms_of(
    batch: Batch, seen: Observation, fields: Sequence[Field], config: EngineConfig
) -> Observation:
    """The observation with its rows in the batch's order, and tables without what nobody reads.

    Raises:
        TargetFailed: `Observation.order` is no order of the batch's rows, or `Observation.told`
            lacks a field.
    """
    declared = {field.name: field for field in fields}
    for name in seen.metadata.keys() & declared.keys() - seen.told.keys():
        if declared[name].truth == TOLD:
            raise TargetFailed(
                f"field {name!r} repeats {TOLD!r}, and Observation.told has only "
                f"{', '.join(seen.told) or 'nothing'}. Show there what its live rows must hold."
            )
    if seen.order is not None:
        _Reordering(batch, seen).apply(declared)
    for name, table in seen.metadata.items():
        if name in declared and declared[name].whole_rows:
            group = declared[name].group
            seen.metadata[name] = _blanked(
                table, batch.groups[group], group_configs(config)[group].page_size
            )
    return seen


def _blanked(table: torch.Tensor, batch: Batch, page_size: int) -> torch.Tensor:
    """0 before and behind the pages of each live row: entries there are left by earlier batches.

    Before them are the freed pages of a sliding window, of which an engine may never be told.
    """
    rows = min(batch.raw_bs, len(table))  # of a graph that is too small there are fewer
    pages = torch.from_numpy(-(-batch.seq_lens[:rows] // page_size)).to(table.device)
    columns = torch.arange(table.shape[1], device=table.device)
    nobodys = torch.zeros(table.shape, dtype=torch.bool, device=table.device)
    nobodys[:rows] = columns >= pages[:, None]
    freed = torch.from_numpy(batch.freed_pages()[:rows]).to(table.device)
    nobodys[:rows] |= columns < freed[:, None]
    return table.masked_fill(nobodys, 0)


class _Reordering:
    """From the order of the engine's rows to that of the batch."""

    def __init__(self, batch: Batch, seen: Observation) -> None:
        order = list(seen.order or ())
        if sorted(order) != list(range(batch.raw_bs)):
            raise TargetFailed(
                f"Observation.order is {order}, and the batch has {batch.raw_bs} rows. Give the"
                " engine's row of each row of the batch, e.g. [1, 0]."
            )
        self._seen = seen
        rows = np.array(order, dtype=np.int64)
        # A draft has the tokens of all its steps.
        self._steps = max(1, seen.num_tokens // max(1, batch.num_tokens))
        counts = np.bincount(batch.token_rows, minlength=batch.raw_bs) * self._steps
        theirs = np.empty_like(counts)
        theirs[rows] = counts
        self._rows = _padded(rows, seen.padded_bs)
        self._tokens = _padded(segments(theirs, rows), seen.padded_tokens)

    def apply(self, declared: dict[str, Field]) -> None:
        seen = self._seen
        seen.outputs = {name: self._output(value) for name, value in seen.outputs.items()}
        before = dict(seen.metadata)
        for name, value in before.items():
            if name in declared:
                offsets = before.get(name.replace("_indices", "_indptr"))
                seen.metadata[name] = self._field(declared[name], value, offsets)

    def _output(self, value: torch.Tensor) -> torch.Tensor:
        """By token, or by row where there are as many rows as the graph has."""
        # Tokens that are left of a padded verify may be as many as its rows.
        shown = self._seen.shown_tokens
        by_token = len(value) in (len(self._tokens), None if shown is None else shown * self._steps)
        if not by_token and len(value) == len(self._rows):
            return value[self._rows]
        # The engine may have cut off what it had padded.
        return value[self._tokens[: len(value)]]

    def _field(
        self, field: Field, value: torch.Tensor, offsets: torch.Tensor | None
    ) -> torch.Tensor:
        if field.axis in ("requests", "page_table"):
            return value[self._rows] if len(value) == len(self._rows) else value
        if field.axis == "tokens" and value.shape[-1:] == self._tokens.shape:
            return value[..., self._tokens]  # positions of several dimensions: [dimensions, tokens]
        if field.axis == "indptr" and len(value) == len(self._rows) + 1:
            steps = value.diff()[self._rows]
            return torch.cat((value[:1], value[:1] + steps.cumsum(0).to(value.dtype)))
        if field.axis == "indices" and offsets is not None:
            lens = offsets.diff()
            if len(lens) == len(self._rows) and int(lens.sum()) == len(value):
                counts = lens.cpu().numpy().astype(np.int64)
                return value[torch.from_numpy(segments(counts, self._rows.numpy()))]
        return value


def _padded(places: IntArray, size: int) -> torch.Tensor:
    """With those behind them, which padding has."""
    return torch.from_numpy(np.append(places, np.arange(len(places), size)))
