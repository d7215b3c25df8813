"""Layers with LoRA adapters beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, Via, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import found
from tests.targets.sglang.released import Workers

NEWEST = "0.5.23"
TARGETS = ("sglang-lora", "sglang-lora-chunked")
V2 = "sglang-lora-v2"
VERIFIES = tuple(f"{target}-verify" for target in TARGETS)


def _step(*rows: tuple[int, int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    """Rows of (request, length, adapter)."""
    made = [BatchRow(request=name, seq_len=length, adapter=own) for name, length, own in rows]
    return ReplayStep(rows=tuple(made), finish=finish)


def _verified(of: Case) -> Case:
    """The same rows, each with three drafts to verify."""
    config = msgspec.structs.replace(of.config, modes=("target_verify",), draft_tokens=3)
    steps = tuple(
        msgspec.structs.replace(
            step,
            mode="target_verify",
            rows=tuple(msgspec.structs.replace(row, new_tokens=3) for row in step.rows),
        )
        for step in of.steps
    )
    return validate(msgspec.structs.replace(of, config=config, steps=steps))


def _case(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (2, 4), "max_context_len": 16, "max_loras": 2, **settings}
    return validate(Case(schema_version=1, config=EngineConfig(**given), steps=steps))


# Two adapters of different ranks and a request without one; then one of them alone.
MIXED = _case(
    _step((0, 5, 1), (1, 6, 0), (2, 7, 2), (3, 8, 1)),
    _step((0, 6, 1), (1, 7, 0), (2, 8, 2), finish=(3,)),
    _step((1, 8, 0), finish=(0, 2)),
)
# An adapter takes the place of another: one batch may have one, and there are three.
REPLACED = _case(
    _step((0, 5, 1), (1, 6, 0)),
    _step((1, 7, 0), (2, 5, 2), finish=(0,)),
    _step((3, 4, 3), (1, 8, 0), finish=(2,)),
    max_loras=1,
)
# The last batch has a segment less, and the row that its tail names is a live one.
FEWER_SEGMENTS = _case(
    _step((0, 5, 1)),
    _step((1, 6, 2), (0, 6, 1), (2, 5, 0)),
    _step((1, 7, 2), (0, 7, 1), finish=(2,)),
    capture_bs=(4,),
)


# Graphs of one row, for which other kernels are planned than for several (triton_v2).
ALONE = _case(_step((0, 5, 1)), _step((1, 6, 2), finish=(0,)), capture_bs=(1, 4))


def _alone(*adapters: int, **settings: Any) -> Case:
    """One request a step, each with its adapter."""
    steps = [
        _step((index, 5, own), finish=(index - 1,) if index else ())
        for index, own in enumerate(adapters)
    ]
    return _case(*steps, capture_bs=(1,), **settings)


# Pools of two adapters, from which one leaves in the last step.
USED_AGAIN = _alone(1, 2, 1, 3)
FIRST_LEAVES = _alone(1, 2, 1, 3, lora_eviction="fifo")
COME_AGAIN = _alone(1, 2, 3, 1, 2, lora_eviction="fifo")
PINNED = _alone(1, 2, 3, 0, 4, pinned_loras=1)


def _embedded(of: Case) -> Case:
    """The same where some adapters have weights of embedding and head."""
    config = msgspec.structs.replace(of.config, adapted_embeddings=True)
    return validate(msgspec.structs.replace(of, config=config))


def _beside(*steps: tuple[ReplayStep, tuple[int, ...]], **settings: Any) -> Case:
    """Steps, each with the rows that other data-parallel ranks have."""
    made = [msgspec.structs.replace(step, other_ranks=others) for step, others in steps]
    return _case(*made, **{"dp_size": 2, **settings})


def _idle(*finish: int, via: Via = "graph") -> ReplayStep:
    return ReplayStep(mode="idle", finish=finish, via=via)


# This rank has more rows than the other, then fewer, then none.
BESIDE = _beside(
    (_step((0, 5, 1), (1, 6, 0), (2, 7, 2)), (2,)),
    (_step((0, 6, 1), (1, 7, 0), finish=(2,)), (4,)),
    (_idle(0, 1), (3,)),
    (_step((3, 5, 2)), (1,)),
)
# The same without graphs, the last because another rank has too many rows for them.
BESIDE_WITHOUT_A_GRAPH = _beside(
    (
        msgspec.structs.replace(_step((0, 5, 1), (1, 6, 0), (2, 7, 2)), via="eager"),
        (1,),
    ),
    (_idle(0, 1, 2, via="eager"), (3,)),
    (_step((3, 5, 2)), (7,)),
)
# Few rows of many ranks, which exchange them by a sum where no graph is taken.
AMONG_FOUR = _beside(
    (_step((0, 5, 1), (1, 6, 0)), (1, 0, 4)),
    (msgspec.structs.replace(_step((0, 6, 1), (1, 7, 0)), via="eager"), (8, 0, 1)),
    (_step((1, 8, 0), finish=(0,)), (0, 2, 1)),
    dp_size=4,
    dp_rank=2,
)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [USED_AGAIN, FIRST_LEAVES, COME_AGAIN, PINNED],
    ids=["used again", "first leaves", "come again", "pinned"],
)
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", NEWEST])
def test_the_adapter_leaves_that_the_policy_says(workers: Workers, version: str, of: Case) -> None:
    assert found(workers, version, of, TARGETS[0]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "of", [MIXED, REPLACED, FEWER_SEGMENTS, ALONE], ids=["mixed", "replaced", "fewer", "alone"]
)
@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.5.13", TARGETS[0]),
        ("0.5.14", TARGETS[1]),
        ("0.5.19", TARGETS[0]),
        ("0.5.21", TARGETS[1]),
        (NEWEST, TARGETS[0]),
        (NEWEST, TARGETS[1]),
        (NEWEST, V2),
    ],
)
def test_each_row_has_its_own_adapter(
    workers: Workers, version: str, target: str, of: Case
) -> None:
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGETS[1], V2])
def test_an_idle_step_without_a_graph_gives_nothing(workers: Workers, target: str) -> None:
    idle = ReplayStep(mode="idle", finish=(0,), via="eager")
    assert found(workers, NEWEST, _case(_step((0, 5, 1)), idle, _step((1, 6, 2))), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", [MIXED, REPLACED], ids=["mixed", "replaced"])
@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.5.14", VERIFIES[1]),
        ("0.5.19", VERIFIES[0]),
        (NEWEST, VERIFIES[0]),
        (NEWEST, VERIFIES[1]),
        (NEWEST, f"{V2}-verify"),
    ],
)
def test_each_draft_has_the_adapter_of_its_request(
    workers: Workers, version: str, target: str, of: Case
) -> None:
    assert found(workers, version, _verified(of), target) == set()


# Adapters of embedding and head, of neither, of both again.
TAKES_TURNS = _embedded(_alone(1, 2, 1, 0, max_loras=1))
TWO_EMBEDDINGS = _embedded(_case(_step((0, 5, 4), (1, 6, 1), (2, 7, 0), (3, 8, 1))))
# The second one is of the head alone.
HEAD_ALONE = _embedded(_alone(1, 3, max_loras=1))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [_embedded(MIXED), _embedded(REPLACED), TAKES_TURNS, TWO_EMBEDDINGS],
    ids=["mixed", "replaced", "turns", "two"],
)
@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.5.13", TARGETS[0]),
        (NEWEST, TARGETS[0]),
        (NEWEST, TARGETS[1]),
        (NEWEST, V2),
    ],
)
def test_each_token_has_the_embedding_and_the_head_of_its_adapter(
    workers: Workers, version: str, target: str, of: Case
) -> None:
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", [VERIFIES[0], f"{V2}-verify"])
def test_so_has_each_draft_with_them(workers: Workers, target: str) -> None:
    assert found(workers, NEWEST, _verified(_embedded(MIXED)), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", NEWEST])
def test_an_adapter_of_the_head_alone_has_the_embedding_of_the_one_before_it(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-lora-stale-embedding.md."""
    expected = {("computes", "lora"), ("history", "lora")}
    assert found(workers, version, HEAD_ALONE, TARGETS[0]) == expected


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "fails"), [("0.5.18", True), ("0.5.19", False)])
def test_a_verify_without_a_graph_fails_up_to_0_5_18(
    workers: Workers, version: str, fails: bool
) -> None:
    """sglang PR 34337."""
    above = _verified(_case(_step((0, 5, 1), (1, 6, 0)), capture_bs=(1,)))
    assert (("survives", "") in found(workers, version, above, VERIFIES[0])) is fails


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "lost"), [("0.5.9", True), ("0.5.13", True), ("0.5.14", False)]
)
def test_graphs_of_csgmv_go_through_one_segment_up_to_0_5_13(
    workers: Workers, version: str, lost: bool
) -> None:
    """sglang PR 28371."""
    assert (("computes", "lora") in found(workers, version, MIXED, TARGETS[1])) is lost


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "beyond"), [("0.5.9", True), ("0.5.10", False)])
def test_a_narrow_layer_is_written_past_its_end_in_0_5_9(
    workers: Workers, version: str, beyond: bool
) -> None:
    seen = found(workers, version, _case(_step((0, 5, 1)), capture_bs=(1,)), TARGETS[0])
    assert ("writes" in {clause for clause, _ in seen}) is beyond


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "max_loras must be 1 or more"),
        ({"max_loras": 1, "swa_window": 2}, "swa_window=2 is not driven"),
        ({"max_loras": 1, "attn_tp_size": 2}, "attn_tp_size=2 is not driven"),
    ],
)
def test_configs_that_the_target_does_not_have_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    assert said in str(open_target(TARGETS[0]).unsupported(EngineConfig(**settings)))


@pytest.mark.parametrize("target", [TARGETS[1], V2])
def test_only_kernels_of_triton_serve_data_parallel_ranks(target: str) -> None:
    said = open_target(target).unsupported(EngineConfig(max_loras=1, dp_size=2))
    assert said == "dp_size=2 is not driven"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_releases_whose_kernels_serve_no_data_parallel_ranks_do_not_run_them(
    workers: Workers, version: str
) -> None:
    assert workers.skipped(version, BESIDE, TARGETS[0]) == "dp_size=2 is not driven"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [BESIDE, BESIDE_WITHOUT_A_GRAPH, AMONG_FOUR],
    ids=["graph", "eager", "four"],
)
@pytest.mark.parametrize("version", ["0.5.21", NEWEST])
def test_each_token_has_its_adapter_wherever_it_is_computed(
    workers: Workers, version: str, of: Case
) -> None:
    assert found(workers, version, of, TARGETS[0]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", [BESIDE, AMONG_FOUR], ids=["two", "four"])
def test_so_it_has_where_graphs_gather_by_a_sum(workers: Workers, of: Case) -> None:
    summed = msgspec.structs.replace(of.config, all_reduce_kib=1 << 14)
    case = msgspec.structs.replace(of, config=summed)
    assert found(workers, NEWEST, case, TARGETS[0]) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_so_has_each_draft(workers: Workers) -> None:
    assert found(workers, NEWEST, _verified(BESIDE), VERIFIES[0]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("not_told_at_replay", BESIDE, ("metadata", "lora_ranks_of_tokens")),
        ("captured_without_a_graph", BESIDE, ("computes", "lora_of_ranks")),
        ("rows_of_this_rank", BESIDE, ("computes", "lora_of_ranks")),
        ("ranks_of_own_adapters", BESIDE, ("metadata", "lora_ranks_of_all")),
        ("own_adapters_alone", BESIDE, ("survives", "")),
        ("routed_beside_the_graph", BESIDE, ("computes", "lora_of_ranks")),
        ("old_embeddings", TAKES_TURNS, ("computes", "lora")),
        ("heads_weights_reversed", _embedded(MIXED), ("computes", "lora")),
        ("embedding_of_the_first_slot", TWO_EMBEDDINGS, ("computes", "lora")),
        ("one_block_of_columns", MIXED, ("computes", "lora")),
        ("one_block_of_columns_verify", _verified(MIXED), ("computes", "lora")),
        ("keeps_its_old_place", USED_AGAIN, ("metadata", "lora_pool")),
        ("newest_leaves", USED_AGAIN, ("metadata", "lora_pool")),
        ("only_new_ones_are_used", USED_AGAIN, ("metadata", "lora_pool")),
        ("remembers_who_left", COME_AGAIN, ("metadata", "lora_pool")),
        ("pinned_ones_leave", PINNED, ("metadata", "lora_pool")),
        ("base_leaves", USED_AGAIN, ("metadata", "lora_pool")),
        ("no_policy_is_asked", FIRST_LEAVES, ("metadata", "lora_pool")),
        ("reversed_rows", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("reversed_rows_chunked", MIXED, ("computes", "lora")),
        ("rank_of_a_neighbour", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("first_scales", REPLACED, ("computes", "lora")),
        ("slots_not_filled", REPLACED, ("computes", "lora")),
        ("stale_tail", FEWER_SEGMENTS, ("computes", "lora")),
        ("offsets_at_pool_size", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("padded_rows_are_routed", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("padded_rows_keep_slots", _verified(MIXED), ("metadata", "lora_ranks_of_tokens")),
        ("reversed_verify", _verified(MIXED), ("computes", "lora")),
        ("reversed_rows_v2", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("first_scales_v2", REPLACED, ("computes", "lora")),
        ("tail_not_cleared", MIXED, ("metadata", "lora_ranks_of_tokens")),
        ("routes_made_once", ALONE, ("computes", "lora")),
        ("routes_made_once_verify", _verified(MIXED), ("computes", "lora")),
    ],
)
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"tests.targets.sglang.lora_mutants:{planted}")
