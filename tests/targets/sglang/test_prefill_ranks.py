"""Prefill graphs of sglang on one of several data-parallel ranks: acquitted, and found out where
changed.

Where ranks agree on a graph, the engine pads a batch to the largest rank's bucket, and its
attention leaves what it pads so as it was (reports/findings/sglang-prefill-rows-of-ranks.md).
"""

from __future__ import annotations

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.released import Workers, generated

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.prefill_rank_mutants:"
UNWRITTEN = ("noninterference", "attention")
"""What all releases show in rows that pad a batch for its ranks."""
FOUND = {
    "own_bucket": ("contract", "graph"),
    "own_length": ("contract", "graph"),
    "padded_slot": ("contract", "out_cache_loc"),
    "idle_counts": ("contract", "num_token_non_padded"),
    "idle_reads": ("footprint", "kv_indices_ptr"),
}
"""Planted bug -> the finding that names it."""
COUNT = ("contract", "num_token_non_padded")
STATES = "req_to_token_pool.mamba_pool.mamba_cache.temporal"
SINCE = {"breakable": "0.5.17", "full": "0.5.19"}
"""Kind of graphs -> first release whose ranks agree on one."""


def step(tokens: int, *others: int, cached: int = 0, request: int = 0) -> ReplayStep:
    """A prompt of so many tokens beside other ranks with theirs; none for an idle rank."""
    if not tokens:
        return ReplayStep(mode="idle", other_ranks=others)
    row = BatchRow(request=request, seq_len=cached + tokens, new_tokens=tokens)
    return ReplayStep(mode="prefill", rows=(row,), other_ranks=others)


def ranks(*steps: ReplayStep) -> Case:
    config = EngineConfig(
        modes=("prefill",), capture_bs=(), capture_tokens=(2, 4, 8), prefill_runner="breakable",
        max_context_len=16, req_pool_size=4, dp_size=3, dp_rank=1,
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


FULL = ranks(step(8, 3, 1), step(2, 2, 2, cached=8), step(4, 4, 1, cached=2, request=1))
"""This rank fills each graph, so that nothing is padded for the others."""
PADDED = ranks(step(8, 3, 1), step(3, 5, 1, cached=8), step(1, 4, 1, cached=2, request=1))
IDLE = ranks(step(8, 3, 1), step(0, 3, 1), step(2, 2, 2, cached=8), step(0, 8, 8))


def shared(case: Case, *sizes: int, **more: object) -> Case:
    """Each data-parallel rank is two that share heads, and this one is their second."""
    config = msgspec.structs.replace(
        case.config,
        attn_tp_size=2,
        attn_tp_rank=1,
        capture_tokens=sizes or case.config.capture_tokens,
        **more,
    )
    return validate(msgspec.structs.replace(case, config=config))


UNEVEN = shared(ranks(step(8, 3, 1), step(2, 2, 2, cached=8)), 3, 8)
"""Graphs of three tokens, which two ranks cannot share: the engine makes them graphs of four."""


def named(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    return {(each.oracle, each.buffer) for each in workers.findings(version, case, target)}


def of_kind(case: Case, kind: str) -> Case:
    config = msgspec.structs.replace(case.config, prefill_runner=kind)
    return validate(msgspec.structs.replace(case, config=config))


def recurrent(case: Case) -> Case:
    config = msgspec.structs.replace(
        case.config, recurrent_state=True, dtype="float16", page_size=16, max_context_len=16
    )
    return validate(msgspec.structs.replace(case, config=config))


@pytest.mark.parametrize(
    ("kind", "version"),
    [("breakable", "0.5.17"), ("breakable", "0.5.23"), ("full", "0.5.19"), ("full", "0.5.23")],
)
def test_a_rank_that_fills_its_graph_is_silent(workers: Workers, kind: str, version: str) -> None:
    target = f"sglang-{kind}-prefill"
    assert workers.findings(version, of_kind(FULL, kind), target) == ()


@pytest.mark.parametrize("version", ["0.5.17", "0.5.19", "0.5.23"])
def test_a_rank_replays_the_graph_of_the_largest_one(workers: Workers, version: str) -> None:
    assert named(workers, version, PADDED, "sglang-breakable-prefill") == {UNWRITTEN}


@pytest.mark.parametrize(
    ("kind", "version"), [("breakable", "0.5.19"), ("breakable", "0.5.23"), ("full", "0.5.23")]
)
def test_an_idle_rank_replays_with_the_others(workers: Workers, kind: str, version: str) -> None:
    assert workers.findings(version, of_kind(IDLE, kind), f"sglang-{kind}-prefill") == ()


@pytest.mark.parametrize(
    ("target", "version"),
    [("gdn", "0.5.17"), ("gdn", "0.5.23"), ("kda", "0.5.21"), ("kda-glm", "0.5.23")],
)
def test_a_rank_with_recurrent_layers_is_silent_beside_others(
    workers: Workers, target: str, version: str
) -> None:
    assert workers.findings(version, recurrent(FULL), f"sglang-{target}-prefill") == ()


@pytest.mark.parametrize(
    ("target", "version", "unwritten"),
    [
        ("gdn", "0.5.23", set()),
        ("kda", "0.5.21", set()),
        ("kda-glm", "0.5.23", {("noninterference", "channel_delta")}),
    ],
)
def test_an_idle_rank_with_recurrent_layers_replays_with_the_others(
    workers: Workers, target: str, version: str, unwritten: set[tuple[str, str]]
) -> None:
    """A graph that holds KDA leaves the output of an idle rank as it was; see the report above."""
    assert named(workers, version, recurrent(IDLE), f"sglang-{target}-prefill") == unwritten


def test_states_that_a_rank_does_not_write_beside_others_are_found(workers: Workers) -> None:
    planted = "tests.targets.sglang.hybrid_prefill_mutants:states_not_written"
    assert ("reference", STATES) in named(workers, "0.5.23", recurrent(PADDED), planted)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.18"])
def test_tokens_of_an_idle_rank_count_as_live_up_to_0_5_18(workers: Workers, version: str) -> None:
    found = named(workers, version, IDLE, "sglang-breakable-prefill")
    assert found == {("contract", "num_token_non_padded")}


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
def test_they_count_with_recurrent_layers_up_to_0_5_20(workers: Workers, version: str) -> None:
    found = named(workers, version, recurrent(IDLE), "sglang-gdn-prefill")
    assert found == {("contract", "num_token_non_padded")}


@pytest.mark.parametrize(("kind", "before"), [("breakable", "0.5.16"), ("full", "0.5.18")])
def test_ranks_of_a_release_that_agrees_on_no_graph_are_left_out(
    workers: Workers, kind: str, before: str
) -> None:
    said = workers.skipped(before, of_kind(FULL, kind), f"sglang-{kind}-prefill")
    assert f"prefills of data-parallel ranks take graphs from sglang {SINCE[kind]} on" in said


@pytest.mark.parametrize(
    ("target", "version"),
    [("breakable", "0.5.17"), ("breakable", "0.5.23"), ("full", "0.5.19"), ("full", "0.5.23")],
)
def test_ranks_that_share_heads_are_silent_beside_others(
    workers: Workers, target: str, version: str
) -> None:
    case = shared(of_kind(FULL, target))
    assert workers.findings(version, case, f"sglang-{target}-prefill") == ()


@pytest.mark.parametrize(("target", "version"), [("gdn", "0.5.23"), ("kda", "0.5.21")])
def test_ranks_that_share_recurrent_heads_are_silent_beside_others(
    workers: Workers, target: str, version: str
) -> None:
    case = shared(recurrent(FULL))
    assert workers.findings(version, case, f"sglang-{target}-prefill") == ()


@pytest.mark.parametrize(("version", "miscounts"), [("0.5.21", True), ("0.5.22", False)])
def test_beside_others_too_ranks_share_what_is_rounded_up_for_them_from_0_5_22_on(
    workers: Workers, version: str, miscounts: bool
) -> None:
    found = named(workers, version, UNEVEN, "sglang-breakable-prefill")
    assert (COUNT in found) is miscounts


def test_sizes_that_ranks_cannot_share_are_found(workers: Workers) -> None:
    assert COUNT in named(workers, "0.5.23", UNEVEN, f"{MUTANTS}uneven_sizes")


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_line_is_found(workers: Workers, name: str) -> None:
    case = IDLE if name.startswith("idle") else PADDED
    assert FOUND[name] in named(workers, "0.5.23", case, f"{MUTANTS}{name}")


@pytest.mark.parametrize(("kind", "version"), [("breakable", "0.5.22"), ("full", "0.5.23")])
def test_generated_cases_of_ranks_that_share_heads_show_nothing_else(
    workers: Workers, kind: str, version: str
) -> None:
    target = f"sglang-{kind}-prefill"

    def shared_prompts(config: EngineConfig) -> bool:
        within = max(config.capture_tokens) <= config.max_context_len
        alone = not (config.swa_window or config.layer_types)
        return within and alone and config.dp_size > 1 and config.attn_tp_size > 1

    drawn = generated(target, shared_prompts, blocks=9, each=100, enough=20)
    assert len(drawn) >= 20
    found = set[tuple[str, str]]().union(*(named(workers, version, case, target) for case in drawn))
    assert found == {UNWRITTEN}


@pytest.mark.parametrize(
    ("kind", "version"), [("breakable", "0.5.19"), ("breakable", "0.5.23"), ("full", "0.5.22")]
)
def test_generated_cases_show_nothing_but_rows_that_pad_a_batch(
    workers: Workers, kind: str, version: str
) -> None:
    target = f"sglang-{kind}-prefill"

    def several_ranks(config: EngineConfig) -> bool:
        """Graphs beyond a context have a finding of their own (sglang-idle-rank-prefill.md)."""
        within = max(config.capture_tokens) <= config.max_context_len
        return within and config.dp_size > 1 and config.attn_tp_size == 1

    drawn = generated(target, several_ranks, blocks=9, each=100, enough=40)
    assert len(drawn) >= 40
    found = set[tuple[str, str]]().union(*(named(workers, version, case, target) for case in drawn))
    assert found == {UNWRITTEN}
