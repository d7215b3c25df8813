"""What a step leaves for a compressor of keys: the truth that engines are held against."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.compressor_layer import (
    INDEX_STATES,
    STATES,
    STRAYS,
    compressor_outputs,
    kept_positions,
    promised_of_compressor,
)
from fuzzgraph.content import content_for
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected, yardstick
from fuzzgraph.world import Batch


def steps_of(kind: Any, *lengths: int, drafts: int = 4) -> tuple[tuple[Batch, ...], EngineConfig]:
    """Batches of one request whose row has these lengths, drafts included."""
    config = EngineConfig(
        modes=("target_verify",), capture_bs=(1,), page_size=16, max_context_len=200,
        kv_pool_pages=20, attention="mla", draft_tokens=drafts, kv_compression=kind,
    )  # fmt: skip
    steps = tuple(
        ReplayStep(
            mode="target_verify",
            rows=(BatchRow(request=0, seq_len=length, new_tokens=drafts),),
        )
        for length in lengths
    )
    return plan(validate(Case(schema_version=1, config=config, steps=steps))), config


@pytest.mark.parametrize(
    ("ratio", "length", "kept"),
    [
        (4, 3, [0, 1, 2]),
        (4, 9, [4, 5, 6, 7, 8]),
        (4, 8, [4, 5, 6, 7]),
        (128, 130, [128, 129]),
        (128, 128, []),
        (2, 9, [8]),
        (2, 8, []),
    ],
)
def test_later_steps_need_the_group_that_is_not_whole_and_of_small_ones_the_one_before(
    ratio: int, length: int, kept: list[int]
) -> None:
    assert kept_positions(length, ratio).tolist() == kept


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("none", ()),
        ("window", ()),
        ("c4", (STATES, INDEX_STATES, STRAYS)),
        ("c128", (STATES, STRAYS)),
        ("c2", (STATES, STRAYS)),
        ("c1", (STRAYS,)),
    ],
)
def test_only_layers_that_compress_show_what_they_leave(kind: Any, names: tuple[str, ...]) -> None:
    assert promised_of_compressor(EngineConfig(kv_compression=kind)) == names


def test_states_are_those_of_the_tokens_that_stay() -> None:
    (first, second), config = steps_of("c4", 10, 11)
    found = compressor_outputs(first, config)[STATES][0]
    width, content = config.head_dim, content_for(config)
    assert first.stayed_lens.tolist() == [7] == second.cached_lens.tolist()
    query = config.num_q_heads * width
    keys = content.weights["embed"][first.kv_tokens.row(0)[:7], query : query + width].double()
    assert torch.equal(found[:7, width : 2 * width], keys)
    assert torch.equal(found[:7, :width], keys + 1)
    assert not found[:, 2 * width :].any()
    assert not found[7:].any()


def test_what_is_left_is_part_of_the_truth_of_a_step_and_exact() -> None:
    (batch,), config = steps_of("c128", 140)
    assert {STATES, STRAYS} <= set(expected(batch, config).outputs)
    assert not {STATES, STRAYS} & set(yardstick(batch, config))
