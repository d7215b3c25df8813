"""Pools that a session hands over: any layout of rows is written in place, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import STATE_WIDTH, content_for
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.pool_memory import PoolPlane
from fuzzgraph.execution.pool_writer import PoolWriter
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.layout import plan
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.ports import Pools
from fuzzgraph.recurrent_layers.mamba2 import CONV_COLUMNS, conv_rows
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, Batch

CONFIG = EngineConfig(capture_bs=(2,), page_size=2, num_kv_heads=2, num_q_heads=4)
SLOTS = (FIRST_PAGE + CONFIG.kv_pool_pages) * CONFIG.page_size
HEADS, KEYS = content_for(CONFIG).plane_shapes[0]
VALUES = content_for(CONFIG).plane_shapes[1][1]
DTYPE = content_for(CONFIG).storage_dtype

DECODE = ReplayStep(rows=(BatchRow(request=0, seq_len=3),))


class OnlyPools:
    """What the check asks of a session."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools


def side_by_side() -> tuple[torch.Tensor, Pools]:
    """A cache that holds the keys and values of each head side by side, and its two views."""
    cache = torch.zeros(SLOTS, HEADS, KEYS + VALUES, dtype=DTYPE)
    return cache, Pools(kv_planes=(cache[..., :KEYS], cache[..., KEYS:]))


def keys_before_values() -> tuple[torch.Tensor, Pools]:
    """A cache that holds the keys of a page before its values, and its two views by page."""
    pages = FIRST_PAGE + CONFIG.kv_pool_pages
    cache = torch.zeros(pages, 2, CONFIG.page_size, HEADS, KEYS, dtype=DTYPE)
    return cache, Pools(kv_planes=(cache[:, 0], cache[:, 1]))


def refusal(pools: Pools) -> str:
    with pytest.raises(TargetFailed) as refused:
        require_pools(OnlyPools(pools), CONFIG)  # type: ignore[arg-type]
    return str(refused.value)


def test_rows_whose_bytes_lie_side_by_side_in_a_page_are_written_one_by_one() -> None:
    """As scales of values in FP4 do: four slots' first scales, then their second ones."""
    held = torch.zeros(3, 2, 2, 4, dtype=torch.uint8)
    plane = PoolPlane("scales", held.permute(0, 1, 3, 2), (5.0, 6.0, 7.0), 8, (2, 4))
    slots, rows = torch.tensor([9, 22]), torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)

    plane.put(slots, plane.bytes_of(rows))

    assert held[1, 0, :, 1].tolist() == [1, 2] and held[2, 1, :, 2].tolist() == [3, 4]
    assert held.sum() == rows.sum()
    assert torch.equal(plane.get(slots), rows)


def test_planes_with_gaps_between_rows_are_written_in_place() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        cache, pools = side_by_side()
    require_pools(OnlyPools(pools), CONFIG)  # type: ignore[arg-type]
    pool_writer = PoolWriter(pools, CONFIG, memory)
    pool_writer.fill_unowned(0)
    assert pool_writer.written_in_capture() == []
    assert bool((cache[1:] != 0).all())
    assert bool((cache[0] == 0).all())
    assert len(set(cache[1:, :, :KEYS].flatten().tolist())) == 1
    cache[5, 1, KEYS] += 1
    (changed,) = pool_writer.written_in_capture()
    assert (changed.region, changed.indices) == ("kv_planes[1]", [5])


def test_planes_by_page_are_written_in_place() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        cache, pools = keys_before_values()
    require_pools(OnlyPools(pools), CONFIG)  # type: ignore[arg-type]
    pool_writer = PoolWriter(pools, CONFIG, memory)
    pool_writer.fill_unowned(0)
    assert pool_writer.written_in_capture() == []
    keys, values = cache[:, 0].flatten(0, 1), cache[:, 1].flatten(0, 1)
    assert len(set(keys[2:].flatten().tolist())) == len(set(values[2:].flatten().tolist())) == 1
    assert keys[2, 0, 0] != values[2, 0, 0]
    assert bool((keys[0] == 0).all()) and bool((keys[1] != 0).all())
    cache[5, 1, 1, 0, 0] += 1
    (changed,) = pool_writer.written_in_capture()
    assert (changed.region, changed.indices) == ("kv_planes[1]", [11])


@pytest.mark.parametrize(("null_block", "found"), [(False, [1]), (True, [])])
def test_all_of_page_0_may_be_written_where_it_is_a_reserved_state_too(
    null_block: bool, found: list[int]
) -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        cache, pools = keys_before_values()
    pool_writer = PoolWriter(replace(pools, null_block=null_block), CONFIG, memory)
    pool_writer.fill_unowned(0)
    cache[0, 0, :, 0, 0] += 1
    changed = pool_writer.written_in_capture()
    assert [number for each in changed for number in each.indices] == found
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(DECODE,)))
    before = memory.snapshot()
    cache[0, 1, :, 0, 0] += 1
    stranger = [each for each in pool_writer.state_of(batch).foreign_writes(before) if not each.own]
    assert [number for each in stranger for number in each.indices] == found


def test_a_store_of_what_a_finished_request_had_left_there_shows() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        _, pools = keys_before_values()
    pool_writer = PoolWriter(pools, CONFIG, memory)
    other = ReplayStep(rows=(BatchRow(request=1, seq_len=3),), finish=(0,))
    longer = ReplayStep(rows=(BatchRow(request=0, seq_len=5),))
    first, second = plan(Case(schema_version=1, config=CONFIG, steps=(longer, other)))
    pool_writer.state_of(first).lay()
    past = first.kv_slots.values[: first.cached_lens[0]]
    (slot,) = {*past.tolist()} - {*second.kv_slots.values.tolist()}
    place = (slot // CONFIG.page_size, slot % CONFIG.page_size)
    left = [plane[place].clone() for plane in pools.kv_planes]
    step = pool_writer.state_of(second)
    step.lay()
    before = memory.snapshot()
    for plane, row in zip(pools.kv_planes, left, strict=True):
        plane[place] = row
    strangers = [each for each in step.foreign_writes(before) if not each.own]
    assert [each.indices for each in strangers] == [[slot], [slot]]


def test_too_few_pages_are_named() -> None:
    cache, _ = keys_before_values()
    few = Pools(kv_planes=(cache[:4, 0], cache[:4, 1]))
    assert f"needs at least {SLOTS // CONFIG.page_size} rows" in refusal(few)


def test_pools_that_hold_the_world_are_taken() -> None:
    table = torch.zeros(FIRST_ROW + CONFIG.req_pool_size, CONFIG.max_context_len, dtype=torch.int32)
    require_pools(OnlyPools(Pools(req_to_token=table)), CONFIG)  # type: ignore[arg-type]


WRONG = {
    "too few rows": (
        Pools(req_to_token=torch.zeros(2, CONFIG.max_context_len, dtype=torch.int32)),
        "req_to_token is [2, ",
    ),
    "one plane": (
        Pools(kv_planes=(torch.zeros(SLOTS, 4),)),
        "there are 1 kv_planes, and mha needs 2",
    ),
    "too few slots": (
        Pools(kv_planes=(torch.zeros(4, HEADS, KEYS, dtype=DTYPE),) * 2),
        f"needs at least {SLOTS} rows",
    ),
    "too narrow": (
        Pools(kv_planes=(torch.zeros(SLOTS, HEADS, 1, dtype=DTYPE),) * 2),
        "a row must have",
    ),
    "too few inputs of a convolution": (
        Pools(conv_state=torch.zeros(SLOTS, CONV_WIDTH - 2, CONV_COLUMNS)),
        f"a row must have {4 * (CONV_WIDTH - 1) * CONV_COLUMNS} bytes",
    ),
    "inputs in a dtype that is not the model's": (
        Pools(
            conv_state=torch.zeros(SLOTS, CONV_WIDTH - 1, CONV_COLUMNS, dtype=torch.bfloat16),
        ),
        "of torch.bfloat16, and a row must have",
    ),
    "inputs the other way round, unsaid": (
        Pools(conv_state=torch.zeros(SLOTS, CONV_COLUMNS, CONV_WIDTH - 1)),
        "transposed_states does not name it",
    ),
    "inputs as the harness has them, said to be transposed": (
        Pools(
            conv_state=torch.zeros(SLOTS, CONV_WIDTH - 1, CONV_COLUMNS),
            transposed_states=frozenset({"conv_state"}),
        ),
        f"transposed_states names it, and an input has {CONV_COLUMNS} columns",
    ),
    "elements apart": (
        Pools(kv_planes=(torch.zeros(SLOTS, KEYS, HEADS, dtype=DTYPE).transpose(1, 2),) * 2),
        "Hand over a view whose last dimension is contiguous",
    ),
}


@pytest.mark.parametrize(("pools", "said"), WRONG.values(), ids=list(WRONG))
def test_pools_that_cannot_hold_the_world_are_named(pools: Pools, said: str) -> None:
    message = refusal(pools)
    assert said in message
    assert message.startswith("pools of OnlyPools: ")
    assert message.endswith("see docs/writing-a-target.md.")


def states(zero: bool = True) -> tuple[PoolWriter, Pools]:
    """States in one cache, those of the convolution before the others, as a release has them."""
    columns = (CONV_WIDTH - 1) * CONV_COLUMNS
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        cache = torch.zeros(FIRST_ROW + CONFIG.req_pool_size, columns + STATE_WIDTH)
    conv = cache[:, :columns].unflatten(1, (CONV_WIDTH - 1, CONV_COLUMNS))
    pools = Pools(state=cache[:, columns:], conv_state=conv, states_start_at_zero=zero)
    require_pools(OnlyPools(pools), CONFIG)  # type: ignore[arg-type]
    pool_writer = PoolWriter(pools, CONFIG, memory)
    pool_writer.fill_unowned(0)
    return pool_writer, pools


def one_and_five_tokens() -> Batch:
    config = EngineConfig(recurrent_state=True, capture_bs=(2,))
    rows = (BatchRow(request=0, seq_len=1), BatchRow(request=1, seq_len=5))
    (batch,) = plan(Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),)))
    return batch


@pytest.mark.parametrize("zero", [True, False])
def test_the_slot_of_a_request_without_tokens_is_written_only_where_it_is_zero_by_a_promise(
    zero: bool,
) -> None:
    pool_writer, pools = states(zero)
    assert pools.state is not None and pools.conv_state is not None
    batch = one_and_five_tokens()
    pool_writer.state_of(batch).write()
    first, second = batch.state_slots.tolist()
    assert bool(pools.state[first].eq(0).all()) == bool(pools.conv_state[first].eq(0).all()) == zero
    assert pools.state[second].tolist() == content_for(CONFIG).state_rows(batch)[1].tolist()
    assert bool(pools.conv_state[second].ne(0).any())


@pytest.mark.parametrize("zero", [True, False])
def test_memory_of_others_counts_the_slot_of_a_request_without_tokens(zero: bool) -> None:
    pool_writer, pools = states(zero)
    assert pools.state is not None
    batch = one_and_five_tokens()
    pool_writer.state_of(batch).write()
    before = pools.state.clone()
    for change in pool_writer.state_of(batch).dont_care(1):
        change.apply()
    changed = pools.state.ne(before).any(1).nonzero().flatten().tolist()
    first, second = batch.state_slots.tolist()
    assert second not in changed and (first in changed) != zero


def test_a_state_of_the_convolution_that_is_not_advanced_is_found() -> None:
    pool_writer, pools = states()
    assert pools.state is not None and pools.conv_state is not None
    batch, content = one_and_five_tokens(), content_for(CONFIG)
    state = pool_writer.state_of(batch)
    state.write()
    before = pool_writer.memory.snapshot()
    slots = torch.from_numpy(batch.state_slots)
    pools.state[slots] = content.state_rows(batch, after=True)
    (left,) = state.foreign_writes(before)
    assert (left.region, left.own, left.indices) == ("conv_state", True, sorted(slots.tolist()))
    pools.conv_state[slots] = conv_rows(content, batch, after=True)
    assert state.foreign_writes(before) == []


def test_a_convolution_may_keep_its_inputs_in_the_dtype_of_the_model() -> None:
    half = msgspec.structs.replace(CONFIG, dtype="float16")
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        rows = FIRST_ROW + half.req_pool_size
        conv = torch.zeros(rows, CONV_WIDTH - 1, CONV_COLUMNS, dtype=torch.float16)
    pools = Pools(conv_state=conv)
    require_pools(OnlyPools(pools), half)  # type: ignore[arg-type]
    pool_writer = PoolWriter(pools, half, memory)
    pool_writer.fill_unowned(0)
    batch, content = one_and_five_tokens(), content_for(half)
    state = pool_writer.state_of(batch)
    state.write()
    slots = torch.from_numpy(batch.state_slots)
    assert torch.equal(conv[slots].float(), conv_rows(content, batch))
    before = memory.snapshot()
    conv[slots] = conv_rows(content, batch, after=True).half()
    assert state.foreign_writes(before) == []
    conv[slots[1], -1, 0] += 1
    (wrong,) = state.foreign_writes(before)
    assert (wrong.region, wrong.own, wrong.indices) == ("conv_state", True, [int(slots[1])])
