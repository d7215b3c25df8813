"""Which adapters a pool may hold after each step, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.layout.adapter_pool import AdapterPools
from fuzzgraph.rules import metadata

Pools = list[tuple[tuple[int, ...], ...]]


def _pools(*steps: set[int], **settings: Any) -> Pools:
    pools = AdapterPools(EngineConfig(**{"max_loras": 2, **settings}))
    return [pools.step(index, needed) for index, needed in enumerate(steps)]


def test_the_adapter_that_was_used_least_recently_leaves() -> None:
    assert _pools({1}, {2}, {1}, {3})[-1] == ((0, 1, 3),)


def test_by_the_other_policy_the_one_that_came_first_leaves() -> None:
    assert _pools({1}, {2}, {1}, {3}, lora_eviction="fifo")[-1] == ((0, 2, 3),)


def test_one_that_comes_again_is_the_last_that_came() -> None:
    assert _pools({1}, {2}, {3}, {1}, {2}, lora_eviction="fifo")[-1] == ((0, 1, 2),)


def test_either_of_two_that_are_equally_old_may_leave() -> None:
    assert _pools({1, 2}, {3})[-1] == ((0, 1, 3), (0, 2, 3))


def test_of_three_that_two_leave_the_oldest_is_one() -> None:
    assert _pools({1}, {2, 3}, {4, 5}, max_loras=3)[-1] == ((0, 2, 4, 5), (0, 3, 4, 5))


def test_one_that_the_batch_has_stays_however_old_it_is() -> None:
    assert _pools({1}, {2}, {1, 3}, lora_eviction="fifo")[-1] == ((0, 1, 3),)


def test_a_pinned_one_stays_once_it_is_there() -> None:
    assert _pools({1}, {2}, {3}, pinned_loras=1) == [((0, 1),), ((0, 1, 2),), ((0, 1, 3),)]


def test_a_step_without_requests_changes_nothing() -> None:
    assert _pools({1}, set(), {0, 2}) == [((0, 1),), ((0, 1),), ((0, 1, 2),)]


def _case(*steps: tuple[int, ...], **settings: Any) -> Case:
    """Each step has requests of its own, with these adapters."""
    made = []
    for index, adapters in enumerate(steps):
        rows = tuple(
            BatchRow(request=10 * index + row, adapter=own) for row, own in enumerate(adapters)
        )
        gone = range(len(steps[index - 1])) if index else ()
        finish = tuple(10 * (index - 1) + row for row in gone)
        made.append(ReplayStep(rows=rows, finish=finish))
    config = EngineConfig(**{"max_loras": 2, **settings})
    return Case(schema_version=1, config=config, steps=tuple(made))


def test_batches_of_a_case_say_so() -> None:
    batches = plan(validate(_case((1, 0), (2,), (3,))))
    assert [batch.adapter_pools for batch in batches] == [((0, 1),), ((0, 1, 2),), ((0, 2, 3),)]


def test_a_batch_without_adapters_has_none() -> None:
    (batch,) = plan(validate(_case((0,), max_loras=0)))
    assert batch.adapter_pools == ()


def test_a_batch_may_have_pinned_ones_beside_as_many_as_are_left() -> None:
    validate(_case((1, 2), pinned_loras=1))
    with pytest.raises(InvalidCase, match=r"\[2, 3\] are more than max_loras=2, of which 1 are"):
        validate(_case((2, 3), pinned_loras=1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_loras": 0, "lora_eviction": "fifo"}, "a pool of adapters; got max_loras=0"),
        ({"max_loras": 0, "pinned_loras": 1}, "a pool of adapters; got max_loras=0"),
        ({"pinned_loras": 3}, "must be at most max_loras=2"),
        ({"pinned_loras": 1, "dp_size": 2}, "all adapters are pinned"),
    ],
)
def test_a_config_that_no_server_has_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        validate(_case(**settings))


def test_a_breach_says_what_the_pool_must_hold() -> None:
    allowed = [[0, 1, 3], [0, 2, 3]]
    assert not [*metadata.is_one_of("lora_pool", np.array([0, 2, 3]), allowed=allowed)]
    (said,) = metadata.is_one_of("lora_pool", np.array([0, 1, 2]), allowed=allowed)
    assert said == "lora_pool is [0, 1, 2], must be [0, 1, 3] or [0, 2, 3]"
