"""Telling kernels of sglang 0.5.23 and vLLM 0.33.0, launched by the engines' own code.

The calls are the benchmark's, which counts all of them: `benchmarks/lanes/released_kernels.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.targets.sglang.released import release_path

COUNT = Path(__file__).parents[2] / "benchmarks" / "lanes" / "released_kernels.py"
VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
CALLS = {
    "sglang": (
        "decode_of_grouped_heads",
        "decode_of_latent_heads",
        "drafts_are_sampled",
        "experts",
        "extend",
        "kda_in_chunks",
        "latent_kv_is_stored",
        "mamba_decode",
        "sparse_latent_attention",
    ),
    "vllm": (
        "causal_convolutions",
        "gated_delta_net_in_chunks",
        "page_tables_are_gathered",
        "top_k_and_top_p",
        "unified_attention",
        "unified_attention_in_segments",
    ),
}


def seen(engine: str) -> list[dict[str, Any]]:
    """What the benchmark saw of each launch."""
    release_path(VERSIONS[engine], engine)
    said = subprocess.run(
        [sys.executable, str(COUNT), "--engine", engine, "--only", ",".join(CALLS[engine])],
        capture_output=True,
        text=True,
        check=True,
    )
    calls = [json.loads(line) for line in said.stdout.splitlines()]
    assert {call["row"]: call["error"] for call in calls} == dict.fromkeys(CALLS[engine], "")
    return [launch for call in calls for launch in call["launches"]]


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("sglang", marks=pytest.mark.sglang),
        pytest.param("vllm", marks=pytest.mark.vllm),
    ],
)
def test_kernels_of_a_release_run_over_lanes_and_leave_the_same_bytes(engine: str) -> None:
    launches = seen(engine)
    assert [each for each in launches if each["lanes"] or each["fallbacks"]] == []
    compared = [each for each in launches if not each["stock"]]
    assert len(compared) > 5
    assert [each for each in compared if not each["equal"]] == []
    # The others are those that Triton's interpreter cannot run at all.
    assert len(compared) < len(launches)
    assert [each for each in launches if each["accesses"] or each["races"]] == []
