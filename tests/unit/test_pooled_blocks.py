"""Blocks that are selected by pooled keys: which keys are pooled, what queries think of blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.pooled_blocks import Level, levels
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.reference.pooled_keys import (
    completed,
    pooled_outputs,
    pooled_rows,
    scores_of_query,
    selected_keys,
)
from tests.targets.sglang.released import decode_case

SETTINGS: dict[str, Any] = {
    "pooled_block": 32, "index_topk": 4, "dense_len": 128, "max_context_len": 256,
    "num_q_heads": 32, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 32, "dtype": "bfloat16",
    "kv_pool_pages": 2000, "capture_bs": (4,),
}  # fmt: skip
BATCHES = [tuple(256 - first - 17 * row for row in range(4)) for first in range(0, 64, 4)]


def planned(*batches: tuple[int, ...]) -> tuple[EngineConfig, list[Any]]:
    case = decode_case(*batches, **SETTINGS)
    return case.config, list(plan(case))


def test_the_finer_level_has_keys_of_half_a_block_the_coarser_one_of_two() -> None:
    assert levels(EngineConfig(**SETTINGS)) == (Level(16, 8), Level(64, 32))


@pytest.mark.parametrize(("length", "count"), [(15, 0), (16, 1), (23, 1), (24, 2), (256, 31)])
def test_a_pooled_key_is_there_as_soon_as_all_of_its_keys_are(length: int, count: int) -> None:
    assert Level(16, 8).count(length) == count
    assert completed(length, Level(16, 8)) == (length % 8 == 0 and length >= 16)


def test_pooled_keys_are_means_that_no_dtype_rounds() -> None:
    tokens, places = torch.arange(250) % 32, torch.arange(250)
    for dtype in ("bfloat16", "float16"):
        config = EngineConfig(**{**SETTINGS, "dtype": dtype})
        keys = content_for(config).kv_planes(tokens, places)[0]
        assert keys.dtype == DTYPES[dtype]
        for level in levels(config):
            found = pooled_rows(keys, level)
            for at in range(len(found)):
                first = at * level.stride
                want = keys[first : first + level.size].double().sum(0) / level.size
                assert torch.equal(found[at], want)


def test_no_two_blocks_of_a_query_are_equally_good() -> None:
    config, batches = planned(*BATCHES)
    orders = set()
    for batch in batches:
        found = queries_of(batch, config)
        for at in range(len(found.tokens)):
            for scores in scores_of_query(found, at, config):
                finite = np.sort(scores[np.isfinite(scores)])
                # bfloat16 keeps seven bits behind the leading one.
                assert (np.diff(finite) > finite[1:] * 2.0**-7).all()
                orders.add(tuple(np.argsort(scores)))
    assert len(orders) > 40


def test_a_row_sees_its_first_block_its_newest_two_and_as_many_others_as_are_left() -> None:
    config, (batch,) = planned((250, 129, 128, 127))
    seen = selected_keys(batch, config)
    assert seen.shape[:2] == (4, 2)
    assert seen.sum(2).tolist() == [[122, 122], [97, 97], [128, 128], [127, 127]]
    assert seen[0, :, :32].all()
    assert seen[0, :, 192:250].all()
    assert not seen[0, :, 250:].any()


def test_heads_select_other_blocks() -> None:
    config, batches = planned(*BATCHES)
    seen = [selected_keys(batch, config) for batch in batches]
    assert any((each[:, 0] != each[:, 1]).any() for each in seen)


def test_no_key_outweighs_a_block() -> None:
    config = EngineConfig(**SETTINGS)
    content = content_for(config)
    q, _, _ = content.embed_qkv(torch.arange(32), torch.arange(32) + 200)
    keys = content.kv_planes(torch.arange(224) % 32, torch.arange(224))[0].double()
    logits = torch.einsum("thgd,nhd->thgn", q.double().view(32, 2, 16, 32), keys) / 32**0.5
    assert (logits.amax(-1) - logits.mean(-1)).max() < math.log(60)


def test_a_step_leaves_the_keys_that_it_completes() -> None:
    config, (batch,) = planned((128, 129, 136, 15))
    left = pooled_outputs(batch, config)["pooled_keys"].view(4, 2, -1)
    assert [[bool(each.any()) for each in row] for row in left] == [
        [True, True], [False, False], [True, False], [False, False],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"pooled_block": 24}, "power of two"),
        ({"index_topk": 2}, "3 blocks"),
        ({"dense_len": 63}, "two blocks"),
        ({"dense_len": 257}, "256 at most"),
        ({"max_context_len": 257}, "8 at most"),
        ({"index_topk": 8, "max_context_len": 255}, "8 blocks"),
        ({"head_dim": 64}, "must be 32"),
        ({"swa_window": 4}, "swa_window"),
        ({"pooled_block": 0}, "needs pooled_block"),
    ],
)
def test_other_configs_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidCase, match=why):
        decode_case((8,), **{**SETTINGS, **changed})
