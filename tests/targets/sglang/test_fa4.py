"""FlashAttention 4 on released sglang, which servers have on Blackwell."""

from __future__ import annotations

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_dflash import case
from tests.targets.sglang.test_dflash_verify import VERIFIES

MUTANTS = "tests.targets.sglang.fa4_mutants"
NEWEST = "0.5.23"


def _plain(config: EngineConfig) -> bool:
    """What mixes rows shows those that pad a verify."""
    return not config.virtual_pages and config.row_mixing == "none"


def _virtual(config: EngineConfig) -> bool:
    """Graphs by tokens read what lies before a table (sglang-dspark-accept-row.md)."""
    return config.virtual_pages and config.verify_budget == "none"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sglang-fa4", "sglang-fa4-verify", "sglang-dflash-draft-fa4"])
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_generated_cases_are_silent(workers: Workers, version: str, target: str) -> None:
    for of in generated(target, _plain, blocks=1, each=20):
        assert workers.findings(version, of, target) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sglang-fa4", "sglang-dspark-verify-fa4"])
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_pages_have_virtual_numbers(workers: Workers, version: str, target: str) -> None:
    for of in generated(target, _virtual, blocks=8, each=60, enough=8):
        assert workers.findings(version, of, target) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("windows_by_the_other_table", "swa_page_table"),
        ("tables_end_before_the_block", "cache_seqlens"),
    ],
)
def test_a_planted_bug_of_what_a_graph_translates_is_found(
    workers: Workers, planted: str, buffer: str
) -> None:
    of = case(*VERIFIES, blocks="none", page_size=128, swa_window=7, virtual_pages=True)
    found = workers.findings(NEWEST, of, f"{MUTANTS}:{planted}")
    assert buffer in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_planted_bug_of_a_decode_is_found(workers: Workers) -> None:
    (of, *_) = generated("sglang-fa4", _plain, blocks=1, each=5)
    found = workers.findings(NEWEST, of, f"{MUTANTS}:lengths_of_the_step_before")
    assert "cache_seqlens" in {each.buffer for each in found}


def test_pages_have_128_tokens_and_verifies_of_eagle_no_virtual_numbers() -> None:
    for name in ("sglang-fa4", "sglang-fa4-verify", "sglang-dspark-verify-fa4"):
        assert open_target(name).capabilities.page_sizes == (128,)
    on = ("sglang-fa4", "sglang-dspark-verify-fa4")
    off = ("sglang-fa4-verify", "sglang-dflash-verify-fa4")
    assert [open_target(name).capabilities.virtual_pages for name in (*on, *off)] == [
        True, True, False, False
    ]  # fmt: skip
