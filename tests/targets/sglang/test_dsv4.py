"""DSV4 of released sglang: its layers' outputs, and the upgrade of its metadata in the graph."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

_MUTANT = "fuzzgraph.targets.sglang.backends.dsv4:without_upgrade"


_SHRINKING = ((8, 300), (260,), (256, 131))
_FULL = ((8, 300), (256, 131))


def paged_case(kind: str = "c4", batches: Any = _SHRINKING, **settings: Any) -> Case:
    """Lengths at a group's end, at the window's, and beyond both; slots are used again."""
    fixed: dict[str, Any] = {
        "page_size": 256, "max_context_len": 512, "capture_bs": (2,),
        "req_pool_size": 3, "kv_pool_pages": 16, "attention": "mla", "head_dim": 8,
        "v_head_dim": 8, "num_q_heads": 2, "kv_compression": kind,
    }  # fmt: skip
    return decode_case(*batches, **{**fixed, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_a_layer_gives_attention_over_its_window_and_its_compressed_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, paged_case(kind, row_mixing="nan"), "sglang-dsv4") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_a_layer_gives_attention_in_0_5_12_where_no_row_is_padded(
    workers: Workers, kind: str
) -> None:
    assert workers.findings("0.5.12", paged_case(kind, _FULL), "sglang-dsv4") == ()


@pytest.mark.sglang
def test_a_layer_of_the_newest_release_gives_attention_over_compressed_keys(
    workers: Workers,
) -> None:
    assert workers.findings("0.5.23", paged_case(), "sglang-dsv4") == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        ("window_too_short", "window"),
        ("group_too_few", "c4"),
        ("first_slot", "c4"),
        ("first_slot", "c128"),
        ("older_tokens", "c4"),
        ("older_tokens", "c128"),
    ],
)
def test_metadata_that_leads_a_kernel_astray_shows_in_outputs(
    workers: Workers, mutant: str, kind: str
) -> None:
    target = f"tests.targets.sglang.compressed_mutants:{mutant}"
    found = workers.findings("0.5.23", paged_case(kind), target)
    assert "reference" in {each.oracle for each in found}


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("sglang-dsv4", False),
        ("tests.targets.sglang.compressed_mutants:index_queries_of_the_next_position", True),
        ("tests.targets.sglang.compressed_mutants:index_pages_of_the_padding", True),
        ("tests.targets.sglang.compressed_mutants:index_keys_not_stored", True),
    ],
)
def test_the_keys_that_an_indexer_selects_are_the_best_of_more_than_it_keeps(
    workers: Workers, target: str, found: bool
) -> None:
    case = paged_case(batches=((8, 300), (260,), (256, 333)), index_topk=64)
    oracles = {each.oracle for each in workers.findings("0.5.23", case, target)}
    assert ("reference" in oracles) if found else not oracles


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("topk_kernel", ["planned", "unplanned"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.22"])
def test_an_indexer_of_any_release_selects_the_best_keys(
    workers: Workers, version: str, topk_kernel: str
) -> None:
    case = paged_case(
        batches=((8, 300), (260,), (256, 333)), index_topk=64, topk_kernel=topk_kernel
    )
    assert workers.findings(version, case, "sglang-dsv4") == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("version", "mutant"),
    [
        ("0.5.13", "selection_planned_at_capture"),
        ("0.5.23", "selection_planned_at_capture"),
        ("0.5.23", "selection_planned_for_other_rows"),
        ("0.5.23", "slots_by_pages_of_another_size"),
    ],
)
def test_keys_that_are_selected_by_another_plan_or_page_show_in_outputs(
    workers: Workers, version: str, mutant: str
) -> None:
    case = paged_case(batches=((264, 400), (300, 333)), index_topk=64)
    target = f"tests.targets.sglang.compressed_mutants:{mutant}"
    found = {each.oracle for each in workers.findings(version, case, target)}
    assert "reference" in found


@pytest.mark.sglang
@pytest.mark.parametrize("topk_kernel", ["planned", "unplanned"])
def test_either_selection_of_compressed_keys_is_right(workers: Workers, topk_kernel: str) -> None:
    case = paged_case(batches=((264, 400), (300, 333)), index_topk=64, topk_kernel=topk_kernel)
    assert workers.findings("0.5.23", case, "sglang-dsv4") == ()


def test_selections_of_other_sizes_are_not_driven() -> None:
    config = paged_case(index_topk=3).config
    said = open_target("sglang-dsv4").unsupported(config)
    assert said == "index_topk=3: tables of selected keys have 64 columns"


def shrinking_batch() -> Case:
    """A request moves from row 1 to row 0 and completes a group there; row 1 is padding then."""
    alone = paged_case().config
    first = (BatchRow(request=0, seq_len=30), BatchRow(request=1, seq_len=11))
    second = (BatchRow(request=1, seq_len=12),)
    steps = (ReplayStep(rows=first), ReplayStep(rows=second, finish=(0,)))
    return Case(schema_version=1, config=alone, steps=steps)


@pytest.mark.sglang
@pytest.mark.slow
def test_a_padded_row_that_names_a_live_request_spoils_its_compressed_key(
    workers: Workers,
) -> None:
    found = {(each.oracle, each.buffer) for each in workers.findings(
        "0.5.12", shrinking_batch(), "sglang-dsv4"
    )}  # fmt: skip
    assert {("contract", "req_pool_indices"), ("reference", "attention")} <= found
    assert workers.findings("0.5.13", shrinking_batch(), "sglang-dsv4") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_metadata_that_stays_raw_is_found(workers: Workers) -> None:
    (finding,) = workers.findings("0.5.13", paged_case(), _MUTANT)
    assert (finding.oracle, finding.buffer) == ("contract", "forward_metadata")
    assert "is DSV4RawDecodeMetadata, the forward needs DSV4Metadata" in finding.message


def test_pages_of_another_size_are_not_driven() -> None:
    assert (
        open_target("sglang-dsv4").unsupported(EngineConfig())
        == "page_size=1 is not driven, only 256"
    )


def test_a_row_that_cannot_be_rotated_in_pairs_is_not_driven() -> None:
    config = paged_case().config
    odd = EngineConfig(
        **{**{f: getattr(config, f) for f in config.__struct_fields__}, "head_dim": 7}
    )
    assert open_target("sglang-dsv4").unsupported(odd) == "head_dim=7 cannot be rotated in pairs"
