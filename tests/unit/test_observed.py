"""What a session shows in its own order of rows, put into that of the batch."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.observed import in_terms_of
from fuzzgraph.fields import TOLD, Field, PaddingRule
from fuzzgraph.layout import plan
from fuzzgraph.observation import Observation
from fuzzgraph.world import Batch

FREE = PaddingRule("free")
FIELDS = (
    Field("seq_lens", "requests", "length", FREE),
    Field("positions", "tokens", "nothing", FREE),
    Field("qo_indptr", "indptr", "offset", FREE, repeats="new_lens"),
    Field("kv_indptr", "indptr", "offset", FREE, repeats="seq_lens"),
    Field("kv_indices", "indices", "slot", FREE),
    Field("page_table", "page_table", "page", FREE, whole_rows=True),
)
PAGE = 2
CONFIG = EngineConfig(page_size=PAGE)


def batch_of(mode: Mode = "prefill") -> Batch:
    """Three requests of 5, 2 and 3 tokens, of which 3, 1 and 2 are new."""
    new = (3, 1, 2) if mode == "prefill" else (1, 1, 1)
    rows = tuple(
        BatchRow(request=name, seq_len=length, new_tokens=count)
        for name, length, count in zip(range(3), (5, 2, 3), new, strict=True)
    )
    config = EngineConfig(modes=(mode,), capture_bs=(4,), capture_tokens=(8,), page_size=PAGE)
    case = Case(schema_version=1, config=config, steps=(ReplayStep(mode=mode, rows=rows),))
    return plan(case)[0]


def shown(batch: Batch) -> Observation:
    """A batch as an engine of four rows shows it: a padded row, padded tokens, old pages."""
    lens, new = batch.seq_lens, batch.new_lens
    pages = torch.full((4, 4), 77)
    for row in range(3):
        own = torch.from_numpy(batch.pages.row(row))
        pages[row, : len(own)] = own
    padded = 8 - batch.num_tokens
    return Observation(
        raw_bs=3,
        padded_bs=4,
        num_tokens=batch.num_tokens,
        padded_tokens=8,
        outputs={"attention": torch.arange(8.0)[:, None], "logits": torch.arange(4.0)},
        metadata={
            "seq_lens": torch.from_numpy(np.append(lens, 1)),
            "positions": torch.from_numpy(np.append(batch.positions, [0] * padded)),
            "qo_indptr": torch.from_numpy(np.append(0, np.cumsum([*new, 0]))).int(),
            "kv_indptr": torch.from_numpy(np.append(0, np.cumsum([*lens, 0]))).int(),
            "kv_indices": torch.from_numpy(batch.kv_slots.values),
            "page_table": pages,
        },
    )


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_axis_comes_out_in_the_order_of_the_batch(order: tuple[int, ...]) -> None:
    """The engine's row of batch row i is `order[i]`."""
    batch = batch_of()
    theirs = batch.with_rows(np.argsort(np.array(order)))
    here, there = shown(batch), shown(theirs)
    for name in there.outputs:  # a number for each live token and row, in the batch's order
        by = batch.token_rows if name == "attention" else np.arange(3)
        live = torch.from_numpy(theirs.token_rows if name == "attention" else np.arange(3))
        marks = np.argsort(np.array(order))[live.numpy()].astype(float)
        there.outputs[name][: len(by)] = torch.from_numpy(marks).view(
            len(by), *here.outputs[name].shape[1:]
        )
        here.outputs[name][: len(by)] = torch.from_numpy(by.astype(float)).view_as(
            there.outputs[name][: len(by)]
        )
    there.order = order
    wanted = in_terms_of(batch, here, FIELDS, CONFIG)
    got = in_terms_of(batch, there, FIELDS, CONFIG)
    for kind in ("metadata", "outputs"):
        for name, value in getattr(wanted, kind).items():
            assert torch.equal(getattr(got, kind)[name], value), name


def test_a_batch_in_another_order_is_the_same_batch() -> None:
    batch = batch_of()
    there = batch.with_rows(np.array([2, 0, 1]))
    assert there.requests.tolist() == [2, 0, 1]
    assert there.token_rows.tolist() == [0, 0, 1, 1, 1, 2]
    assert there.kv_slots.row(0).tolist() == batch.kv_slots.row(2).tolist()
    back = there.with_rows(np.array([1, 2, 0]))
    for name in ("positions", "input_ids", "slot_mapping", "token_rows", "seq_lens"):
        assert getattr(back, name).tolist() == getattr(batch, name).tolist()


def test_tokens_that_are_left_of_a_padding_may_be_as_many_as_its_rows() -> None:
    batch = batch_of()  # of 3, 1 and 2 tokens
    seen = Observation(
        raw_bs=3, padded_bs=6, num_tokens=6, padded_tokens=18, shown_tokens=6,
        outputs={"attention": torch.arange(6)}, metadata={}, order=[2, 0, 1],
    )  # fmt: skip
    attention = in_terms_of(batch, seen, FIELDS, CONFIG).outputs["attention"]
    assert attention.tolist() == [3, 4, 5, 0, 1, 2]


def test_behind_the_pages_of_a_live_row_there_is_nothing() -> None:
    batch = batch_of("decode")
    table = in_terms_of(batch, shown(batch), FIELDS, CONFIG).metadata["page_table"]
    assert table[0, 3] == 0 and table[1, 1:].tolist() == [0, 0, 0]
    assert table[3].tolist() == [77] * 4  # of a padded row all is judged


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1), (1, 2, 3)])
def test_an_order_that_is_none_is_the_targets_fault(order: tuple[int, ...]) -> None:
    batch = batch_of()
    seen = shown(batch)
    seen.order = order
    with pytest.raises(TargetFailed, match="the batch has 3 rows"):
        in_terms_of(batch, seen, FIELDS, CONFIG)


@pytest.mark.parametrize("told", [{}, {"lens": [0, 1, 0]}])
def test_what_a_target_owes_of_its_own_word_is_named(told: dict[str, list[int]]) -> None:
    batch = batch_of()
    seen = shown(batch)
    seen.metadata["is_new"], seen.told = torch.zeros(4), told
    owed = Field("is_new", "requests", "nothing", FREE, repeats=TOLD)
    with pytest.raises(TargetFailed, match="field 'is_new' repeats 'told', and .* has only"):
        in_terms_of(batch, seen, (*FIELDS, owed), CONFIG)
    seen.told = {"is_new": [0, 1, 0]}
    assert in_terms_of(batch, seen, (*FIELDS, owed), CONFIG) is seen


def test_outputs_of_a_draft_have_a_row_for_each_step_of_each_row() -> None:
    rows = tuple(BatchRow(request=name, seq_len=3, new_tokens=0) for name in range(2))
    config = EngineConfig(modes=("draft",), capture_bs=(4,), spec_steps=2)
    steps = (ReplayStep(mode="draft", rows=rows),)
    (batch,) = plan(Case(schema_version=1, config=config, steps=steps))
    seen = Observation(
        raw_bs=2, padded_bs=4, num_tokens=4, padded_tokens=8, shown_tokens=2,
        outputs={"attention": torch.arange(4)}, metadata={}, order=[1, 0],
    )  # fmt: skip
    attention = in_terms_of(batch, seen, FIELDS, config).outputs["attention"]
    assert attention.tolist() == [2, 3, 0, 1]


def test_the_page_table_of_a_graph_that_is_too_small_is_shown_as_it_is() -> None:
    batch = batch_of("decode")
    seen = Observation(
        raw_bs=3, padded_bs=2, num_tokens=3, padded_tokens=2,
        metadata={"page_table": torch.full((2, 4), 77)},
    )  # fmt: skip
    table = in_terms_of(batch, seen, FIELDS, CONFIG).metadata["page_table"]
    assert table.tolist() == [[77, 77, 77, 0], [77, 0, 0, 0]]
