"""Drafts in a tree as layers with a state see them: each as the last token of its path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.content import content_for
from fuzzgraph.layout import plan
from fuzzgraph.recurrent_layers.delta_rule import delta_outputs, delta_states
from fuzzgraph.recurrent_layers.draft_paths import by_path, children, kept_paths, kept_places
from fuzzgraph.world import Batch, IntArray

PARENTS = np.array([[-1, 0, 0, 1, 1]])


def verify(parents: IntArray = PARENTS) -> tuple[Batch, EngineConfig]:
    """One row with three tokens cached and five drafts in a tree."""
    config = EngineConfig(
        modes=("target_verify",), recurrent_state=True, draft_tokens=5, spec_topk=2
    )
    row = BatchRow(request=2, seq_len=8, new_tokens=5)
    case = validate(
        Case(
            schema_version=1, config=config, steps=(ReplayStep(mode="target_verify", rows=(row,)),)
        )
    )
    (batch,) = plan(case)
    depths = [0, 1, 1, 2, 2] if parents is PARENTS else [0, 1, 2, 3, 4]
    return replace(batch, tree_parents=parents, positions=3 + np.array(depths)), config


def test_a_path_has_what_was_cached_and_the_drafts_from_the_root_on() -> None:
    batch, _ = verify()
    cached, drafts = batch.kv_tokens.row(0)[:3].tolist(), batch.input_ids.tolist()
    found = by_path(batch)
    rows = [found.kv_tokens.row(row).tolist() for row in range(5)]
    assert rows == [
        [*cached, drafts[0]],
        [*cached, drafts[0], drafts[1]],
        [*cached, drafts[0], drafts[2]],
        [*cached, drafts[0], drafts[1], drafts[3]],
        [*cached, drafts[0], drafts[1], drafts[4]],
    ]
    assert found.token_rows.tolist() == [0, 1, 2, 3, 4]


def test_first_children_and_next_siblings_name_each_draft_once() -> None:
    first, sibling = children(verify()[0], 5)
    assert first.tolist() == [[1, 3, -1, -1, -1]]
    assert sibling.tolist() == [[-1, 2, -1, 4, -1]]


def test_what_stays_is_one_path_from_the_root() -> None:
    batch, _ = verify()  # step 0, request 2
    assert kept_paths(batch) == [[0, 2]]
    assert kept_places(batch).tolist() == [2]


def test_a_tree_without_branches_is_a_chain() -> None:
    chain = np.array([[-1, 0, 1, 2, 3]])
    batch, config = verify(chain)
    content = content_for(config)
    dtype = content.weights["embed"].dtype
    assert delta_outputs(content, by_path(batch), dtype).equal(delta_outputs(content, batch, dtype))


def test_siblings_go_on_from_one_state() -> None:
    batch, config = verify()
    content, paths = content_for(config), by_path(batch)
    lens = batch.positions + 1
    states = delta_states(content, paths, np.arange(5), lens)
    before = delta_states(content, paths, np.array([3, 4]), lens[[3, 4]] - 1)
    assert before[0].equal(before[1]) and before[0].equal(states[1])
    assert not states[3].equal(states[2])
