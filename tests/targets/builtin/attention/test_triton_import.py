"""Triton is loaded when it is asked for, and then works whoever loaded it before."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[4]
LAUNCH = """
import torch
from fuzzgraph.targets.builtin.attention import AttentionBatch, kernel
q, k, out = torch.ones(1, 1, 2), torch.ones(3, 1, 2), torch.zeros(1, 1, 2)
one = torch.tensor([1], dtype=torch.int32)
batch = AttentionBatch(
    kv_lens=one, max_kv_len=1, scale=1.0, page_table=one[None], page_size=1
)
kernel("triton")(q, k, k, out, batch)
print(out.flatten().tolist())
"""


def ran(code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_neither_the_torch_kernel_nor_the_reference_loads_triton() -> None:
    found = ran(
        "import sys, fuzzgraph.reference, fuzzgraph.targets.builtin.attention as attention;"
        "attention.kernel('torch'); print('triton' in sys.modules)"
    )

    assert found.stdout.split() == ["False"], found.stderr


needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None or torch.cuda.is_available(),
    reason="Triton is not installed, or compiles for a GPU here",
)


@needs_interpreter
@pytest.mark.parametrize("before", ["", "import triton, triton.language"], ids=["fresh", "loaded"])
def test_the_interpreter_is_chosen_without_a_gpu(before: str) -> None:
    found = ran(before + LAUNCH)

    assert found.stdout.strip() == "[1.0, 1.0]", found.stderr


def test_without_triton_the_kernel_is_refused_with_the_way_out() -> None:
    found = ran(
        "import sys; sys.modules['triton'] = None\n"
        "from fuzzgraph.errors import AdapterUnavailable\n"
        "from fuzzgraph.targets.builtin.attention import kernel\n"
        "try: kernel('triton')\n"
        "except AdapterUnavailable as error: print(error)"
    )

    assert "Triton kernels need triton, which cannot be imported here" in found.stdout
    assert "kernels='torch'" in found.stdout
