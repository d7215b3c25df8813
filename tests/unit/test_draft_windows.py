"""Windows of drafts: what a draft sees of its past, what of it is listed, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.reference import drafts_see, live_truth
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.world import Batch


def drafts(*lens: int, **settings: Any) -> tuple[Batch, EngineConfig]:
    """A step of mode draft whose rows have so many tokens behind them."""
    config = EngineConfig(modes=("draft",), spec_steps=2, max_context_len=16, **settings)
    rows = tuple(BatchRow(request=name, seq_len=each, new_tokens=0)
                 for name, each in enumerate(lens))  # fmt: skip
    case = Case(schema_version=1, config=config, steps=(ReplayStep(mode="draft", rows=rows),))
    (batch,) = plan(validate(case))
    return batch, config


@pytest.mark.parametrize(
    ("window", "sink", "seen"),
    [
        (0, 0, [0, 1, 2, 3, 4, 5]),
        (2, 0, [4, 5]),
        (2, 1, [0, 4, 5]),
        (4, 3, [0, 1, 2, 3, 4, 5]),
        (9, 0, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_draft_sees_the_last_tokens_and_the_first_ones(
    window: int, sink: int, seen: list[int]
) -> None:
    batch, config = drafts(6, 1, draft_window_size=window, draft_sink_size=sink)
    assert drafts_see(batch, config)[0].nonzero()[0].tolist() == seen
    assert drafts_see(batch, config)[1].nonzero()[0].tolist() == [0]


def test_the_window_stays_while_the_draft_goes_on() -> None:
    batch, config = drafts(6, draft_window_size=2)
    past = queries_of(batch, config).visible[:, :6]
    assert past.tolist() == [[False] * 4 + [True] * 2] * 2


def test_a_step_lists_what_it_sees_and_the_drafts_so_far() -> None:
    batch, config = drafts(6, 2, draft_window_size=3, draft_sink_size=1, spec_topk=2)
    second = Field("kv_indptr", "indptr", "nothing", PaddingRule("free"), repeats="draft_lens:1")
    truth = live_truth(second, batch, config)
    assert truth is not None
    assert truth.tolist() == [6, 6, 4, 4]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"draft_sink_size": 2}, "draft_sink_size"),
        ({"draft_window_size": 2, "sliding_window": 4}, "draft_window_size"),
        ({"draft_window_size": 2, "modes": ("decode",)}, "draft_window_size"),
    ],
)
def test_a_window_that_no_draft_can_have_is_refused(settings: dict[str, Any], named: str) -> None:
    config = EngineConfig(**{"modes": ("draft",), **settings})
    with pytest.raises(InvalidCase, match=f"config.{named}"):
        validate(Case(schema_version=1, config=config, steps=()))


def test_drafts_that_see_the_past_alone_list_it_at_each_step() -> None:
    batch, config = drafts(6, 2, draft_reach="past")
    assert queries_of(batch, config).visible[:, 6:].any() == np.False_
    second = Field("kv_indptr", "indptr", "nothing", PaddingRule("free"), repeats="draft_lens:1")
    truth = live_truth(second, batch, config)
    assert truth is not None
    assert truth.tolist() == [6, 2]
