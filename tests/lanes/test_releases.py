"""Real kernels of sglang releases, launched by their own code: same bytes, nothing reported."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from fuzzgraph.releases import installed

FETCHED = {release.version: release.path for release in installed() if release.package == "sglang"}

SCRIPT = """
import sys, warnings
import numpy as np, torch
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.lanes import lanes
from fuzzgraph.targets.sglang.release import engine_module

sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
np.seterr(all="ignore")
try:
    decode = engine_module("sglang.srt.layers.attention.triton_ops.decode_attention")
except AdapterUnavailable:
    decode = engine_module("sglang.kernels.ops.attention.decode_attention")

def left(heads, kv_heads, seed):
    random = torch.Generator().manual_seed(seed)
    lens = torch.tensor([37, 1, 12])
    indptr = torch.cat([torch.zeros(1), lens.cumsum(0)]).int()
    places = torch.randperm(60, generator=random)[: int(lens.sum())]
    q = torch.randn(3, heads, 8, generator=random)
    k, v = (torch.randn(60, kv_heads, 8, generator=random) for _ in range(2))
    out, logits = torch.zeros(3, heads, 8), torch.zeros(3, heads, 2, 8)
    lse, splits = torch.zeros(3, heads, 2), torch.full((3,), 2, dtype=torch.int32)
    decode.decode_attention_fwd(
        q, k, v, out, indptr, places, logits, lse, splits, 2, 0.3, 1.0, 1.0
    )
    return [each.numpy().tobytes() for each in (out, logits, lse)]

for heads, kv_heads in ((2, 2), (4, 2)):
    try:
        stock = left(heads, kv_heads, heads)
    except Exception as error:
        if "only 0-dimensional arrays" not in str(error):
            raise
        print("unable")  # Triton 3.6.0 from numpy 2.4 on
        sys.exit()
    with lanes() as report:
        assert left(heads, kv_heads, heads) == stock
    assert report.lines() == [], report.lines()
    assert report.runs < report.programs
print("same")
"""


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
def test_the_decode_attention_of_a_release_leaves_the_same_bytes(version: str) -> None:
    if version not in FETCHED or find_spec("transformers") is None:
        pytest.skip(f"needs sglang {version} and what it imports: make sglang")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(FETCHED[version])],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.stdout.splitlines()[-1:] == ["unable"]:
        pytest.skip("this Triton itself cannot run the kernels with this numpy")
    assert ran.stdout.splitlines()[-1:] == ["same"], ran.stderr[-2000:]
