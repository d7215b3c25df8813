"""Encoders whose slots lie in front of a request's own, with keys and values of another layer."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.capabilities import Capabilities, unsupported_case
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import content_for
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.pool_writer import PoolWriter
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.layout import plan
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import Field, Observation, PaddingRule, StepRecord
from fuzzgraph.oracles.contract import Contract
from fuzzgraph.ports import Pools
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, Batch

CONFIG = EngineConfig(capture_bs=(2,), max_context_len=8, max_encoder_len=4)
ROWS = (
    BatchRow(request=0, seq_len=3, encoder_len=4),
    BatchRow(request=1, seq_len=2),
    BatchRow(request=2, seq_len=1, encoder_len=1),
)


class OnlyPools:
    """What the check asks of a session."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools


def planned() -> Batch:
    (batch,) = plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=ROWS),)))
    return batch


def pools(width: int = 12) -> Pools:
    """A page map with room for encoders, and two planes for each of two layers."""
    slots, content = FIRST_PAGE + CONFIG.kv_pool_pages, content_for(CONFIG)
    key, value = (
        [torch.zeros(slots, *shape, dtype=content.storage_dtype) for _ in range(2)]
        for shape in content.plane_shapes
    )
    return Pools(
        req_to_token=torch.zeros(FIRST_ROW + CONFIG.req_pool_size, width, dtype=torch.int32),
        kv_planes=(key[0], value[0]),
        encoder_planes=(key[1], value[1]),
        encoder_in_front=True,
    )


def written() -> tuple[Pools, PoolWriter, Batch, GuardedMemory]:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        made = pools()
    writer, batch = PoolWriter(made, CONFIG, memory), planned()
    writer.fill_unowned(0)
    writer.state_of(batch).lay()
    return made, writer, batch, memory


def test_a_row_of_the_page_map_begins_with_the_encoder() -> None:
    made, _, batch, _ = written()
    assert made.req_to_token is not None
    for row, place in enumerate(batch.req_pool_indices.tolist()):
        both = [*batch.encoder_slots.row(row).tolist(), *batch.kv_slots.row(row).tolist()]
        assert made.req_to_token[place, : len(both)].tolist() == both


def test_keys_of_an_encoder_are_in_the_planes_of_its_layer_alone() -> None:
    made, _, batch, _ = written()
    slots = torch.from_numpy(batch.encoder_slots.values)
    truth = content_for(CONFIG).encoder_planes(batch.encoder_tokens.values)
    for apart, own, rows in zip(made.encoder_planes, made.kv_planes, truth, strict=True):
        assert torch.equal(apart[slots], rows)
        assert len(own[slots].unique()) == 1, "a signature"


@pytest.mark.parametrize("own", [True, False], ids=["its own slot", "a slot of the text"])
def test_a_write_to_an_encoders_plane_is_foreign(own: bool) -> None:
    made, writer, batch, memory = written()
    slot = int((batch.encoder_slots if own else batch.kv_slots).row(0)[0])
    before = memory.snapshot()
    made.encoder_planes[0][slot] += 1
    found = [each for each in writer.state_of(batch).foreign_writes(before) if not each.own]
    assert [(each.region, each.indices) for each in found] == [("encoder_planes[0]", [slot])]


def test_a_page_map_without_room_for_encoders_is_refused() -> None:
    require_pools(OnlyPools(pools(12)), CONFIG)  # type: ignore[arg-type]
    with pytest.raises(TargetFailed, match=r"req_to_token is \[\d+, 11\]"):
        require_pools(OnlyPools(pools(11)), CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize("moved", [False, True])
def test_a_page_table_of_encoders_names_their_pages(moved: bool) -> None:
    batch = planned()
    table = torch.zeros(3, 4, dtype=torch.int32)
    for row, length in enumerate(batch.encoder_lens.tolist()):
        table[row, :length] = torch.from_numpy(batch.encoder_slots.row(row))
    if moved:
        table[0, 1] = int(batch.kv_slots.row(0)[0])
    name, free = "encoder_page_table", PaddingRule("free")
    fields = (Field(name, "page_table", "page", free),)
    step = StepRecord(0, "engine", CONFIG, batch, fields)
    step.runs["replay"] = Observation(3, 3, 3, 3, metadata={name: table})
    assert bool([*Contract().judge(step)]) is moved


CAN = Capabilities(encoder=True, encoder_only=True, prefix_beside_encoder=False, max_context_len=64)


def test_every_config_of_a_target_with_encoders_alone_has_one_and_shares_no_prefix() -> None:
    found: list[Case] = []
    draw(cases(CAN, DEFAULT.at(3)), 3, 200, found.append)
    lens = {case.config.max_encoder_len for case in found}
    assert 0 not in lens and len(lens) > 3
    assert not any(case.shared_prefix_pages for case in found)
    rows = [row.encoder_len for case in found for step in case.steps for row in step.rows]
    assert 0 in rows and len(set(rows)) > 3


def test_a_saved_case_with_a_shared_prefix_is_refused_beside_an_encoder() -> None:
    case = Case(
        schema_version=1, config=CONFIG, steps=(ReplayStep(rows=ROWS),), shared_prefix_pages=1
    )
    assert "max_encoder_len" in (unsupported_case(CAN, case) or "")
    assert unsupported_case(CAN.replace(prefix_beside_encoder=True), case) is None
