"""What a server hands the wrappers: live rows as they are, padded rows by the fill value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.layout import plan
from fuzzgraph.targets.flashinfer.caller import captured_batch, padded_batch
from fuzzgraph.world import RESERVED_PAGE, Batch


def _batch(mode: str, new_tokens: int, **settings: object) -> tuple[Batch, EngineConfig]:
    rows = tuple(BatchRow(request=at, seq_len=length, new_tokens=new_tokens)
                 for at, length in enumerate((5, 4)))  # fmt: skip
    config = EngineConfig(modes=(mode,), page_size=2, kv_pool_pages=64, **settings)  # type: ignore[arg-type]
    steps = (ReplayStep(mode=mode, rows=rows),)  # type: ignore[arg-type]
    case = validate(Case(schema_version=1, config=config, steps=steps))
    return plan(case)[0], config


def test_live_rows_have_their_pages_and_the_tokens_of_the_last_one() -> None:
    batch, config = _batch("decode", 1)
    given = padded_batch(batch, config, 2)
    assert given.kv_indptr.tolist() == [0, 3, 5] and given.last_page_len.tolist() == [1, 2]
    pages = np.concatenate([batch.pages.row(0)[:3], batch.pages.row(1)[:2]])
    assert given.kv_indices.tolist() == pages.tolist()
    assert {each.dtype for each in (given.kv_indptr, given.kv_indices, given.kv_lens)} == {
        torch.int32
    }


@pytest.mark.parametrize(
    ("mode", "fill", "lens", "queries"),
    [("decode", 0, 0, 1), ("decode", 1, 1, 1), ("target_verify", 0, 0, 0),
     ("target_verify", 1, 3, 2)],
)  # fmt: skip
def test_a_padded_row_has_what_the_fill_value_says(
    mode: str, fill: int, lens: int, queries: int
) -> None:
    batch, config = _batch(mode, 2 if mode == "target_verify" else 1, seq_len_fill_value=fill)
    given = padded_batch(batch, config, 3)
    assert int(given.kv_lens[2]) == lens
    assert int(given.qo_indptr[3] - given.qo_indptr[2]) == queries
    padding = given.kv_indices[int(given.kv_indptr[2]) :].tolist()
    assert padding == [RESERVED_PAGE] * -(-lens // 2)


def test_a_graph_is_captured_with_all_its_queries_whatever_padded_rows_get() -> None:
    config = EngineConfig(modes=("target_verify",), draft_tokens=3, seq_len_fill_value=0)
    assert captured_batch(config, 2).qo_indptr.tolist() == [0, 3, 6]


def test_a_draft_sees_the_past_and_what_it_follows() -> None:
    batch, config = _batch("target_verify", 3, draft_tokens=3, spec_topk=2, spec_steps=1)
    assert batch.tree_parents is not None
    mask = padded_batch(batch, config, 2).mask
    assert mask is not None
    first = mask[:15].view(3, 5)
    parents = batch.tree_parents[0].tolist()
    assert first[:, :2].all() and first[:, 2:].diagonal().all()
    for draft, parent in enumerate(parents):
        seen = {draft} | ({parent} if parent >= 0 else set())
        while parent >= 0:
            seen.add(parent)
            parent = parents[parent]
        assert set(first[draft, 2:].nonzero().flatten().tolist()) == seen
