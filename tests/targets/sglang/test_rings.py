"""Rings beside recurrent states on released sglang: decodes of gated delta nets and of KDA."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST, decodes, found, step, verifies, verify
from tests.targets.sglang.released import Workers, generated

GDN, KDA = "sglang-gdn", "sglang-kda"
GDN_VERIFY, KDA_VERIFY = "sglang-gdn-verify", "sglang-kda-verify"
OLDEST = "0.5.15"

# Rings are filled and emptied, a graph is padded, a request leaves and others take its slot: number
# 2 by the request pool, number 3 from a prefix cache. Rows change places.
FILLED = (
    step((0, 5), (1, 16), (2, 30)),
    step((0, 6), (1, 17), (2, 31)),
    step((1, 18), (0, 7)),
    step((0, 8), (1, 19), (2, 32)),
    step((3, 9), (0, 9), (4, 3), finish=(1, 2)),
    step((0, 10), (3, 10), (4, 4)),
)


def rings(**settings: Any) -> Case:
    return decodes(*FILLED, **{"state_ring_len": 3, **settings})


def eagerly(number: int, case: Case) -> Case:
    """The case with one step that takes no graph."""
    steps = list(case.steps)
    steps[number] = msgspec.structs.replace(steps[number], via="eager")
    return msgspec.structs.replace(case, steps=tuple(steps))


_verify = partial(verify, new=2)
# All drafts stay, then none; a ring is emptied behind five tokens, and goes on in its middle. Both
# graphs are full: what they leave of padded rows has a test elsewhere.
CHECKED = (
    _verify((0, 8), (1, 19)),
    _verify((0, 10), (1, 20)),
    _verify((1, 22), (0, 12)),
    _verify((0, 13), (1, 24)),
    _verify((0, 15), (2, 7), finish=(1,)),
    _verify((0, 17), (2, 9)),
)


def checked(**settings: Any) -> Case:
    given = {"capture_bs": (2,), "draft_tokens": 2, "state_ring_len": 8}
    return verifies(*CHECKED, **{**given, **settings})


FORCED = rings(state_flush_interval=4, state_ring_len=4)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "target", "settings"),
    [
        (NEWEST, GDN, {"state_ring_len": 1}),
        (NEWEST, GDN, {"state_ring_len": 4, "state_flush_interval": 4, "dtype": "float16"}),
        (NEWEST, KDA, {"state_ring_len": 2}),
        (OLDEST, GDN, {"state_flush_interval": 4}),
        (OLDEST, KDA, {}),
    ],
)
def test_rings_follow_their_requests(
    workers: Workers, version: str, target: str, settings: dict[str, Any]
) -> None:
    assert found(workers, version, rings(**settings), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "target", "settings"),
    [
        (NEWEST, GDN_VERIFY, {}),
        (NEWEST, GDN_VERIFY, {"dtype": "float16", "state_track_interval": 16}),
        (NEWEST, KDA_VERIFY, {"state_ring_len": 4}),
        ("0.5.17", GDN_VERIFY, {}),
        ("0.5.17", KDA_VERIFY, {}),
        ("0.5.20", GDN_VERIFY, {}),
    ],
)
def test_rings_of_verifies_hold_what_stays(
    workers: Workers, version: str, target: str, settings: dict[str, Any]
) -> None:
    assert found(workers, version, checked(**settings), target) == set()


def test_a_fifth_of_verifies_commit_rings_where_no_prefix_cache_keeps_states() -> None:
    """What they call is handed nothing to keep: a survivor of reports/mutants/across-fifth.toml."""
    drawn = generated(KDA_VERIFY, lambda _: True, blocks=8, each=10)
    alone = [case for case in drawn if _ring_alone(case.config)]
    assert len(alone) >= len(drawn) // 5


def _ring_alone(config: EngineConfig) -> bool:
    return config.state_ring_len > 0 and not config.state_track_interval


@pytest.mark.sglang
@pytest.mark.slow
def test_a_graph_goes_on_from_the_ring_of_a_step_without_one(workers: Workers) -> None:
    assert found(workers, NEWEST, eagerly(2, rings()), KDA) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_rings_says_so(workers: Workers) -> None:
    assert "has no rings beside states" in workers.skipped("0.5.13", rings(), GDN)


def test_only_delta_rules_have_rings() -> None:
    config = EngineConfig(recurrent_state=True, state_ring_len=2)
    for name in ("sglang-mamba", "sglang-lightning"):
        assert "state_ring_len=2" in str(open_target(name).unsupported(config))
    forced = msgspec.structs.replace(config, state_flush_interval=4)
    assert "state_flush_interval=4" in str(open_target(KDA).unsupported(forced))
    assert open_target(GDN).unsupported(forced) is None


PLANTED = [
    ("cursor_stays", rings(), ("computes", "replayssm_write_pos")),
    ("cursor_of_the_capture", rings(), ("computes", "gated_delta")),
    ("cursor_behind_the_step", rings(), ("computes", "channel_delta")),
    ("ring_never_emptied", rings(), ("computes", "replayssm_write_pos")),
    ("flush_a_step_early", rings(), ("computes", "replayssm_write_pos")),
    ("forced_by_nobody", FORCED, ("metadata", "replayssm_force_flush")),
    ("forced_and_not_counted", FORCED, ("computes", "replayssm_write_pos")),
    ("padded_rows_advance", rings(), ("writes", "replayssm_write_pos")),
    ("cursors_swapped", rings(), ("computes", "replayssm_write_pos")),
    ("cursors_by_row", rings(), ("computes", "replayssm_write_pos")),
    ("eager_cursor_stays", eagerly(2, rings()), ("computes", "replayssm_write_pos")),
    ("slot_keeps_its_ring", rings(), ("computes", "gated_delta")),
    ("copy_keeps_its_ring", rings(), ("computes", "channel_delta")),
    ("copy_resets_its_source", rings(), ("computes", "gated_delta")),
    ("writes_each_state", rings(), ("computes", "temporal")),
    ("ring_of_one_cursor", rings(), ("computes", "channel_delta")),
    ("bonus_left_out", checked(), ("computes", "replayssm_spec_write_pos")),
    ("ring_of_the_slot", checked(), ("writes", "replayssm_spec_write_pos")),
    ("drafts_over_the_past", checked(), ("computes", "gated_delta")),
    ("history_left_out", checked(), ("computes", "replayssm_d")),
    ("row_keeps_its_ring", checked(), ("computes", "gated_delta")),
    ("room_for_one", checked(), ("computes", "replayssm_spec_write_pos")),
    ("kda_bonus_left_out", checked(state_ring_len=4), ("computes", "temporal")),
    ("kda_stride_of_kept_states", checked(state_ring_len=4), ("survives", "")),
]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("planted", "of", "named"), PLANTED)
def test_a_planted_bug_of_a_ring_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"tests.targets.sglang.ring_mutants:{planted}")
