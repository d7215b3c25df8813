"""A graph's kernels were launched by its first plan: later ones repeat its numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fuzzgraph.kernel_models.flashinfer import (
    BatchMLAPagedAttentionWrapper,
    fast_decode_plan,
)
from fuzzgraph.kernel_models.flashinfer.first_plan import FirstPlan, held_to_first
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.flashinfer.batches import (
    COLUMNS,
    HEADS,
    KV_HEADS,
    WORKSPACE,
    Pages,
    decode_wrapper,
    plan_decode,
)

BATCH = Pages([5, 3], [1, 1])


def misuses(run: Callable[[], None]) -> list[str]:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        run()
    return [str(misuse) for misuse in memory.lanes.report.take_misuses()]


def mla_wrapper(graph: bool = True) -> Any:
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8)
    if not graph:
        return BatchMLAPagedAttentionWrapper(workspace)
    return BatchMLAPagedAttentionWrapper(
        workspace, True, torch.zeros(3).int(), torch.zeros(3).int(), torch.zeros(8).int(),
        torch.zeros(2).int(),
    )  # fmt: skip


def plan_mla(wrapper: Any, **changed: Any) -> None:
    given: dict[str, Any] = dict(
        qo_indptr=torch.tensor([0, 1, 2]).int(),
        kv_indptr=BATCH.indptr,
        kv_indices=BATCH.indices,
        kv_len_arr=torch.tensor([5, 3]).int(),
        num_heads=4,
        head_dim_ckv=8,
        head_dim_kpe=2,
        page_size=1,
        causal=False,
        sm_scale=0.25,
        q_data_type=torch.float32,
        kv_data_type=torch.float32,
    )
    wrapper.plan(**given | changed)


def fast(wrapper: Any) -> Any:
    """An engine's plan, which the wrapper gets in place of its own."""
    return partial(fast_decode_plan, wrapper)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sm_scale": 0.5}, "sm_scale of a graph's plan must be that of its first plan, 0.25"),
        ({"causal": True}, "causal of a graph's plan must be that of its first plan, False"),
        ({"kv_data_type": torch.float16}, "that of its first plan, float32; got float16"),
    ],
)
def test_a_later_plan_of_a_graph_repeats_the_numbers_of_the_first(
    changed: dict[str, Any], told: str
) -> None:
    wrapper = mla_wrapper()
    plan_mla(wrapper)
    assert misuses(lambda: plan_mla(wrapper)) == []
    (found,) = misuses(lambda: plan_mla(wrapper, **changed))
    assert told in found


def test_without_a_graph_a_plan_may_say_anything_new() -> None:
    wrapper = mla_wrapper(graph=False)
    plan_mla(wrapper)
    assert misuses(lambda: plan_mla(wrapper, sm_scale=0.5, num_heads=8)) == []


def test_an_engines_own_plan_is_held_to_the_first_one_as_well() -> None:
    wrapper = decode_wrapper(BATCH)
    plan_decode(wrapper, BATCH, logits_soft_cap=1.5)
    wrapper.begin_forward = fast(wrapper)
    assert wrapper.begin_forward.func is fast_decode_plan  # engines look into it
    given = (BATCH.indptr, BATCH.indices, BATCH.last, HEADS, KV_HEADS, COLUMNS, 1)
    assert misuses(lambda: wrapper.begin_forward(*given, logits_soft_cap=1.5)) == []
    (found,) = misuses(lambda: wrapper.begin_forward(*given, logits_soft_cap=2.5))
    assert "logits_soft_cap of a graph's plan must be that of its first plan, 1.5" in found


def test_a_planner_that_an_engine_calls_itself_gets_the_numbers_of_the_first_plan() -> None:
    wrapper = mla_wrapper()
    plan_mla(wrapper)
    workspaces = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, None)
    lens = torch.tensor([5, 3]).int()
    offsets = (torch.tensor([0, 1, 2]).int(), BATCH.indptr, lens)
    call = wrapper._cached_module.plan
    assert misuses(lambda: call(*workspaces, *offsets, 4, 8, False)) == []
    found = misuses(lambda: call(*workspaces, *offsets, 8, 4, False))
    assert [text.split(": ")[1].split(" of")[0] for text in found] == ["num_heads", "head_dim_o"]


def test_an_engines_own_plan_may_say_how_long_the_longest_row_is() -> None:
    def plan(max_q_len: int, *, max_kv_len: int) -> None: ...

    held = held_to_first(plan, FirstPlan("BatchPrefillWithPagedKVCacheWrapper.plan"))
    assert misuses(lambda: held(4, max_kv_len=4)) == []
    assert misuses(lambda: held(4, max_kv_len=34)) == []
    (found,) = misuses(lambda: held(8, max_kv_len=34))
    assert "max_q_len of a graph's plan must be that of its first plan, 4" in found
