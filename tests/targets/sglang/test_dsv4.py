"""DSV4 metadata of released sglang: upgraded in the graph, and a mutant that forgets it."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

_MUTANT = "fuzzgraph.targets.sglang.backends.dsv4:without_upgrade"


def paged_case() -> Case:
    return decode_case(
        (5, 300), (260,), page_size=256, max_context_len=512, capture_bs=(2,), req_pool_size=3,
        kv_pool_pages=16,
    )  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_metadata_is_upgraded_and_names_its_own_pages(workers: Workers, version: str) -> None:
    assert workers.findings(version, paged_case(), "sglang-dsv4") == ()


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
