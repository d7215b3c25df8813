"""Released Triton attention with heads as wide as models have them, which are cut into tiles."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from tests.targets.sglang.released import Workers, decode_case, generated

_NEWEST = "0.5.23"
_MUTANTS = "tests.targets.sglang.tile_mutants"
_HEADS: dict[str, Any] = {"num_q_heads": 2, "num_kv_heads": 2}
_DEEPSEEK: dict[str, Any] = {**_HEADS, "head_dim": 192, "v_head_dim": 128}
_ODD: dict[str, Any] = {**_HEADS, "head_dim": 96, "v_head_dim": 96}
_LATENT: dict[str, Any] = {"attention": "mla", "num_q_heads": 2, "head_dim": 576, "v_head_dim": 512}
_HALF_LATENT: dict[str, Any] = {
    "attention": "mla",
    "num_q_heads": 2,
    "head_dim": 288,
    "v_head_dim": 256,
}
_NARROW: dict[str, Any] = {**_HEADS, "head_dim": 16, "v_head_dim": 16}

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def _seen(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    return {(one.oracle, one.buffer) for one in workers.findings(version, case, target)}


def _case(target: str, heads: dict[str, Any]) -> Case:
    mode: Any = "target_verify" if target.endswith("verify") else "decode"
    return decode_case((9,), (5, 12), mode=mode, **heads)


@pytest.mark.parametrize("heads", [_DEEPSEEK, _ODD, {**_HEADS, "head_dim": 128, "v_head_dim": 128}])
@pytest.mark.parametrize("target", ["sglang-triton", "sglang-triton-verify"])
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", _NEWEST])
def test_heads_of_tiles_are_attended_to_whole(
    workers: Workers, version: str, target: str, heads: dict[str, Any]
) -> None:
    assert _seen(workers, version, _case(target, heads), target) == set()


@pytest.mark.parametrize("heads", [_LATENT, _HALF_LATENT])
@pytest.mark.parametrize("version", ["0.5.13", _NEWEST])
def test_latent_rows_of_deepseek_are_attended_to_whole(
    workers: Workers, version: str, heads: dict[str, Any]
) -> None:
    case = _case("sglang-triton-mla", heads)
    assert _seen(workers, version, case, "sglang-triton-mla") == set()


@pytest.mark.parametrize(
    ("mutant", "heads", "narrow"),
    [
        ("rest_of_half_a_tile", _DEEPSEEK, _NARROW),
        ("rest_from_the_start", _DEEPSEEK, _NARROW),
        ("columns_of_the_next_head", _DEEPSEEK, _NARROW),
        ("values_of_the_next_head", _ODD, _NARROW),
        ("half_of_the_rotary_part", _LATENT, {"attention": "mla", "head_dim": 8, "v_head_dim": 7}),
    ],
)
def test_a_wrong_tile_shows_in_wide_heads_alone(
    workers: Workers, mutant: str, heads: dict[str, Any], narrow: dict[str, Any]
) -> None:
    kind = "sglang-triton-verify" if mutant.startswith("rest") else "sglang-triton"
    target = f"{_MUTANTS}:{mutant}"
    assert _seen(workers, _NEWEST, _case(kind, heads), target) != set()
    assert _seen(workers, _NEWEST, _case(kind, narrow), target) == set()


@pytest.mark.parametrize("target", ["sglang-triton", "sglang-triton-verify", "sglang-triton-mla"])
def test_generated_cases_of_wide_heads_are_silent(workers: Workers, target: str) -> None:
    # Windows of decodes, and verifies with branches or beside ranks, have findings of their own
    # with heads of any width (reports/findings).
    beside = ("swa_window", "spec_topk", "dp_size")
    plain = EngineConfig()
    drawn = generated(
        target,
        lambda config: config.head_dim > 64
        and all(getattr(config, name) == getattr(plain, name) for name in beside),
        blocks=24, each=100, enough=4,
    )[:4]  # fmt: skip
    assert len(drawn) == 4
    assert [case for case in drawn if workers.findings(_NEWEST, case, target)] == []
