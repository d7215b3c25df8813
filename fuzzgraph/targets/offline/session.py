"""A session on an engine's graph runner whose graphs read static buffers.

The base class keeps what each graph has frozen, addresses and values, and observes a step from the
declared fields. A target's session opens the engine, translates batches and says which buffers
there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fuzzgraph.case import Mode
from fuzzgraph.handover import Handover
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.targets.offline.demands import demand_instance
from fuzzgraph.targets.offline.handed import BackendWatch
from fuzzgraph.targets.offline.used import used_part
from fuzzgraph.world import Batch

__all__ = ["GraphSession"]


class GraphSession:
    """What sessions on captured graphs do alike.

    A session of a target defines `fields`, `roots`, `capture`, `prepare_replay`, `replay` and
    `eager` of `ports.Session`, `graph_key`, `static_buffers` and `padded_size` of this class, and
    as much of the rest as it has something to show. It calls `remember` when a graph is captured,
    and sets `ran_eagerly` in `prepare_replay` and `eager`.
    """

    fields: tuple[Field, ...]
    pools = Pools()
    compared_at_capture: tuple[str, ...] = ()
    """Static buffers whose values a capture must get by the rule that replays follow."""
    ran_eagerly = False
    """Whether the last run took no graph."""
    capturing = False
    """Whether graphs are being captured now."""
    attention_captured = True
    """Whether graphs hold attention. Where they break before it, a replay reads what the backend
    holds then, and none of what its graph was captured with."""

    def __init__(self) -> None:
        self._frozen: dict[Hashable, dict[str, int]] = {}
        self._at_capture: dict[Hashable, dict[str, torch.Tensor]] = {}
        self._watches: list[BackendWatch] = []

    # What a target's session answers

    def graph_key(self) -> Hashable:
        """Key of the graph that was replayed last; before any replay, of the largest."""
        raise NotImplementedError

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        """Field name -> buffer, whole, that the engine writes before a replay of graph `key` and
        the captured kernels read."""
        raise NotImplementedError

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        """Rows and tokens that the last run covered, padded ones included."""
        raise NotImplementedError

    def live_tokens(self, batch: Batch) -> int:
        """Live entries on the token axis."""
        return batch.num_tokens

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        """Copies of what the last run read of the static buffers, cut by each field's axis.

        Indices end where the offsets of their name end: `kv_indices` at `kv_indptr[-1]`.
        """
        buffers = self.static_buffers(self.graph_key())
        used = {
            field.name: used_part(field, buffers[field.name], rows, tokens)
            for field in self.fields
            if field.name in buffers
        }
        for name, indices in used.items():
            offsets = used.get(name.replace("_indices", "_indptr"))
            if name.endswith("_indices") and offsets is not None:
                used[name] = indices[: int(offsets[-1])]
        return {name: part.clone() for name, part in used.items()}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Copies of what else kernels read, of an eager run too: indices, page tables.

        Args:
            batch: of the last run.
            buffers: what `used_buffers` gave; nothing after an eager run.
        """
        return {}

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """Copies of what the last run produced, padded rows included."""
        return {}

    def plan(self) -> dict[str, object]:
        """Frozen numbers that select how kernels sum."""
        return {}

    def types(self) -> dict[str, str]:
        """Type name of each metadata object that the forward dereferences."""
        return {}

    def declined(self, batch: Batch) -> str:
        """The engine's documented rule by which this batch takes no graph; '' where it must."""
        return ""

    # The session

    def watch(
        self, backend: Any, graphs: GraphEngine, *, whole: bool = False, itself: bool = False
    ) -> BackendWatch:
        """Take down what this backend is handed, and what it holds, from now on.

        Args:
            backend: one of several, or the only one; or another object that a runner calls.
            graphs: captures for this session; `remember` is called right after each capture.
            whole, itself: see `BackendWatch`.
        """
        made = BackendWatch(backend, graphs, lambda: self.capturing, whole=whole, itself=itself)
        self._watches.append(made)
        return made

    def holds(self, watch: BackendWatch) -> bool:
        """Whether the graphs of the last replay hold what this watch took down."""
        return self.attention_captured

    def asked(self, key: Hashable | None) -> Sequence[BackendWatch]:
        """Watches of what took part in a run, always in the same order.

        Args:
            key: of the graph that was replayed; None after an eager run.
        """
        return self._watches

    def remember(self, key: Hashable) -> None:
        """Keep what graph `key`, captured just now, has frozen."""
        for watch in self.asked(key):
            watch.captured(key)
        buffers = self._graph_reads(key)
        self._frozen[key] = {name: buffer.data_ptr() for name, buffer in buffers.items()}
        self._at_capture[key] = self.values_at_capture(key)

    def _graph_reads(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        """`static_buffers`, all of them tensors.

        Raises:
            EngineError: one is not.
        """
        buffers = self.static_buffers(key)
        for name, buffer in buffers.items():
            demand_instance(buffer, torch.Tensor, name, "what a graph reads")
        return buffers

    def values_at_capture(self, key: Hashable) -> dict[str, torch.Tensor]:
        """Copies of what graph `key` sees of `compared_at_capture`."""
        buffers = self.static_buffers(key)
        return {name: buffers[name].clone() for name in self.compared_at_capture if name in buffers}

    def observe(self, batch: Batch) -> Observation:
        """The used part of buffers and metadata, padded rows included."""
        rows, tokens = self.padded_size(batch)
        seen = Observation(batch.raw_bs, rows, self.live_tokens(batch), tokens)
        seen.declined = self.declined(batch)
        key = None
        if not self.ran_eagerly and any(map(self.holds, self._watches)):
            key = self.graph_key()
        watches = self.asked(key)
        keys = [key if self.holds(watch) else None for watch in watches]
        asked = [*zip(watches, keys, strict=True)]
        seen.handovers = _numbered([watch.take(held) for watch, held in asked])
        if key is not None:
            seen.handed_at_capture = _numbered([watch.at_capture(held) for watch, held in asked])
        seen.outputs = self.shown_outputs()
        if self.ran_eagerly and not batch.raw_bs:  # nothing ran
            return seen
        if not self.ran_eagerly:
            seen.metadata.update(self.used_buffers(batch, rows, tokens))
        seen.metadata.update(self.used_metadata(batch, seen.metadata))
        seen.plan = self.plan()
        seen.types = self.types()
        return seen

    def drop_handed(self) -> None:
        """Forget what was handed over for a preparation that no replay follows."""
        for watch in self._watches:
            watch.begin()

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """Of the graph replayed last (at first the largest); none after an eager step."""
        if self.ran_eagerly:  # what was written belongs to no graph
            return {}
        key = self.graph_key()
        buffers, frozen = self._graph_reads(key), self._frozen.get(key, {})
        return {name: (buffers[name], frozen[name]) for name in buffers if name in frozen}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """What the graph replayed last saw at its capture; none after an eager step."""
        return {} if self.ran_eagerly else self._at_capture.get(self.graph_key(), {})

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return ()

    def keeps_outputs(self, mode: Mode) -> bool:
        return False

    def warm_up(self) -> None:
        """Engines warm up each size themselves, before they capture it."""

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def close(self) -> None:
        """Nothing outlives the session."""


def _numbered(taken: Sequence[tuple[Handover, ...]]) -> tuple[Handover, ...]:
    """What all watches took down, each told apart."""
    for number, handovers in enumerate(taken):
        for each in handovers:
            each.watch = number
    return tuple(each for handovers in taken for each in handovers)
