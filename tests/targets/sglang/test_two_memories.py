"""No target of sglang mixes host and device memory, which a CPU does not show."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from fuzzgraph.process.interpreter import engine_environment, module_command
from tests.targets.sglang.released import release_path

_RUNNER = "tests.targets.sglang.in_two_memories"


def _runs(version: str, count: int, *words: str) -> list[dict[str, Any]]:
    release_path(version)  # skips where it is not installed
    done = subprocess.run(
        module_command(_RUNNER, version, str(count), *words),
        capture_output=True, env=engine_environment("cpu"), check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "version, targets",
    [
        (
            "0.5.13",
            "triton fa3 gdn mamba eagle-draft triton-draft-extend multi-layer-draft-extend"
            " lora-chunked",
        ),
        (
            "0.5.23",
            "triton full-prefill dflash-verify-triton trtllm-mha-draft-extend uno",
        ),
    ],
)
def test_what_a_gpu_would_refuse_is_nowhere(version: str, targets: str) -> None:
    found = _runs(version, 3, *(f"sglang-{name}" for name in targets.split()))
    assert [each["target"] for each in found if not each["ran"]] == []
    assert {each["target"]: each["mixed"] for each in found if each["mixed"]} == {}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_past_that_is_written_from_the_host_is_found() -> None:
    # More than two: some have rings beside their states, which the release does not know.
    (found,) = _runs("0.5.13", 4, "sglang-gdn", "--plant")
    assert any("_write_past" in mixed and "aten::index_put_" in mixed for mixed in found["mixed"])
