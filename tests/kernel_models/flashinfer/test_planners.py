"""Planners as an engine's own plans call them: by position, on the host, for what is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.side_requests import SESSION_CPU
from tests.kernel_models.flashinfer.batches import (
    COLUMNS,
    HEADS,
    KV_HEADS,
    Pages,
    decode_wrapper,
    offsets,
    plan_decode,
    plan_prefill,
    prefill_wrapper,
)
from tests.kernel_models.flashinfer.test_first_plan import mla_wrapper, plan_mla

BATCH = Pages([5, 9], [2, 2])


class OwnPlan:
    """An engine's plan of a prefill, which calls the module of the wrapper."""

    def __init__(self) -> None:
        self.wrapper = prefill_wrapper(BATCH)
        plan_prefill(self.wrapper, BATCH)

    def plan(self, *more: Any, **changed: Any) -> None:
        wrapper = self.wrapper
        given = {
            "float": wrapper._float_workspace_buffer, "ints": wrapper._int_workspace_buffer,
            "staged": None, "qo_indptr": BATCH.qo, "kv_indptr": BATCH.indptr,
            "kv_lens": torch.tensor(BATCH.lens).int(), "rows": 4, "batch_size": 2,
            "q_heads": HEADS, "kv_heads": KV_HEADS, "page": 1, "graph": True, "qk": COLUMNS,
            "vo": COLUMNS, "causal": False, "window": -1, "split": -1, "no_split": False,
            "colocated": 0,
        } | changed  # fmt: skip
        wrapper._plan_info = wrapper._cached_module.plan(*given.values(), *more)


@pytest.mark.parametrize("uniform", [(), (0,), (0, True)])
def test_a_plan_with_or_without_a_uniform_length_is_taken(uniform: tuple[int, ...]) -> None:
    own = OwnPlan()
    own.plan(*uniform)
    out = own.wrapper.run(BATCH.q, BATCH.cache)
    want, _ = BATCH.expected(lambda *_: True, scale=COLUMNS**-0.5)
    torch.testing.assert_close(out.double(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kv_lens": None}, "kv_len_arr must be a tensor; got None"),
        ({"qo_indptr": None}, "qo_indptr must be a tensor; got None"),
        ({"page": None}, "page_size must be a whole number; got None"),
        ({"kv_heads": 0}, "num_kv_heads must be above 0"),
        ({"qo_indptr": torch.zeros(()).int()}, "qo_indptr must have 1 dimension"),
        ({"rows": 3}, "total_num_rows must be at least the 4 queries"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(KernelRefused, match=told):
        OwnPlan().plan(**changed)


def test_a_plan_of_too_many_arguments_is_refused() -> None:
    with pytest.raises(KernelRefused, match="takes 19 to 21 arguments; got 22"):
        OwnPlan().plan(0, False, 0)


@pytest.mark.parametrize("name", ["qo_indptr", "kv_indptr", "kv_lens"])
@pytest.mark.parametrize("on_device", [True, False])
def test_offsets_and_lengths_are_read_on_the_host(name: str, on_device: bool) -> None:
    memory = GuardedMemory(capacity=1 << 22)
    right = {"qo_indptr": BATCH.qo, "kv_indptr": BATCH.indptr, "kv_lens": torch.tensor([5, 9])}
    with memory.intercept("engine"):
        own = OwnPlan()
        device = SESSION_CPU if on_device else None
        given = torch.tensor(right[name].tolist(), dtype=torch.int32, device=device)
        if not on_device:
            own.plan(**{name: given})
            return
        with pytest.raises(KernelRefused, match="must be memory of the host"):
            own.plan(**{name: given})


@pytest.mark.parametrize(
    ("changed", "name"), [({"kv_heads": 1}, "num_kv_heads"), ({"q_heads": 8}, "num_qo_heads")]
)
def test_a_plan_for_other_heads_than_the_runs_is_told(changed: dict[str, int], name: str) -> None:
    memory = GuardedMemory(capacity=1 << 22)
    own = OwnPlan()
    with memory.intercept("engine"):
        own.plan(**changed)
        memory.lanes.report.take_misuses()  # it repeats not the first plan's
        own.wrapper.run(BATCH.q, BATCH.cache)
    assert name in {one.argument for one in memory.lanes.report.take_misuses()}


def test_queries_of_other_columns_than_planned_are_refused() -> None:
    batch = Pages([5, 9], [1, 1])
    wrapper = decode_wrapper(batch)
    plan_decode(wrapper, batch)
    with pytest.raises(KernelRefused, match=f"q must have the {COLUMNS} columns of the plan"):
        wrapper.run(batch.q[..., : COLUMNS // 2].contiguous(), batch.cache)


def test_latent_rows_need_a_length_for_each() -> None:
    wrapper = mla_wrapper()
    plan_mla(wrapper)
    spaces = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, None)
    with pytest.raises(KernelRefused, match="kv_len must have 1 dimension"):
        wrapper._cached_module.plan(
            *spaces, offsets([1]), offsets([1]), torch.ones(()).int(), 4, 8, False
        )
