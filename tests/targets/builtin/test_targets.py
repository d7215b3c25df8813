"""Targets by name, and what the built-in one leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import UsageError
from fuzzgraph.targets import open_target, target_names

OPEN_AND_LOOK = """
import sys
from tests.targets.builtin.engine import Bench
from fuzzgraph.case import EngineConfig
Bench(EngineConfig(kernels={kernels!r}, capture_bs=(1,)))
print("triton" in sys.modules)
"""


def loads_triton(kernels: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", OPEN_AND_LOOK.format(kernels=kernels)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[-1] == "True"


def test_builtin_target_is_found_by_name() -> None:
    assert "builtin" in target_names()
    assert open_target("builtin").name == "builtin"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bultin", r"target='bultin' is unknown\. Did you mean 'builtin'"),
        ("sglang-trition", r"Did you mean 'sglang-triton'"),
        ("x", r"target='x' is unknown\. The default is builtin\. 'fuzzgraph targets' lists all"),
    ],
)
def test_unknown_target_is_answered_with_those_that_look_like_it(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_target(name)


def test_builtin_target_serves_every_config() -> None:
    assert open_target("builtin").unsupported(EngineConfig()) is None


def test_torch_kernels_leave_triton_unloaded() -> None:
    assert not loads_triton("torch")


def test_triton_kernels_load_triton() -> None:
    pytest.importorskip("triton")
    assert loads_triton("triton")


def test_a_case_with_kernels_in_triton_is_left_out_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuzzgraph.targets.builtin.target.find_spec", lambda name: None)
    builtin = open_target("builtin")
    refused = builtin.unsupported(EngineConfig(kernels="triton"))
    assert refused is not None and "pip install 'fuzzgraph[triton]'" in refused
    assert builtin.unsupported(EngineConfig()) is None
    # Of the target that has none but these, opening says so: no case would be left.
    assert open_target("builtin-triton").unsupported(EngineConfig(kernels="triton")) is None
