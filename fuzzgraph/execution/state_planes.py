"""What each tensor of states holds of a batch before its step and must hold after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.verified_states import verifies_states
from fuzzgraph.content import Content, content_for
from fuzzgraph.execution.pool_memory import STATE_SIGNATURE, PoolPlane
from fuzzgraph.ports import STATES, Pools
from fuzzgraph.recurrent_layers import (
    channel_decay,
    decayed_attention,
    delta_rule,
    gated_convolution,
    mamba2,
)
from fuzzgraph.recurrent_layers.draft_paths import by_path, kept_places
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import Batch, IntArray


@dataclass(frozen=True, slots=True)
class StateRows:
    """Some rows of a tensor of states."""

    rows: IntArray
    """[n] rows of the batch whose they are."""
    slots: IntArray
    """[n] where they lie."""
    values: torch.Tensor
    """[n, ...] what is there; NaN where nobody says."""


_Rows = Callable[..., torch.Tensor]
"""(content, batch, rows of the batch, lengths) -> what is there behind so many tokens of each row;
of a convolution with how many of the last inputs."""


@dataclass(frozen=True, eq=False)
class StatePlane:
    """One tensor of recurrent states, a row for each slot."""

    plane: PoolPlane
    content: Content
    values: _Rows
    rounding: float = 0.0
    """How far a number may be off, as a part of it; 0 where the model leaves nothing to round."""
    taps: int = 0
    """Tokens that a convolution sees, its own included, where the tensor keeps its inputs."""
    scale: float = 0.0
    """Numbers below it may be as far off as one of this size."""
    trees: bool = False
    """Whether drafts that a step verifies are in trees."""

    def taken(self, now: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """What must be there: `now` where it is as good as `wanted`, or nobody says."""
        # What a decay makes of a negative number is -0.0, which is as good as 0.
        free = wanted.isnan() | (now == wanted)
        if self.rounding:
            free |= (now - wanted).abs() <= self.rounding * wanted.abs().clamp(min=self.scale)
        return torch.where(free, now, wanted)

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor:
        """Values for some rows as the tensor holds them: the models' numbers are exact in it."""
        return self.plane.bytes_of(values.to(self.plane.tensor.dtype))

    def before(self, batch: Batch) -> StateRows:
        """What a batch finds."""
        rows = np.arange(len(batch.state_slots))
        return self._rows(batch, rows, batch.state_slots, batch.cached_lens[rows])

    def after(self, batch: Batch) -> StateRows:
        """What a batch leaves, copies for a prefix cache behind the states themselves."""
        own, kept = np.arange(len(batch.state_slots)), np.flatnonzero(batch.tracked_lens)
        rows = np.concatenate((own, kept))
        slots = np.concatenate((batch.state_slots, batch.track_slots[kept]))
        lens = np.concatenate((self._ends(batch)[own], batch.tracked_lens[kept]))
        return self._rows(batch, rows, slots, lens)

    def _ends(self, batch: Batch) -> IntArray:
        """[raw_bs] tokens behind which the states of a step lie."""
        return batch.seq_lens

    def _rows(self, batch: Batch, rows: IntArray, slots: IntArray, lens: IntArray) -> StateRows:
        return StateRows(rows, slots, self.values(self.content, batch, rows, lens))


class CommittedStates(StatePlane):
    """The same in an engine that puts the state behind the last token that stays of a verify into
    the request's slot when the step ends. Source: sglang hybrid_linear_attn_backend.py
    `update_mamba_state_after_mtp_verify`."""

    def after(self, batch: Batch) -> StateRows:
        if not self.trees or batch.tree_parents is None:
            return super().after(batch)
        drafts = kept_places(batch)
        lens = batch.positions[drafts] + 1
        values = self.values(self.content, by_path(batch), drafts, lens)
        return StateRows(np.arange(batch.raw_bs), batch.state_slots, values)

    def _ends(self, batch: Batch) -> IntArray:
        return batch.stayed_lens


class RingStates(StatePlane):
    """The same in an engine that writes a state once in several tokens: it lies behind those that
    are not in its ring. Source: sglang fused_recurrent_linear_replayssm.py (`b_is_flush`)."""

    def before(self, batch: Batch) -> StateRows:
        rows = np.arange(len(batch.state_slots))
        lens = batch.cached_lens[rows] - batch.ring_depths
        return self._rows(batch, rows, batch.state_slots, lens)

    def _ends(self, batch: Batch) -> IntArray:
        return batch.stayed_lens - batch.ring_left if len(batch.ring_left) else batch.seq_lens


@dataclass(frozen=True, eq=False)
class RingPlane(StatePlane):
    """What one tensor of such rings holds."""

    by_row: bool = False
    """Whether it lies by the request's row, and not by its state slot."""

    def _places(self, batch: Batch) -> IntArray:
        return batch.req_pool_indices if self.by_row else batch.state_slots


class RingEntries(RingPlane):
    """That of each token in a ring, numbers of one kind."""

    def before(self, batch: Batch) -> StateRows:
        return self._entries(batch, batch.cached_lens, batch.ring_depths, batch.ring_starts)

    def after(self, batch: Batch) -> StateRows:
        return self._entries(batch, batch.stayed_lens, batch.ring_left, batch.ring_starts_left)

    def _entries(
        self, batch: Batch, ends: IntArray, depths: IntArray, starts: IntArray
    ) -> StateRows:
        rows = np.arange(len(batch.state_slots))
        room = self.plane.tensor.shape[2]
        values = self.values(batch, rows, ends[rows], depths, room)
        for row, start in enumerate(starts):
            values[row] = values[row].roll(int(start), 1)
        return StateRows(rows, self._places(batch), values)


class RingRests(RingEntries):
    """What such numbers in half precision do not say. What a step leaves there is seen in what the
    next one makes of it."""

    def before(self, batch: Batch) -> StateRows:
        found = super().before(batch)
        kept = found.values.to(self.plane.tensor.dtype).float()
        return StateRows(found.rows, found.slots, found.values - kept)

    def after(self, batch: Batch) -> StateRows:
        found = super().after(batch)
        return StateRows(found.rows, found.slots, torch.full_like(found.values, torch.nan))


class RingCursors(RingPlane):
    """How many tokens lie in each ring. What was given out has what its last owner left."""

    def before(self, batch: Batch) -> StateRows:
        left = int(self.plane.signature[0])
        return self._counts(batch, np.where(batch.rings_taken, left, self._found(batch)))

    def after(self, batch: Batch) -> StateRows:
        return self._counts(batch, self._leaves(batch))

    def _found(self, batch: Batch) -> IntArray:
        return batch.ring_depths

    def _leaves(self, batch: Batch) -> IntArray:
        return batch.ring_left

    def _counts(self, batch: Batch, counts: IntArray) -> StateRows:
        rows = np.arange(len(batch.state_slots))
        return StateRows(rows, self._places(batch), torch.from_numpy(counts).float())


class RingStarts(RingCursors):
    """Where the first of them lies."""

    def _found(self, batch: Batch) -> IntArray:
        return batch.ring_starts

    def _leaves(self, batch: Batch) -> IntArray:
        return batch.ring_starts_left


class RingFlags(RingCursors):
    """Whether a ring is being emptied: between steps none is."""

    def _found(self, batch: Batch) -> IntArray:
        return np.zeros_like(batch.ring_depths)

    def _leaves(self, batch: Batch) -> IntArray:
        return np.zeros_like(batch.ring_depths)


class VerifiedStates(StatePlane):
    """The same in an engine that verifies drafts: a request has a slot for each token of a verify.

    A row that goes on starts from the state behind the last token that stayed, and leaves one
    behind each of its tokens, as does a prompt's last token with drafts behind it. A row that
    computes the end of a prompt alone has one state, in the first slot, before and after. Sources:
    vLLM fused_recurrent.py (`ssm_state_indices`, `num_accepted_tokens`), mamba_ssm.py
    `selective_state_update`.
    """

    def before(self, batch: Batch) -> StateRows:
        rows = np.arange(batch.raw_bs)
        slots = batch.draft_state_slots[rows, np.maximum(batch.kept_tokens, 1) - 1]
        values = self.values(self.content, batch, rows, batch.cached_lens)
        return StateRows(rows, slots, values)

    def after(self, batch: Batch) -> StateRows:
        each = batch.new_states
        rows = np.repeat(np.arange(batch.raw_bs), each)
        token = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
        lens = (batch.seq_lens - each)[rows] + token + 1
        values = self.values(self.content, batch, rows, lens)
        return StateRows(rows, batch.draft_state_slots[rows, token], values)


class VerifiedInputs(StatePlane):
    """Inputs of the convolution in an engine that verifies drafts: all in a request's first slot.

    There is room for those of a verify's tokens behind those that the first one sees. A row that
    goes on finds the last inputs that stayed behind older ones, as many as tokens stayed but one.
    Source: vLLM causal_conv1d.py `_causal_conv1d_update_kernel`.
    """

    def before(self, batch: Batch) -> StateRows:
        return self._inputs(batch, batch.cached_lens, np.maximum(batch.kept_tokens, 1) - 1)

    def after(self, batch: Batch) -> StateRows:
        return self._inputs(batch, batch.seq_lens, batch.new_states - 1)

    def _inputs(self, batch: Batch, lens: IntArray, older: IntArray) -> StateRows:
        """The inputs that the next token sees, behind `older` ones of each row."""
        rows = np.arange(batch.raw_bs)
        room = self.plane.tensor.shape[1]
        ends = self.taps - 1 + torch.from_numpy(older)
        last = self.values(self.content, batch, rows, lens, room)
        places = torch.arange(room) - ends[:, None] + room
        held = places.clamp(max=room - 1)[..., None].expand_as(last)
        values = last.gather(1, held).masked_fill((places >= room)[..., None], torch.nan)
        return StateRows(rows, batch.state_slots, values)


_HALF_ROUNDING = 2e-3
"""How far a state may be off, as a part of each number, where kernels over chunks keep what they
add to it in half precision: a few roundings of that. Values of two tokens are further apart in most
columns."""
_HALF_SCALE = 128 * 2.0**-24 / _HALF_ROUNDING
"""What is left of a value there may be off by the largest value times the least number of half
precision, in which such kernels keep what decays leave of a token by the end of its chunk."""


_RING_ROUNDING = 1e-5
"""The same where states are replayed in float32 by sums of logarithms."""
_RING_SCALE = 64.0
"""About the least that a value is: a delta is the difference of two of them."""


_Shape = Callable[[EngineConfig], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What one field of `Pools` keeps."""

    values: _Rows
    shape: _Shape | None = None
    """Of a slot in a config, where `values` gives it as one row."""
    taps: int = 0
    """Of a convolution whose inputs these are."""
    rounding: float = 0.0

    def transposed(self, config: EngineConfig) -> _Rows:
        """The values with the last two dimensions of a slot the other way round."""

        def values(*args: Any) -> torch.Tensor:
            rows = self.values(*args)
            whole = rows.view(len(rows), *self.shape(config)) if self.shape else rows
            return whole.transpose(-2, -1).contiguous()

        return values


def _delta(config: EngineConfig) -> tuple[int, ...]:
    return delta_rule.delta_heads(config).state


def _channel(config: EngineConfig) -> tuple[int, ...]:
    return channel_decay.channel_heads(config).state


def _linear(config: EngineConfig) -> tuple[int, ...]:
    width = decayed_attention.LINEAR_WIDTH
    return decayed_attention.LINEAR_HEADS, width, width


_KEPT: Mapping[str, _Kept] = {
    "state": _Kept(mamba2.scan_states),
    "conv_state": _Kept(mamba2.conv_rows_at, taps=CONV_WIDTH),
    "delta_state": _Kept(delta_rule.delta_states, _delta),
    "delta_conv_state": _Kept(delta_rule.delta_conv_rows, taps=CONV_WIDTH),
    "channel_state": _Kept(
        channel_decay.channel_states, _channel, rounding=channel_decay.CHANNEL_ROUNDING
    ),
    "channel_conv_state": _Kept(channel_decay.channel_conv_rows, taps=CONV_WIDTH),
    "linear_state": _Kept(
        decayed_attention.linear_states, _linear, rounding=decayed_attention.LINEAR_ROUNDING
    ),
    "gated_conv_state": _Kept(gated_convolution.gated_conv_rows, taps=gated_convolution.GATED_TAPS),
}


def state_planes(pools: Pools, content: Content, config: EngineConfig) -> Iterator[StatePlane]:
    """Those of a session's pools.

    Args:
        content: of the first layer with recurrent state.
    """
    rings = pools.ring_cursors is not None
    yield from _planes_of_layer(pools, content, config, rings)
    nothing: dict[str, Any] = dict.fromkeys(STATES)
    for number, states in enumerate(pools.more_states, 1):
        layer = replace(pools, **{**nothing, **states})
        own = content_for(config, number)
        yield from _planes_of_layer(layer, own, config, rings, f"more_states[{number - 1}].")


def _planes_of_layer(
    pools: Pools, content: Content, config: EngineConfig, rings: bool, place: str = ""
) -> Iterator[StatePlane]:
    """Those of one layer.

    Args:
        rings: whether there are rings beside states, whose counts are the first layer's.
        place: before the names of its tensors.
    """
    states: type[StatePlane] = CommittedStates
    inputs: type[StatePlane] = CommittedStates
    if rings:
        states = RingStates
        yield from _ring_planes(pools, content, config, place)
    if verifies_states(config) and not pools.states_committed:
        states, inputs = VerifiedStates, VerifiedInputs
    for name, kept in _KEPT.items():
        tensor: torch.Tensor | None = getattr(pools, name)
        if tensor is not None:
            plane = PoolPlane(place + name, tensor, STATE_SIGNATURE)
            turned = name in pools.transposed_states
            values = kept.transposed(config) if turned else kept.values
            kind = inputs if kept.taps else states
            half = config.dtype != "float32" and kept.shape
            rounding = _HALF_ROUNDING if half else kept.rounding
            scale = _HALF_SCALE if half else 0.0
            if rings and kept.shape:
                rounding, scale = max(rounding, _RING_ROUNDING), _RING_SCALE
            trees = config.spec_topk > 1
            yield kind(plane, content, values, rounding, kept.taps, scale, trees)


def _ring_planes(
    pools: Pools, content: Content, config: EngineConfig, place: str
) -> Iterator[StatePlane]:
    """Those of the rings beside the states of a layer."""
    layer = delta_rule.delta_ring if pools.delta_state is not None else channel_decay.channel_ring
    ring = layer(content)
    half = config.dtype != "float32"
    rounding = _HALF_ROUNDING if half else _RING_ROUNDING
    entries: tuple[tuple[str, type[RingPlane], _Rows], ...] = (
        ("ring_deltas", RingEntries, ring.deltas),
        ("ring_keys", RingEntries, ring.keys),
        ("ring_gates", RingEntries, ring.logs),
        ("ring_delta_rests", RingRests, ring.deltas),
        ("ring_key_rests", RingRests, ring.keys),
    )
    # Counts are such as a ring may have, so that one that is left over is as good as one that is
    # right.
    most = float(config.state_ring_len - 1)
    counts: tuple[tuple[str, type[RingPlane], float], ...] = (
        ("ring_cursors", RingCursors, most),
        ("ring_starts", RingStarts, most),
        ("ring_flags", RingFlags, 1.0),
    )
    for name, kind, values in entries:
        tensor: torch.Tensor | None = getattr(pools, name)
        if tensor is not None:
            plane = PoolPlane(place + name, tensor, STATE_SIGNATURE)
            yield kind(
                plane, content, values, rounding, scale=_RING_SCALE, by_row=pools.rings_by_row
            )
    for name, kind, left in counts:
        tensor = getattr(pools, name)
        if tensor is not None:
            plane = PoolPlane(name, tensor, (left, max(left - 1.0, 0.0), 0.0))
            yield kind(plane, content, ring.deltas, by_row=pools.rings_by_row)
