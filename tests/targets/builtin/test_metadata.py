"""Attention metadata of the built-in engine, each buffer against a plain computation."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.case import EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.observation import Observation
from fuzzgraph.targets.builtin import Components
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.builder import BuilderComponents
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices
from fuzzgraph.targets.builtin.metadata.work_plan import WorkPlan
from fuzzgraph.targets.builtin.shape import Extent, smallest_fitting
from fuzzgraph.targets.builtin.trees import ancestors
from fuzzgraph.world import Batch
from tests.targets.builtin.engine import Bench, case_of, rows

CPU = torch.device("cpu")
BASE = EngineConfig(capture_bs=(1, 2, 4), max_context_len=40, page_size=4)


def replayed(config: EngineConfig, *steps: ReplayStep) -> tuple[Batch, Observation]:
    """The last step's batch and what its replay used."""
    found = list(Bench(config).run(case_of(config, *steps)))
    return found[-1]


def decode(*lens: int) -> ReplayStep:
    return ReplayStep(rows=rows(lens))


@pytest.mark.parametrize("fill", [0, 1])
def test_kv_indices_list_each_row_and_the_reserved_slot(fill: int) -> None:
    config = msgspec.structs.replace(BASE, seq_len_fill_value=fill)
    batch, seen = replayed(config, decode(9, 12, 3, 20), decode(10, 13, 4))
    lens = [10, 13, 4, fill]
    assert seen.metadata["kv_indptr"].tolist() == list(accumulate(lens, initial=0))
    assert seen.metadata["kv_indices"].tolist() == [*batch.kv_slots.values, *[0] * fill]


def test_kv_indices_list_the_window_only() -> None:
    config = msgspec.structs.replace(BASE, sliding_window=5)
    batch, seen = replayed(config, decode(9, 3))
    assert seen.metadata["kv_lens"].tolist() == [6, 3]
    wanted = [*batch.kv_slots.row(0)[-6:], *batch.kv_slots.row(1)]
    assert seen.metadata["kv_indices"].tolist() == wanted


def test_page_table_holds_pages_and_nothing_beyond_them() -> None:
    config = msgspec.structs.replace(BASE, page_map="page_table")
    batch, seen = replayed(config, decode(9, 12, 3, 20), decode(10, 13, 4))
    for row, length in enumerate((10, 13, 4)):
        pages = [*batch.pages.row(row)[: -(-length // 4)]]
        assert seen.metadata["page_table"][row].tolist() == pages + [0] * (10 - len(pages))
    assert seen.metadata["page_table"][3].tolist() == [0] * 10
    assert seen.metadata["kv_last_page_len"].tolist() == [2, 1, 4, 1]


def test_verify_mask_shows_the_prefix_and_the_ancestors() -> None:
    config = msgspec.structs.replace(BASE, modes=("target_verify",), draft_tokens=3, spec_topk=2)
    step = ReplayStep(mode="target_verify", rows=rows((9, 12), "target_verify", draft_tokens=3))
    batch, seen = replayed(config, step)
    lines = ancestors(batch.tree_parents)
    assert lines is not None
    wanted: list[int] = []
    for row, length in enumerate((9, 12)):
        for token in range(3):
            wanted += [1] * (length - 3) + lines[row, token].tolist()
    assert seen.metadata["mask_indptr"].tolist() == [0, 27, 63]
    assert seen.metadata["custom_mask"].tolist() == wanted


def test_draft_steps_list_the_prefix_and_their_own_branch() -> None:
    config = msgspec.structs.replace(BASE, modes=("draft",), spec_topk=2, spec_steps=3)
    step = ReplayStep(mode="draft", rows=rows((9, 12, 5), "draft"))
    batch, seen = replayed(config, step)
    own = batch.slot_mapping.reshape(3, 2, 3)
    for number in range(3):
        wanted: list[int] = []
        for row in range(3):
            for branch in range(2):
                wanted += [*batch.kv_slots.row(row), *own[row, branch, : number + 1]]
        wanted += [0] * 2 * (2 + number)  # both branches of the padded row
        assert seen.metadata[f"kv_indices@{number}"].tolist() == wanted


def test_accept_lengths_become_query_offsets() -> None:
    config = msgspec.structs.replace(BASE, modes=("draft_extend",), draft_tokens=3)
    step = ReplayStep(mode="draft_extend", rows=rows((9, 12, 5), "draft_extend", (0, 3, 1)))
    _, seen = replayed(config, step)
    assert seen.metadata["qo_indptr"].tolist() == [0, 0, 3, 4, 5]


def test_plan_marks_items_beyond_the_last_chunk_as_invalid() -> None:
    work = WorkPlan(4, 3, 12, CPU)
    view = work.view(Extent(3, 3), torch.tensor([9, 0, 4], dtype=torch.int32), None)
    work.write(view)
    assert view.plan.merge_indptr.tolist() == [0, 3, 3, 4]
    assert view.plan.item_tokens[:4].tolist() == [0, 0, 0, 2]
    assert view.plan.item_chunks[:4].tolist() == [0, 1, 2, 0]
    assert view.plan.valid.tolist() == [1] * 4 + [0] * 5


def test_ancestors_end_at_the_window() -> None:
    chain = np.array([[-1, 0, 1]])
    seen = ancestors(chain, window=1)
    assert seen is not None
    assert seen.tolist() == [[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]


class PageSizedIndices(KvIndices):
    """Room for one index per page, written one per token."""

    def indices_capacity(self) -> int:
        return super().indices_capacity() // 4


def test_write_past_a_buffer_lands_in_its_red_zone() -> None:
    components = replace(
        Components(), builder_components=replace(BuilderComponents(), kv_indices=PageSizedIndices)
    )
    bench = Bench(BASE, components)
    for batch in plan(case_of(BASE, decode(30, 31, 32, 33))):
        bench.replay(batch)
    bench.memory.name_regions(bench.session.roots)
    hits = bench.memory.zone_hits("prepare")
    assert [(hit.region, hit.side, hit.elements) for hit in hits] == [
        ("decode.kv_indices", "after", 30 + 31 + 32 + 33 - 40)
    ]


def test_healthy_buffers_hold_every_row_at_full_length() -> None:
    bench = Bench(BASE)
    bench.check(case_of(BASE, decode(40, 40, 40, 40)))


@pytest.mark.parametrize(
    ("rank", "live"), [(0, 3), (1, 2), (2, 0)], ids=["full", "part of a share", "none"]
)
def test_local_tokens_are_the_ranks_own_share(rank: int, live: int) -> None:
    config = msgspec.structs.replace(BASE, attn_tp_size=3, attn_tp_rank=rank)
    local = LocalTokens(config)
    assert local.live(5, 8) == live
    assert local.at_capture(8) == [3, 3, 2][rank]


@pytest.mark.parametrize(("size", "padded"), [(1, 2), (2, 2), (3, 6), (7, None)])
def test_smallest_captured_size_that_fits_is_chosen(size: int, padded: int | None) -> None:
    assert smallest_fitting((2, 6), size) == padded


def test_addresses_and_capture_values_are_those_of_the_capture() -> None:
    config = msgspec.structs.replace(BASE, attn_tp_size=2, attn_tp_rank=1, max_encoder_len=3)
    bench = Bench(config)
    batches = plan(case_of(config, decode(9, 12, 3), decode(10)))
    for batch, live_on_rank_1 in zip(batches, (2, 0), strict=True):
        bench.replay(batch)
        assert bench.session.captured_addresses()
        for name, (tensor, address) in bench.session.captured_addresses().items():
            assert tensor.data_ptr() == address, name
        values = bench.session.capture_values(batch)
        seen = {name: value.unique().item() for name, value in values.items()}
        assert seen == {"num_token_non_padded": live_on_rank_1, "seq_lens": 1, "encoder_lens": 3}


def test_every_field_that_is_seen_is_declared() -> None:
    for mode in ("decode", "target_verify", "draft_extend", "draft", "prefill"):
        config = msgspec.structs.replace(
            BASE, modes=(mode,), capture_tokens=(8,), split_kv=4, sliding_window=3,
            max_encoder_len=2, attn_tp_size=2,
        )  # fmt: skip
        bench = Bench(config)
        declared = {field.name for field in bench.session.fields}
        step = ReplayStep(mode=mode, rows=rows((9, 12), mode))
        for _, seen in bench.run(case_of(config, step)):
            assert {*seen.metadata} <= declared
