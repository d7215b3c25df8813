"""Drafts of several branches: which tokens go on, with what, and what is handed out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.content import next_token
from fuzzgraph.draft_head import branch_logits, branch_marks
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.reference.draft_tree import draft_tree
from fuzzgraph.strategies import DEFAULT
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.world import Batch


def grown(*lengths: int, topk: int = 3, **settings: Any) -> tuple[Batch, EngineConfig]:
    """A draft of rows of these lengths."""
    given = {"draft_tokens": 4, "spec_steps": 2, "draft_branches": "chosen", **settings}
    config = EngineConfig(
        modes=("draft",), spec_topk=topk, max_context_len=32, kv_pool_pages=200, **given
    )
    rows = tuple(
        BatchRow(request=name, seq_len=length, new_tokens=0) for name, length in enumerate(lengths)
    )
    step = ReplayStep(mode="draft", rows=rows)
    return plan(validate(Case(schema_version=1, config=config, steps=(step,))))[0], config


def test_chosen_tokens_follow_the_branch_that_is_named() -> None:
    batch, config = grown(20, 9, 16)
    tree = draft_tree(batch, config)
    for step in range(2):
        for row in range(3):
            for place in range(3):
                parent = tree.tokens[step, row, tree.followed[step + 1, row, place]]
                children = next_token(np.full(3, parent), step, np.arange(3))
                assert tree.tokens[step + 1, row, place] in children


def test_branches_change_places_in_some_rows() -> None:
    batch, config = grown(*range(8, 16))
    followed = draft_tree(batch, config).followed[1:]
    assert (followed != np.arange(3)).any()
    assert (np.diff(np.sort(followed), axis=-1) == 0).any()  # a branch has two that go on


def test_tokens_are_handed_out_by_ascending_places_and_of_each_row() -> None:
    batch, config = grown(20, 9)
    tree = draft_tree(batch, config)
    assert tree.places.shape == (2, 3)
    assert (np.diff(tree.places) > 0).all()
    assert tree.parents.shape == (2, 3 + 1 + 3)
    assert tree.parents[:, :4].tolist() == [[-1, 0, 1, 2]] * 2


def test_the_best_first_token_is_always_handed_out() -> None:
    """Nothing that follows a token is worth more than the token."""
    batch, config = grown(*range(8, 16))
    tree = draft_tree(batch, config)
    best = tree.first_parts.argmax(1)
    assert all(place in places for place, places in zip(best, tree.places, strict=True))


def test_single_precision_chooses_the_same() -> None:
    batch, config = grown(*range(8, 16), topk=4)
    tree = draft_tree(batch, config)
    tokens = torch.from_numpy(tree.tokens[0])
    scores = torch.from_numpy(tree.first_parts).float()
    for step in range(2):
        logits = branch_logits(tokens.flatten(), step, 4).float().view(8, 4, 4)
        values, places = (scores[..., None] * logits.softmax(-1)).flatten(1).topk(4)
        children = torch.stack([next_token(tokens, step, child) for child in range(4)], -1)
        tokens, scores = children.flatten(1).gather(1, places), values
        assert tokens.equal(torch.from_numpy(tree.tokens[step + 1]))


def test_marks_are_exact_in_every_dtype_and_the_first_one_is_the_largest() -> None:
    tokens = torch.arange(32)
    exact = branch_marks(tokens, 2, 4, torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert branch_marks(tokens, 2, 4, dtype).double().equal(exact)
    assert exact.argmax(1).equal(next_token(tokens, 2, 0))
    assert (exact > 0).sum(1).eq(4).all()


def test_a_place_attends_to_what_was_chosen_for_it_before() -> None:
    """Attention of places whose tokens are the same as apart is the same."""
    batch, config = grown(20, 9)
    outputs = expected(batch, config).outputs
    _, apart = grown(20, 9, draft_branches="apart")
    plain = expected(batch, apart).outputs["attention"].unflatten(0, (2, 3, 2))
    chosen = outputs["attention"].unflatten(0, (2, 3, 2))
    assert chosen[:, :, 0].equal(plain[:, :, 0])
    assert not chosen[:, :, 1].equal(plain[:, :, 1])


@pytest.mark.parametrize("beside", [{"spec_topk": 1}, {"page_size": 2}, {"modes": ("decode",)}])
def test_branches_are_chosen_where_there_are_some_on_pages_of_one_token(
    beside: dict[str, Any],
) -> None:
    config = EngineConfig(
        **{"modes": ("draft",), "spec_topk": 2, "draft_branches": "chosen", **beside}
    )
    with pytest.raises(InvalidCase, match="draft_branches"):
        validate(Case(schema_version=1, config=config, steps=()))


def test_all_drafts_of_branches_on_such_pages_are_chosen_where_a_target_does() -> None:
    can = Capabilities(modes=("draft",), draft_branches=("apart", "chosen"), max_spec_topk=4)
    found = [swarm_config(can, DEFAULT, number) for number in range(60)]
    several = [config.spec_topk > 1 and config.page_size == 1 for config in found]
    assert [config.draft_branches == "chosen" for config in found] == several
    assert any(several)
