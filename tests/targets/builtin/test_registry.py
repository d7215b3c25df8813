"""The buffer registry: padding policies, grouped copies, shared buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fuzzgraph.case import EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.registry import (
    BufferRegistry,
    FillContext,
    GraphSlot,
    PaddingPolicy,
)
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import decode_registry, prefill_registry
from fuzzgraph.world import Batch
from tests.targets.builtin.engine import case_of, rows

CPU = torch.device("cpu")


def batch_of(lens: tuple[int, ...]) -> Batch:
    (found,) = plan(case_of(EngineConfig(), ReplayStep(rows=rows(lens))))
    return found


def slot(policy: PaddingPolicy, **changes: object) -> GraphSlot:
    declared: dict[str, object] = {
        "name": "lens",
        "shape": lambda extent: (extent.rows,),
        "dtype": torch.int32,
        "axis": "batch",
        "policy": policy,
        "pad_value": 9,
        "source": lambda batch: batch.seq_lens,
    }
    return GraphSlot(**(declared | changes))  # type: ignore[arg-type]


def filled(declared: GraphSlot, *batches: Batch) -> list[int]:
    """The buffer after these batches were padded to four rows, one after the other."""
    registry = BufferRegistry([declared], Extent(4, 4), InputPool(), CPU)
    for batch in batches:
        raw = Extent(batch.raw_bs, batch.num_tokens)
        registry.fill_from(batch, FillContext(raw, Extent(4, 4)))
    values: list[int] = registry.buffers[declared.name].tolist()
    return values


@pytest.mark.parametrize(
    ("policy", "tail"),
    [
        (PaddingPolicy.KEEP, [4, 5]),
        (PaddingPolicy.FILL_SENTINEL, [9, 9]),
        (PaddingPolicy.ZERO, [0, 0]),
        (PaddingPolicy.COPY_LIVE, [4, 5]),
        (PaddingPolicy.FILL_ONCE, [4, 5]),
    ],
)
def test_policy_decides_what_padded_rows_hold(policy: PaddingPolicy, tail: list[int]) -> None:
    assert filled(slot(policy), batch_of((2, 3, 4, 5)), batch_of((6, 7))) == [6, 7, *tail]


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        (PaddingPolicy.KEEP, 0),
        (PaddingPolicy.FILL_SENTINEL, 9),
        (PaddingPolicy.ZERO, 0),
        (PaddingPolicy.COPY_LIVE, 0),
        (PaddingPolicy.FILL_ONCE, 9),
    ],
)
def test_policy_decides_what_a_new_buffer_holds(policy: PaddingPolicy, value: int) -> None:
    assert filled(slot(policy)) == [value] * 4


def test_copy_live_takes_the_live_rows_of_a_longer_source() -> None:
    longer = slot(PaddingPolicy.COPY_LIVE, source=lambda batch: np.arange(10, 20))
    assert filled(longer, batch_of((6, 7))) == [10, 11, 0, 0]


def test_full_batch_needs_no_reset() -> None:
    assert filled(slot(PaddingPolicy.ZERO), batch_of((2, 3, 4, 5))) == [2, 3, 4, 5]


def test_absent_input_leaves_no_value_of_an_earlier_batch() -> None:
    optional = slot(
        PaddingPolicy.FILL_SENTINEL,
        source=lambda batch: batch.seq_lens if batch.raw_bs == 4 else None,
    )
    assert filled(optional, batch_of((2, 3, 4, 5)), batch_of((6, 7))) == [9] * 4


def test_hook_runs_after_the_copy_on_the_padded_rows() -> None:
    def double(view: torch.Tensor, batch: Batch, context: FillContext) -> None:
        view.mul_(2)

    hooked = slot(PaddingPolicy.FILL_SENTINEL, post_fill=double)
    assert filled(hooked, batch_of((6, 7))) == [12, 14, 18, 18]


def test_slice_function_decides_the_used_part() -> None:
    last = slot(PaddingPolicy.KEEP, slice_of=lambda buffer, extent: buffer[-extent.rows :])
    assert filled(last, batch_of((6, 7))) == [0, 0, 6, 7]


def test_axis_none_has_no_padded_rows() -> None:
    with pytest.raises(ValueError, match="axis 'none' has no padded rows"):
        slot(PaddingPolicy.ZERO, axis="none")


@pytest.mark.parametrize("grouped", [True, False])
def test_copies_agree_with_and_without_the_grouped_call(
    grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:
        monkeypatch.delattr(torch, "_foreach_copy_")
    registry = decode_registry(EngineConfig(), "decode", Extent(4, 4), InputPool(), CPU)
    batch = batch_of((3, 5))
    registry.fill_from(batch, FillContext(Extent(2, 2), Extent(4, 4)))
    assert registry.view("seq_lens", Extent(4, 4)).tolist() == [3, 5, 1, 1]
    assert registry.view("out_cache_loc", Extent(4, 4)).tolist() == [*batch.slot_mapping, 0, 0]
    assert registry.view("req_pool_indices", Extent(2, 2)).tolist() == [*batch.req_pool_indices]


def test_copies_are_grouped_by_both_dtypes() -> None:
    registry = decode_registry(EngineConfig(), "decode", Extent(4, 4), InputPool(), CPU)
    context = FillContext(Extent(2, 2), Extent(4, 4))
    groups = registry.grouped(registry.pairs(batch_of((3, 5)), context))
    kinds = [{(t.dtype, s.dtype) for t, s in zip(*group, strict=True)} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(kinds) == 2


def test_pool_shares_what_has_the_same_name_size_dtype_and_device() -> None:
    pool = InputPool()
    first = pool.share("x", (4,), torch.int32, CPU, 0)
    assert pool.share("x", (2, 2), torch.int32, CPU, 0).data_ptr() == first.data_ptr()
    for other in [("y", (4,), torch.int32), ("x", (5,), torch.int32), ("x", (4,), torch.int64)]:
        assert pool.share(*other, CPU, 0).data_ptr() != first.data_ptr()


def test_prefill_registry_pads_tokens_but_not_rows() -> None:
    config = replace_modes(EngineConfig(), ("prefill",))
    registry = prefill_registry(config, "prefill", Extent(8, 16), InputPool(), CPU)
    assert registry.view("input_ids", Extent(2, 16)).shape == (16,)
    assert registry.view("seq_lens", Extent(2, 16)).shape == (2,)


def replace_modes(config: EngineConfig, modes: tuple[str, ...]) -> EngineConfig:
    import msgspec

    return msgspec.structs.replace(config, modes=modes, capture_tokens=(16,))


def test_fill_context_knows_whether_anything_is_padded() -> None:
    context = FillContext(Extent(2, 6), Extent(2, 8))
    assert context.is_padded
    assert not replace(context, raw=Extent(2, 8)).is_padded
