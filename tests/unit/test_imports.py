"""`import fuzzgraph` stays light, and so does the plugin that every pytest loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "sglang", "vllm", "flashinfer", "hypothesis", "rich", "transformers")


def loaded_by(statement: str) -> set[str]:
    """Which heavy modules a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import fuzzgraph", "import fuzzgraph.cli", "import fuzzgraph.pytest_plugin"],
)
def test_importing_it_loads_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_this_test_can_fail() -> None:
    assert loaded_by("import fuzzgraph; fuzzgraph.run_case; import torch") >= {"torch"}


def test_every_public_name_is_there() -> None:
    import fuzzgraph

    for name in fuzzgraph.__all__:
        assert getattr(fuzzgraph, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    import fuzzgraph

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fuzzgraph.nothing
