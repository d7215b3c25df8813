"""DSV4 of released sglang: its layers' outputs, and the upgrade of its metadata in the graph."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

_MUTANT = "fuzzgraph.targets.sglang.backends.dsv4:without_upgrade"


def paged_case(kind: str = "c4", **settings: Any) -> Case:
    """Lengths at a group's end, at the window's, and beyond both; slots are used again."""
    return decode_case(
        (8, 300), (260,), (256, 131), page_size=256, max_context_len=512, capture_bs=(2,),
        req_pool_size=3, kv_pool_pages=16, attention="mla", head_dim=8, v_head_dim=8,
        num_q_heads=2, kv_compression=kind, **settings,
    )  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.16", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_a_layer_gives_attention_over_its_window_and_its_compressed_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, paged_case(kind, row_mixing="nan"), "sglang-dsv4") == ()


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
