"""What steps leave of keys of groups: the truth that engines are held against."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from fuzzgraph.block_index import GROUP, HEADS, WIDTH, normed_keys, raw_rows
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS
from fuzzgraph.world import Batch


def config_of(*modes: str) -> EngineConfig:
    return EngineConfig(
        modes=modes, capture_bs=(1,), capture_tokens=(8,), page_size=64,  # type: ignore[arg-type]
        prefill_runner="breakable", max_context_len=128, index_group=4, index_topk=1,
    )  # fmt: skip


CONFIG = config_of("prefill")


def batch_of(config: EngineConfig, *rows: tuple[int, int]) -> Batch:
    """Requests with these numbers of cached and new tokens."""
    given = [
        BatchRow(request=at, seq_len=cached + new, new_tokens=new)
        for at, (cached, new) in enumerate(rows)
    ]
    step = ReplayStep(mode=config.modes[0], rows=tuple(given))
    return plan(validate(Case(schema_version=1, config=config, steps=(step,))))[0]


def test_each_token_of_a_whole_group_has_the_groups_key_and_others_have_their_own() -> None:
    batch = batch_of(CONFIG, (0, 3), (64, 6))
    found = expected(batch, CONFIG).outputs[GROUP_KEYS].numpy()
    first, second = batch.kv_tokens.row(0), batch.kv_tokens.row(1)
    for at, token in enumerate(first):
        own = raw_rows(np.array([token]), np.array([at]))[0, HEADS * WIDTH :]
        assert (found[at] == own).all()
    (key,) = normed_keys(second[None, 64:68], np.array([64]))
    assert (found[3:7] == key).all()
    for at in (68, 69):
        own = raw_rows(second[at : at + 1], np.array([at % GROUP]))[0, HEADS * WIDTH :]
        assert (found[3 + at - 64] == own).all()


def test_no_other_place_changes_and_a_draft_model_gets_what_attention_computed() -> None:
    outputs = expected(batch_of(CONFIG, (0, 5), (0, 1)), CONFIG).outputs
    assert outputs[GROUP_STRAYS].tolist() == [0, 0]
    assert torch.equal(outputs[HIDDEN_STREAMS], outputs["attention"])


def test_a_decode_leaves_its_groups_key_or_its_own() -> None:
    batch = batch_of(config_of("decode"), (7, 1), (8, 1))
    outputs = expected(batch, config_of("decode")).outputs
    found = outputs[GROUP_KEYS].numpy()
    (key,) = normed_keys(batch.kv_tokens.row(0)[None, 4:8], np.array([4]))
    own = raw_rows(batch.kv_tokens.row(1)[8:], np.array([0]))[0, HEADS * WIDTH :]
    assert (found == np.stack((key, own))).all()
    assert outputs[GROUP_STRAYS].tolist() == [0, 0]
    assert HIDDEN_STREAMS not in outputs


def test_drafts_that_do_not_stay_leave_nothing() -> None:
    config = msgspec.structs.replace(config_of("target_verify"), draft_tokens=4)
    # The second step goes on behind 13 tokens, so that one of the first one's drafts is rejected.
    steps = tuple(
        ReplayStep(mode="target_verify", rows=(BatchRow(request=0, seq_len=length, new_tokens=4),))
        for length in (14, 17)
    )
    batch = plan(validate(Case(schema_version=1, config=config, steps=steps)))[0]
    assert batch.stayed_lens.tolist() == [13]
    found = expected(batch, config).outputs[GROUP_KEYS].numpy()
    (key,) = normed_keys(batch.kv_tokens.row(0)[None, 8:12], np.array([8]))
    own = raw_rows(batch.kv_tokens.row(0)[12:13], np.array([0]))[0, HEADS * WIDTH :]
    assert (found == np.stack((key, key, own, np.zeros(WIDTH)))).all()


def test_a_model_that_selects_key_by_key_leaves_no_groups() -> None:
    config = msgspec.structs.replace(config_of("decode"), index_group=1)
    outputs = expected(batch_of(config, (6, 1)), config).outputs
    assert not {GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS} & set(outputs)
