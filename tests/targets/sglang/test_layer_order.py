"""Released sglang with several layers of a kind, and a first layer that does not see all keys."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from tests.targets.sglang.released import Workers, generated

_NEWEST = "0.5.23"
_MUTANTS = "tests.targets.sglang.layer_order_mutants"
_KINDS: dict[str, Any] = {"f": "full_attention", "s": "sliding_attention", "l": "linear_attention"}

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def _case(order: str, mode: Mode = "decode", **settings: Any) -> Case:
    """Two steps of a model whose layers have these letters; "" is one of each kind."""
    drafts = 2 if mode == "target_verify" else 1
    rows = ((0, 9), (1, 21)), ((0, 9 + drafts), (1, 21 + drafts), (2, 3))
    steps = tuple(
        ReplayStep(mode=mode, rows=tuple(_row(*row, drafts) for row in step)) for step in rows
    )
    given = {"modes": (mode,), "capture_bs": (2, 4), "max_context_len": 32}
    given |= {"layer_types": _types(order)}
    config = EngineConfig(**{**given, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


def _types(order: str) -> tuple[Any, ...]:
    return tuple(_KINDS[letter] for letter in order)


def _row(request: int, length: int, new: int) -> BatchRow:
    return BatchRow(request=request, seq_len=length, new_tokens=new)


_WINDOW: dict[str, Any] = {"page_size": 16, "swa_window": 3}
_ONE_MEMORY: dict[str, Any] = {**_WINDOW, "virtual_pages": True, "head_dim": 8, "v_head_dim": 8}
_STATES: dict[str, Any] = {"recurrent_state": True}


@pytest.mark.parametrize("order", ["sff", "sfs", "fsfs"])
@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-flashinfer", "sglang-trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", _NEWEST])
def test_each_layer_beside_windows_attends_to_its_own_keys(
    workers: Workers, version: str, target: str, order: str
) -> None:
    assert workers.findings(version, _case(order, **_WINDOW), target) == ()


@pytest.mark.parametrize("target", ["sglang-fa3-verify", "sglang-triton-verify"])
@pytest.mark.parametrize("version", ["0.5.13", _NEWEST])
def test_each_layer_of_a_verify_attends_to_its_own_keys(
    workers: Workers, version: str, target: str
) -> None:
    case = _case("sff", "target_verify", **_WINDOW)
    assert workers.findings(version, case, target) == ()


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-flashinfer"])
def test_layers_in_one_memory_have_pages_of_one_size(workers: Workers, target: str) -> None:
    assert workers.findings(_NEWEST, _case("sffs", **_ONE_MEMORY), target) == ()
    other = _case("sff", **_ONE_MEMORY)
    assert "as many of each" in workers.skipped(_NEWEST, other, target)


@pytest.mark.parametrize("target", ["sglang-gdn", "sglang-kda", "sglang-short-conv"])
def test_each_recurrent_layer_has_states_of_its_own(workers: Workers, target: str) -> None:
    assert workers.findings(_NEWEST, _case("lflf", capture_bs=(3,), **_STATES), target) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_recurrent_layers_of_older_releases_do_too(workers: Workers, version: str) -> None:
    assert workers.findings(version, _case("lflf", **_STATES), "sglang-gdn") == ()


def test_lightning_attention_decays_by_the_place_of_its_layer(workers: Workers) -> None:
    found = workers.findings(_NEWEST, _case("lflf", **_STATES), "sglang-lightning")
    assert [one for one in found if one.oracle != "noninterference"] == []


def test_a_description_by_intervals_says_no_other_order(workers: Workers) -> None:
    case = _case("lfflf", **_STATES)
    assert "at exactly every 2 layers" in workers.skipped(_NEWEST, case, "sglang-gdn")
    assert workers.findings(_NEWEST, _case("lff", **_STATES), "sglang-kda") == ()


@pytest.mark.parametrize(
    ("mutant", "order", "settings", "output"),
    [
        ("stored_in_the_first", "sff", _WINDOW, "attention_2"),
        ("stored_in_the_first", "sfs", _WINDOW, "swa_attention_2"),
        ("read_from_the_first", "sff", _WINDOW, "attention_2"),
        ("read_from_the_first", "sfs", _WINDOW, "swa_attention_2"),
        ("unified_by_turns", "sffs", _ONE_MEMORY, "attention_2"),
        ("unified_keys_of_the_first", "sffs", _ONE_MEMORY, "attention_2"),
        ("window_by_number", "sff", _WINDOW, "attention"),
        ("table_by_number", "sff", _WINDOW, "attention"),
        ("keys_of_the_first_full", "lflf", _STATES, "attention_2"),
        ("states_of_the_first", "lflf", _STATES, "gated_delta_2"),
        ("states_of_the_next", "lflf", _STATES, "channel_delta_2"),
    ],
)
def test_mixed_up_layers_show(
    workers: Workers, mutant: str, order: str, settings: dict[str, Any], output: str
) -> None:
    found = workers.findings(_NEWEST, _case(order, **settings), f"{_MUTANTS}:{mutant}")
    assert ("reference", output) in {(one.oracle, one.buffer) for one in found}


def test_a_state_that_a_verify_does_not_commit_shows(workers: Workers) -> None:
    case = _case("lflf", "target_verify", **_STATES)
    found = workers.findings(_NEWEST, case, f"{_MUTANTS}:committed_in_the_first")
    assert any("state" in one.message for one in found)


@pytest.mark.parametrize(
    ("mutant", "settings"),
    [
        ("stored_in_the_first", _WINDOW),
        ("read_from_the_first", _WINDOW),
        ("unified_keys_of_the_first", _ONE_MEMORY),
        ("table_by_number", _WINDOW),
        ("keys_of_the_first_full", _STATES),
        ("states_of_the_first", _STATES),
    ],
)
def test_one_layer_of_each_kind_does_not_show_them(
    workers: Workers, mutant: str, settings: dict[str, Any]
) -> None:
    assert workers.findings(_NEWEST, _case("", **settings), f"{_MUTANTS}:{mutant}") == ()


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-gdn", "sglang-trtllm-mha"])
def test_generated_cases_of_several_layers_are_silent(workers: Workers, target: str) -> None:
    drawn = generated(target, lambda config: bool(config.layer_types), blocks=8, each=60, enough=8)
    assert len(drawn) >= 8
    assert [case for case in drawn[:8] if workers.findings(_NEWEST, case, target)] == []


def test_nemotron_begins_with_mamba2_from_0_5_18_on(workers: Workers) -> None:
    """Before, Triton attention asks the pool for values of layer 0."""
    target = "sglang-mamba-prefill"
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(8,), layer_types=_types("lflf"), **_STATES
    )
    assert "values of layer 0" in workers.unserved("0.5.13", config, target)
    assert workers.unserved(_NEWEST, config, target) == ""
