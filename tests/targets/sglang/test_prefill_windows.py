"""Prefill graphs of sglang with a layer behind a window, on the hybrid pool and on one memory."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_prefill import prefill_case

_NEWEST = "0.5.23"
_MUTANTS = "tests.targets.sglang.prefill_window_mutants:"
_KINDS = ("breakable", "full")


def _case(kind: str, **settings: Any) -> Case:
    """Prompts behind pasts that are longer than the window, and shorter."""
    given: dict[str, Any] = {"swa_window": 3, "page_size": 4, "max_context_len": 32}
    if kind == "full":
        given |= {"prefill_slots": 3, "page_size": 2}
    steps = (((0, 9, 2), (1, 0, 5)), ((0, 11, 3), (2, 2, 1)), ((1, 5, 8),))
    return prefill_case(kind, *steps, **given, **settings)


def _alone(config: EngineConfig) -> bool:
    """Whether no rows pad a batch for ranks, which
    [all releases leave as they were](../../../reports/findings/sglang-prefill-rows-of-ranks.md)."""
    return config.dp_size == 1 and config.attn_tp_size == 1


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"),
    [("breakable", "0.5.13"), ("breakable", _NEWEST), ("piecewise", "0.5.13")],
)
def test_a_window_has_slots_of_its_own_pool(workers: Workers, kind: str, version: str) -> None:
    assert workers.findings(version, _case(kind), f"sglang-{kind}-prefill") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("version", ["0.5.22", _NEWEST])
def test_both_layers_find_their_pages_by_virtual_numbers(
    workers: Workers, version: str, kind: str
) -> None:
    case = _case(kind, virtual_pages=True)
    assert workers.findings(version, case, f"sglang-{kind}-prefill") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "oracle", "buffer"),
    [
        ("unbound_replay", "survival", ""),
        ("sink", "contract", "swa_out_cache_loc"),
        ("other_tables", "contract", "swa_page_table"),
    ],
)
def test_a_planted_bug_of_the_translation_is_found(
    workers: Workers, name: str, oracle: str, buffer: str
) -> None:
    kind = "full" if name == "other_tables" else "breakable"
    found = workers.findings(_NEWEST, _case(kind, virtual_pages=True), f"{_MUTANTS}{name}")
    assert (oracle, buffer) in {(one.oracle, one.buffer) for one in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_drawn_cases_find_what_a_replay_does_not_bind(workers: Workers) -> None:
    drawn = generated(
        "sglang-breakable-prefill",
        lambda config: config.virtual_pages and _alone(config),
        blocks=40,
        each=100,
        enough=3,
    )
    target = f"{_MUTANTS}unbound_replay"
    assert any(workers.findings(_NEWEST, case, target) for case in drawn)


@pytest.mark.sglang
@pytest.mark.slow
def test_releases_whose_pool_is_told_of_slots_have_no_such_prompts(workers: Workers) -> None:
    assert "0.5.13" in workers.skipped("0.5.12", _case("breakable"), "sglang-breakable-prefill")


@pytest.mark.sglang
@pytest.mark.slow
def test_releases_that_scale_physical_pages_have_no_such_prompts(workers: Workers) -> None:
    case = _case("breakable", virtual_pages=True)
    assert "0.5.22" in workers.skipped("0.5.21", case, "sglang-breakable-prefill")


def test_piecewise_graphs_have_no_virtual_pages() -> None:
    """The last release that has such graphs scales physical pages."""
    assert open_target("sglang-piecewise-prefill").capabilities.swa_window
    assert not open_target("sglang-piecewise-prefill").capabilities.virtual_pages


@pytest.mark.parametrize("kind", _KINDS)
def test_one_memory_needs_a_layer_behind_a_window(kind: Any) -> None:
    config = EngineConfig(
        modes=("prefill",), capture_bs=(), capture_tokens=(4,), prefill_runner=kind,
        page_size=16, max_context_len=16, virtual_pages=True,
        prefill_slots=2 if kind == "full" else 0,
    )  # fmt: skip
    assert "layers of two kinds" in str(open_target(f"sglang-{kind}-prefill").unsupported(config))
