"""Servers with two attention backends: how often they are drawn, and which configs say it."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.case.config_rules import validate_config
from fuzzgraph.errors import InvalidCase
from fuzzgraph.strategies import DEFAULT
from fuzzgraph.strategies.configs import swarm_config

BOTH: dict[str, Any] = {
    "modes": ("target_verify",),
    "backend_beside": "fa3",
    "verifies_as_prefill": True,
}


def drawn(mode: Mode, beside: tuple[str, ...] = ("none", "fa3", "triton")) -> list[EngineConfig]:
    can = Capabilities(modes=(mode,), backends_beside=beside)
    return [swarm_config(can, DEFAULT, number) for number in range(200)]


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_a_part_of_the_configs_has_each_backend_beside(mode: Mode) -> None:
    found = [config.backend_beside for config in drawn(mode)]
    assert found[0] == "none"
    assert 80 < found.count("none") < 180
    assert min(found.count("fa3"), found.count("triton")) > 5


def test_a_part_of_the_verifies_runs_on_the_backend_of_prefills() -> None:
    split = [config for config in drawn("target_verify") if config.backend_beside != "none"]
    assert {config.verifies_as_prefill for config in split} == {False, True}
    assert not any(config.verifies_as_prefill for config in drawn("decode"))


def test_a_target_with_one_backend_has_none_beside() -> None:
    assert {config.backend_beside for config in drawn("decode", ("none",))} == {"none"}


@pytest.mark.parametrize("change", [{"modes": ("decode",)}, {"backend_beside": "none"}])
def test_only_drafts_are_verified_on_the_backend_of_prefills(change: dict[str, Any]) -> None:
    validate_config(EngineConfig(**BOTH))
    with pytest.raises(InvalidCase, match="verifies_as_prefill"):
        validate_config(EngineConfig(**{**BOTH, **change}))


def test_drafts_have_one_backend() -> None:
    with pytest.raises(InvalidCase, match="backend_beside"):
        validate_config(EngineConfig(modes=("draft",), backend_beside="fa3"))
