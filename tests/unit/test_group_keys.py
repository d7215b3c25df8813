"""What steps leave of keys of groups: the truth that engines are held against."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.block_index import GROUP, HEADS, WIDTH, block_scores, normed_keys, raw_rows
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS
from fuzzgraph.world import Batch, IntArray


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


def drafted(config: EngineConfig, *lens: int) -> tuple[Batch, EngineConfig]:
    """A step whose rows draft two tokens behind so many."""
    config = msgspec.structs.replace(config, spec_steps=2, draft_tokens=3)
    rows = tuple(BatchRow(request=at, seq_len=each, new_tokens=0) for at, each in enumerate(lens))
    step = ReplayStep(mode="draft", rows=rows)
    return plan(validate(Case(schema_version=1, config=config, steps=(step,))))[0], config


def test_drafts_of_one_branch_lie_behind_the_past_in_its_last_page() -> None:
    batch, _ = drafted(config_of("draft"), 6, 63)
    first, second = batch.kv_slots.row(0), batch.kv_slots.row(1)
    assert batch.slot_mapping[:3].tolist() == [first[-1] + 1, first[-1] + 2, second[-1] + 1]
    page = batch.slot_mapping[3] // 64
    assert batch.slot_mapping[3] % 64 == 0
    assert page not in batch.pages.values


def test_a_draft_leaves_the_key_of_a_group_that_it_completes_with_its_past() -> None:
    batch, config = drafted(config_of("draft"), 7, 8)
    outputs = expected(batch, config).outputs
    found, tokens = outputs[GROUP_KEYS].numpy(), queries_of(batch, config).tokens
    (key,) = normed_keys(np.append(batch.kv_tokens.row(0)[4:], tokens[0])[None], np.array([4]))
    own = raw_rows(tokens[1:], np.array([0, 0, 1]))[:, HEADS * WIDTH :]
    assert (found == np.vstack((key[None], own))).all()
    assert outputs[GROUP_STRAYS].tolist() == [0, 0]


def test_drafts_that_share_a_selection_leave_nothing() -> None:
    config = msgspec.structs.replace(config_of("draft"), shared_selection=True)
    outputs = expected(*drafted(config, 7)).outputs
    assert (outputs[GROUP_KEYS] == torch.zeros(2, WIDTH)).all()


def seen_at(config: EngineConfig, length: int) -> list[list[int]]:
    """Positions that each step of a draft sees, of a row of this length beside a longer one."""
    batch, config = drafted(config, length, 40)
    return [np.flatnonzero(row).tolist() for row in queries_of(batch, config).visible[:2]]


def best_group(tokens: IntArray, position: int, count: int) -> int:
    """Of the first `count` groups of these tokens, the one that the token there thinks most of."""
    firsts = np.arange(count) * GROUP
    keys = tokens[firsts[:, None] + np.arange(GROUP)]
    scores = block_scores(
        tokens[position : position + 1], np.array([position]), keys[None], firsts[None]
    )
    return int(scores.argmax())


def test_each_step_of_a_draft_selects_a_group_and_sees_what_lies_behind_the_last_one() -> None:
    config = config_of("draft")
    batch, drafts = drafted(config, 11, 40)
    tokens = np.append(batch.kv_tokens.row(0), queries_of(batch, drafts).tokens[:2])
    best = [best_group(tokens, 11, 3), best_group(tokens, 12, 3)]
    groups = [list(range(each * GROUP, each * GROUP + GROUP)) for each in best]
    assert seen_at(config, 11) == [groups[0], [*groups[1], 12]]


def test_steps_that_share_a_selection_see_that_of_the_last_token_before_them() -> None:
    config = msgspec.structs.replace(config_of("draft"), shared_selection=True)
    batch, _ = drafted(config, 14, 40)
    best = best_group(batch.kv_tokens.row(0), 13, 3)
    group = list(range(best * GROUP, best * GROUP + GROUP))
    assert seen_at(config, 14) == [[*group, 12, 13, 14], [*group, 12, 13, 14, 15]]


def test_a_selection_that_no_draft_can_share_is_refused() -> None:
    draft = msgspec.structs.replace(config_of("draft"), shared_selection=True)
    for changes in ({"index_group": 1}, {"modes": ("decode",)}):
        config = msgspec.structs.replace(draft, **changes)
        with pytest.raises(InvalidCase, match=r"config\.shared_selection=True needs"):
            validate(Case(schema_version=1, config=config, steps=()))


def test_a_model_that_selects_key_by_key_leaves_no_groups() -> None:
    config = msgspec.structs.replace(config_of("decode"), index_group=1)
    outputs = expected(batch_of(config, (6, 1)), config).outputs
    assert not {GROUP_KEYS, GROUP_STRAYS, HIDDEN_STREAMS} & set(outputs)
