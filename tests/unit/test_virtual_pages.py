"""Pages with virtual numbers: names that last, slots that move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, group_configs, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.world import FIRST_PAGE, Batch

CONFIG = EngineConfig(
    capture_bs=(4,), page_size=4, max_context_len=16, swa_window=3, virtual_pages=True
)
CAN = Capabilities(page_sizes=(1, 4), swa_window=True, virtual_pages=True, max_context_len=32)


def _batches(config: EngineConfig = CONFIG, **more: Any) -> tuple[Batch, ...]:
    lens = ({0: 9, 1: 6, 2: 3}, {1: 7, 2: 4}, {1: 8, 2: 5})
    steps = tuple(
        ReplayStep(
            rows=tuple(BatchRow(request=name, seq_len=n) for name, n in rows.items()),
            finish=(0,) if index == 2 else (),
        )
        for index, rows in enumerate(lens)
    )
    return plan(validate(Case(schema_version=1, config=config, steps=steps, **more)))


def _named(batch: Batch) -> dict[int, list[int]]:
    return {name: batch.map_slots.row(row).tolist() for row, name in enumerate(batch.requests)}


def test_a_name_lasts_as_long_as_its_request_has_the_page() -> None:
    first, second, third = map(_named, _batches())
    for name in (1, 2):
        assert second[name][:-1] == first[name]
        assert third[name][:-1] == second[name]


def test_pages_stay_until_a_request_leaves_and_move_then() -> None:
    batches = _batches()
    slots = [{name: b.kv_slots.row(row).tolist() for row, name in enumerate(b.requests)}
             for b in batches]  # fmt: skip
    assert slots[1][1][:-1] == slots[0][1]
    assert slots[2][1][:-1] != slots[1][1]
    assert slots[2][2][:4] != slots[1][2]


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "fragmented"])
def test_no_two_pages_have_one_name_or_one_number(order: str) -> None:
    for batch in _batches(page_order=order):
        named = batch.map_slots.values
        assert len(np.unique(named)) == len(named)
        assert named.min() >= FIRST_PAGE * CONFIG.page_size
        slots = np.concatenate([group.kv_slots.values for group in batch.groups])
        held = slots[slots > 0]
        assert len(np.unique(held)) == len(held)


def test_names_and_slots_agree_on_the_place_in_a_page() -> None:
    for batch in _batches():
        page = CONFIG.page_size
        assert np.array_equal(batch.map_slots.values % page, batch.kv_slots.values % page)


def test_new_tokens_are_named_too_in_any_order_of_rows() -> None:
    for batch in _batches():
        turned = batch.with_rows(np.arange(batch.raw_bs)[::-1])
        assert turned.map_slot_mapping.tolist() == batch.map_slot_mapping[::-1].tolist()
        assert [row[-1] for row in _named(batch).values()] == batch.map_slot_mapping.tolist()


def test_without_virtual_numbers_a_map_names_slots() -> None:
    for batch in _batches(EngineConfig(capture_bs=(4,))):
        assert batch.map_slots is batch.kv_slots
        assert batch.map_slot_mapping is batch.slot_mapping


def test_layers_behind_a_window_have_no_numbers_of_their_own() -> None:
    assert not group_configs(CONFIG)[1].virtual_pages


@pytest.mark.parametrize(
    "other",
    [{"modes": ("draft",), "swa_window": 0}, {"max_encoder_len": 3}, {"swa_page_size": 2}],
)
def test_what_has_no_virtual_numbers_is_refused(other: dict[str, object]) -> None:
    config = {"swa_window": 3, "virtual_pages": True, "page_size": 4, **other}
    case = Case(schema_version=1, config=EngineConfig(**config), steps=(ReplayStep(),))  # type: ignore[arg-type]
    with pytest.raises(InvalidCase, match="virtual_pages"):
        validate(case)


def test_a_part_of_the_configs_with_a_second_layer_has_them() -> None:
    found = [swarm_config(CAN, DEFAULT, number) for number in range(100)]
    virtual = [config for config in found if config.virtual_pages]
    assert len(virtual) > 5
    assert all(config.swa_window and not config.swa_page_size for config in virtual)
    assert any(config.swa_window and not config.virtual_pages for config in found)
