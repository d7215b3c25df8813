"""Engines that put the state behind the last token that stays into a request's slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.content import content_for
from fuzzgraph.execution.state_planes import StatePlane, state_planes
from fuzzgraph.layout import plan
from fuzzgraph.ports import Pools
from fuzzgraph.recurrent_layers import delta_rule
from fuzzgraph.recurrent_layers.delta_rule import DELTA_COLUMNS, HEAD_WIDTH, HEADS, POSITIONS
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import Batch

DRAFTS = 3
_SLOTS = 32
TRANSPOSED = ("delta_state", "delta_conv_state")


def _step(*rows: tuple[int, int], new: int = DRAFTS, mode: Mode = "target_verify") -> ReplayStep:
    made = [BatchRow(request=name, seq_len=length, new_tokens=new) for name, length in rows]
    return ReplayStep(mode=mode, rows=tuple(made))


def _config(mode: Mode = "target_verify") -> EngineConfig:
    drafts: dict[str, Any] = {"draft_tokens": DRAFTS} if mode == "target_verify" else {}
    return EngineConfig(
        modes=(mode,), recurrent_state=True, capture_bs=(2,), max_context_len=32, **drafts
    )


def _batches(*steps: ReplayStep) -> list[Batch]:
    config = _config(steps[0].mode)
    return list(plan(validate(Case(schema_version=1, config=config, steps=steps))))


# Of the first request two of three tokens stay, then all; of the second one all, then one.
GROWN = (_step((0, 8), (1, 19)), _step((0, 10), (1, 22)), _step((0, 13), (1, 23)))


def _planes(batch_major: bool, config: EngineConfig) -> list[StatePlane]:
    state = torch.zeros(_SLOTS, HEADS, HEAD_WIDTH, POSITIONS)
    conv = torch.zeros(_SLOTS, CONV_WIDTH - 1, DELTA_COLUMNS)
    if not batch_major:
        state, conv = state.transpose(2, 3).contiguous(), conv.transpose(1, 2).contiguous()
    pools = Pools(
        delta_state=state,
        delta_conv_state=conv,
        transposed_states=frozenset() if batch_major else frozenset(TRANSPOSED),
        states_committed=True,
    )
    return list(state_planes(pools, content_for(config), config))


def test_what_stays_of_a_verify_ends_at_the_first_draft_that_is_rejected() -> None:
    assert [batch.stayed_lens.tolist() for batch in _batches(*GROWN)] == [
        [7, 19],
        [10, 20],
        [13, 23],
    ]


def test_all_that_a_decode_computes_stays() -> None:
    (batch,) = _batches(_step((0, 8), new=1, mode="decode"))
    assert batch.stayed_lens.tolist() == [8]


def test_each_verify_finds_the_states_that_the_one_before_left() -> None:
    config = _config()
    first, second, _ = _batches(*GROWN)
    for plane in _planes(True, config):
        left, there = plane.after(first), plane.before(second)
        assert left.slots.tolist() == there.slots.tolist() == first.state_slots.tolist()
        assert torch.equal(left.values, there.values)


def test_states_lie_in_the_order_of_the_dimensions_that_an_engine_has() -> None:
    config = _config()
    batch = _batches(*GROWN)[0]
    rows = np.arange(batch.raw_bs)
    truth = delta_rule.delta_states(content_for(config), batch, rows, batch.cached_lens)
    inputs = delta_rule.delta_conv_rows(content_for(config), batch, rows, batch.cached_lens)
    state, conv = (plane.before(batch).values for plane in _planes(False, config))
    assert torch.equal(state.transpose(2, 3).reshape(truth.shape), truth)
    assert torch.equal(conv.transpose(1, 2), inputs)
    assert not torch.equal(conv.reshape(inputs.shape), inputs)
