"""Several KV cache groups: page maps of their own, freed pages, keys of a second layer."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.case import (
    BatchRow,
    Case,
    EngineConfig,
    ReplayStep,
    attention_outputs,
    group_configs,
    validate,
)
from fuzzgraph.content import content_for
from fuzzgraph.errors import InvalidCase, TargetFailed
from fuzzgraph.execution.observed import in_terms_of
from fuzzgraph.execution.pool_writer import PoolWriter
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.fields import Field, PaddingRule
from fuzzgraph.handover import Attended, Handover, QueryRow, part_of
from fuzzgraph.layout import plan
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.contract import Contract
from fuzzgraph.oracles.handover.breach import Pair
from fuzzgraph.oracles.handover.kernels import kernel_breaches
from fuzzgraph.oracles.handover.live import same_part
from fuzzgraph.ports import GroupPools, Pools
from fuzzgraph.reference import expected
from fuzzgraph.world import FIRST_PAGE, RESERVED_PAGE, RESERVED_SLOT, Batch, IntArray

TWO = EngineConfig(
    capture_bs=(4,), page_size=4, swa_window=3, swa_page_size=2, max_context_len=24,
    req_pool_size=4, kv_pool_pages=80,
)  # fmt: skip

ONE_MEMORY = msgspec.structs.replace(TWO, page_size=2)


def planned(*lengths: tuple[int, ...], config: EngineConfig = TWO, **of_case: Any) -> list[Batch]:
    """A step for each tuple, with a row of each length; 0 for a request that is not in it."""
    rows = [
        tuple(BatchRow(request=at, seq_len=length) for at, length in enumerate(step) if length)
        for step in lengths
    ]
    steps = [ReplayStep(rows=each) for each in rows]
    case = Case(schema_version=1, config=config, steps=tuple(steps), **of_case)
    return list(plan(validate(case)))


def second(batch: Batch) -> Batch:
    (group,) = batch.more_groups
    return group


def test_a_config_without_a_second_layer_has_one_group() -> None:
    plain = EngineConfig()
    assert group_configs(plain) == (plain,)
    assert attention_outputs(plain) == ("attention",)
    assert planned((3,), config=plain)[0].more_groups == ()


def test_the_second_group_has_its_own_window_and_page_size() -> None:
    first, other = group_configs(msgspec.structs.replace(TWO, sliding_window=7))
    assert (first.sliding_window, first.page_size) == (7, 4)
    assert (other.sliding_window, other.page_size, other.swa_window) == (3, 2, 0)
    assert group_configs(msgspec.structs.replace(TWO, swa_page_size=0))[1].page_size == 4


def test_a_page_size_of_a_group_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidCase, match=r"config\.swa_page_size=2 is that of a second KV cache"):
        planned((3,), config=msgspec.structs.replace(TWO, swa_window=0))


def test_tokens_that_are_drafted_have_slots_of_their_own_in_each_group() -> None:
    drafts = msgspec.structs.replace(TWO, modes=("draft",), spec_steps=3)
    steps = [
        ReplayStep(
            mode="draft",
            rows=tuple(BatchRow(request=n, seq_len=length, new_tokens=0) for n in range(3)),
        )
        for length in (5, 7)
    ]
    for batch in plan(Case(schema_version=1, config=drafts, steps=tuple(steps))):
        other, sizes = second(batch), (TWO.page_size, TWO.swa_page_size)
        assert len(batch.slot_mapping) == len(other.slot_mapping) == 3 * drafts.spec_steps
        for group in batch.groups:
            assert not np.intersect1d(group.slot_mapping, group.kv_slots.values).size
        pages = [
            {*(np.concatenate((group.slot_mapping, group.kv_slots.values)) // size).tolist()}
            for group, size in zip(batch.groups, sizes, strict=True)
        ]
        held = [{*found} - {RESERVED_PAGE} for found in pages]
        assert sum(map(len, held)) == len(set.union(*held))


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "fragmented"])
def test_no_page_is_two_requests_or_two_groups_at_once(order: str) -> None:
    for batch in planned(*((n, n + 2, 20 - n) for n in range(3, 18)), page_order=order):
        owned = [
            page
            for group in batch.groups
            for row in range(batch.raw_bs)
            for page in group.pages.row(row).tolist()
            if page != RESERVED_PAGE
        ]
        assert len(owned) == len({*owned}) and min(owned) >= FIRST_PAGE


def test_pages_wholly_behind_the_window_are_freed_and_no_others() -> None:
    # The query at position n - 1 sees itself and the 3 before it: positions n - 4 and up.
    for length, batch in zip(range(1, 20), planned(*((n,) for n in range(1, 20))), strict=True):
        pages = second(batch).pages.row(0)
        assert len(pages) == -(-length // 2)
        freed = max(0, length - 4) // 2
        assert second(batch).freed_pages().tolist() == [freed]
        assert (pages[:freed] == RESERVED_PAGE).all() and (pages[freed:] != RESERVED_PAGE).all()
        slots = second(batch).kv_slots.row(0)
        assert (slots[: 2 * freed] == RESERVED_SLOT).all() and (slots[2 * freed :] > 0).all()
        assert (batch.pages.row(0) != RESERVED_PAGE).all()


def test_a_freed_page_is_handed_to_another_request_in_the_same_step() -> None:
    before, after = planned((5,), (6, 5))
    (freed,) = {*second(before).pages.row(0).tolist()} - {*second(after).pages.row(0).tolist()}
    held = [page for group in after.groups for page in group.pages.row(1).tolist()]
    assert freed in held


def test_a_kept_page_stays_where_it_is() -> None:
    for before, after in pairwise(planned(*((n,) for n in range(1, 20)))):
        kept = second(after).freed_pages()[0]
        old = second(before).pages.row(0)
        assert second(after).pages.row(0)[kept : len(old)].tolist() == old[kept:].tolist()


def test_a_request_that_gets_shorter_has_the_pages_that_it_needs_again() -> None:
    _, short = planned((16,), (6,))
    assert second(short).pages.row(0)[1:3].min() >= FIRST_PAGE


def test_pages_that_were_freed_behind_those_of_a_shorter_request_are_not_counted() -> None:
    _, short = planned((16, 9), (2, 9))
    assert (second(short).pages.row(0) == RESERVED_PAGE).any()
    assert second(short).freed_pages().tolist() == [0, 2]


def test_everything_is_free_again_once_all_have_finished() -> None:
    rows = (BatchRow(request=0, seq_len=24),)
    steps = [ReplayStep(rows=rows)]
    for name in range(1, 9):
        rows = (BatchRow(request=name, seq_len=24),)
        steps.append(ReplayStep(rows=rows, finish=(name - 1,)))
    config = msgspec.structs.replace(TWO, kv_pool_pages=6 + 12)
    assert len(plan(validate(Case(schema_version=1, config=config, steps=tuple(steps))))) == 9


def test_rows_in_another_order_are_those_rows_in_each_group() -> None:
    (batch,) = planned((9, 4, 6))
    there = batch.with_rows(np.array([2, 0, 1]))
    assert second(there).pages.row(0).tolist() == second(batch).pages.row(2).tolist()
    assert second(there).slot_mapping.tolist() == second(batch).slot_mapping[[2, 0, 1]].tolist()


def test_the_second_layer_has_weights_and_keys_of_its_own() -> None:
    tokens = np.array([3, 4])
    (one, _), (other, _) = (content_for(TWO, n).kv_planes(tokens, tokens) for n in (0, 1))
    assert not torch.equal(one, other)
    assert content_for(TWO, 0) is content_for(TWO)


def test_the_second_layer_sees_its_window_alone() -> None:
    (batch,) = planned((9,))
    far, near = (msgspec.structs.replace(TWO, swa_window=window) for window in (8, 3))
    outputs = [expected(batch, config).outputs for config in (far, near)]
    assert torch.equal(outputs[0]["attention"], outputs[1]["attention"])
    assert not torch.allclose(outputs[0]["swa_attention"], outputs[1]["swa_attention"])
    # A window as long as the row is none: the layer's plain attention.
    plain = msgspec.structs.replace(far, swa_window=9)
    assert torch.equal(outputs[0]["swa_attention"], expected(batch, plain).outputs["swa_attention"])


def table_of(batch: Batch, behind: int) -> torch.Tensor:
    """The second group's pages as an engine shows whole rows; `behind` in freed places."""
    table = torch.full((batch.raw_bs, 12), 77, dtype=torch.int32)
    for row in range(batch.raw_bs):
        pages = second(batch).pages.row(row).copy()
        pages[pages == RESERVED_PAGE] = behind
        table[row, : len(pages)] = torch.from_numpy(pages)
    return table


def breaches(batch: Batch, table: torch.Tensor, *, whole_rows: bool) -> list[str]:
    field = Field(
        "block_table", "page_table", "page", PaddingRule("free"), group=1, whole_rows=whole_rows
    )
    seen = Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)
    seen.metadata["block_table"] = table
    step = StepRecord(0, "t", TWO, batch, (field,))
    step.runs["replay"] = in_terms_of(batch, seen, (field,), TWO)
    return [found.message for found in Contract().judge(step)]


def test_whole_rows_may_hold_anything_in_freed_places() -> None:
    (batch,) = planned((9, 12))
    assert breaches(batch, table_of(batch, 44), whole_rows=True) == []


def test_rows_without_leftovers_hold_the_reserved_page_in_freed_places() -> None:
    (batch,) = planned((9, 12))
    assert breaches(batch, table_of(batch, RESERVED_PAGE), whole_rows=False) == []
    (message,) = breaches(batch, table_of(batch, 44), whole_rows=False)
    assert "block_table of row 0 holds page 44, which is not its own" in message


def test_the_first_groups_pages_in_the_second_groups_table_are_told() -> None:
    (batch,) = planned((9,))
    table = table_of(batch, RESERVED_PAGE)
    table[0, 4] = int(batch.pages.row(0)[0])
    (message,) = breaches(batch, table, whole_rows=True)
    assert f"holds page {table[0, 4]}, which is not its own" in message


def handed_over(batch: Batch, now: torch.Tensor, eager: torch.Tensor) -> list[str]:
    """What the rule of live entries says of a table that both runs handed over."""
    seen = Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)
    pair = Pair(StepRecord(0, "t", TWO, batch, ()), seen, seen, "the eager run")
    return [breach.message for breach in same_part("table", part_of(now), part_of(eager), pair)]


def test_two_runs_may_differ_in_freed_places_of_a_table_they_hand_over() -> None:
    (batch,) = planned((9, 12))
    assert handed_over(batch, table_of(batch, 44), table_of(batch, RESERVED_PAGE)) == []


def test_two_runs_may_not_differ_in_a_page_that_the_window_reaches() -> None:
    (batch,) = planned((9, 12))
    other = table_of(batch, 44)
    other[1, 5] = 45
    assert handed_over(batch, other, table_of(batch, 44)) == [
        f"table[1, 5] is 45, the eager run had {second(batch).pages.row(1)[5]}"
    ]


def test_a_table_of_the_first_group_is_compared_in_all_its_pages() -> None:
    (batch,) = planned((9, 12))
    table = torch.zeros(2, 12, dtype=torch.int32)
    for row in range(2):
        pages = batch.pages.row(row)
        table[row, : len(pages)] = torch.from_numpy(pages)
    other = table.clone()
    other[0, 0] = 45
    assert handed_over(batch, other, table)


def launch_of(keys: list[list[int]]) -> Handover:
    """A kernel whose tokens see these slots, each token in a row of its own."""
    rows = tuple(QueryRow(at, 1, np.array(slots)) for at, slots in enumerate(keys))
    return Handover("attention", "kernel", attended=(Attended(rows, len(keys), "slot", 1.0),))


def keys_told(batch: Batch, *launches: list[list[int]]) -> list[str]:
    seen = Observation(batch.raw_bs, batch.raw_bs, batch.num_tokens, batch.num_tokens)
    seen.handovers = tuple(map(launch_of, launches))
    step = StepRecord(0, "t", ONE_MEMORY, batch, ())
    return [breach.message for breach in kernel_breaches(step, seen, None)]


def test_a_token_sees_the_keys_of_both_groups() -> None:
    (batch,) = planned((9, 4), config=ONE_MEMORY)
    full = [batch.kv_slots.row(row).tolist() for row in range(2)]
    window = [second(batch).kv_slots.row(row)[-4:].tolist() for row in range(2)]
    assert keys_told(batch, full, window) == []
    (message,) = keys_told(batch, full, full)
    assert "token 0 does not see slot" in message
    behind = [[int(second(batch).kv_slots.row(0)[4]), *window[0]], window[1]]
    (message,) = keys_told(batch, full, behind)
    assert f"token 0 sees slot {behind[0][0]}, which is no key of it" in message


def pools_of(config: EngineConfig, *, shared: bool) -> Pools:
    """Planes of both groups, in one memory or in two."""
    shapes = content_for(config).plane_shapes

    def planes(page: int) -> tuple[torch.Tensor, ...]:
        slots = (FIRST_PAGE + config.kv_pool_pages) * page
        return tuple(torch.zeros(slots, *shape) for shape in shapes)

    first = planes(config.page_size)
    other = first if shared else planes(group_configs(config)[1].page_size)
    return Pools(kv_planes=first, more_groups=(GroupPools(kv_planes=other),))


@pytest.mark.parametrize("shared", [False, True])
def test_the_history_of_each_group_lies_in_its_own_slots(shared: bool) -> None:
    (batch,) = planned((9, 4), config=ONE_MEMORY)
    pools = pools_of(ONE_MEMORY, shared=shared)
    writer = PoolWriter(pools, ONE_MEMORY, GuardedMemory(torch.device("cpu")))
    assert len(writer.planes) == (2 if shared else 4)
    writer.fill_unowned(0)
    writer.state_of(batch).write()
    for layer, (seen, group) in enumerate(zip(batch.groups, pools.groups, strict=True)):
        content = content_for(ONE_MEMORY, layer)
        for row, length in enumerate((9, 4)):
            kept = np.flatnonzero(seen.kv_slots.row(row)[: length - 1] != RESERVED_SLOT)
            keys, values = content.kv_planes(seen.kv_tokens.row(row)[kept], kept)
            slots = torch.from_numpy(seen.kv_slots.row(row)[kept])
            assert torch.equal(group.kv_planes[0][slots], keys)
            assert torch.equal(group.kv_planes[1][slots], values)


@pytest.mark.parametrize("shared", [False, True])
def test_what_neither_group_owns_is_changed_in_another_world_and_nothing_else(shared: bool) -> None:
    (batch,) = planned((9, 4), config=ONE_MEMORY)
    pools = pools_of(ONE_MEMORY, shared=shared)
    writer = PoolWriter(pools, ONE_MEMORY, GuardedMemory(torch.device("cpu")))
    writer.fill_unowned(0)
    state = writer.state_of(batch)
    state.write()
    before = [plane.clone() for plane in pools.all_planes]
    for change in state.dont_care(1):
        change.apply()
    of_planes = [seen for seen in batch.groups for _ in range(2)]
    for plane, then, seen in zip(pools.all_planes, before, of_planes, strict=True):
        same = (plane == then).flatten(1).all(1)
        owned = past_slots(seen)
        assert same[owned].all()
        if not shared:
            others = np.setdiff1d(np.arange(2, len(plane)), owned)
            assert not same[others].any()


def past_slots(seen: Batch) -> IntArray:
    """Slots of the positions before this step whose KV is there."""
    slots: IntArray = np.concatenate([seen.kv_slots.row(row)[:-1] for row in range(seen.raw_bs)])
    return np.setdiff1d(slots, [RESERVED_SLOT])


def test_pools_without_the_second_group_are_refused() -> None:
    pools = pools_of(TWO, shared=False)
    session: Any = SimpleNamespace(pools=Pools(kv_planes=pools.kv_planes))
    with pytest.raises(TargetFailed, match="there are 0 more_groups, and the config has 1 KV"):
        require_pools(session, TWO)
    small = Pools(
        kv_planes=pools.kv_planes, more_groups=(GroupPools(kv_planes=(torch.zeros(3, 1, 4),) * 2),)
    )
    with pytest.raises(TargetFailed, match=r"more_groups\[0\]\.kv_planes\[0\] is \[3, 1, 4\]"):
        require_pools(SimpleNamespace(pools=small), TWO)  # type: ignore[arg-type]
    require_pools(SimpleNamespace(pools=pools), TWO)  # type: ignore[arg-type]
