"""The decode attention of one sglang release, timed in a process of its own; prints JSON.

python benchmarks/lanes/release.py VERSION
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from subjects import SPLITS, history, kv_writer
from timing import Make, Measured, bytes_of, measure

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.releases import ensure
from fuzzgraph.targets.sglang.release import engine_module

SHAPES = ((4, 64, 8, 2), (16, 256, 8, 2), (16, 256, 4, 4), (32, 256, 8, 2))
"""Batch, context, query heads, KV heads."""
DIM = 16


def _first(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return engine_module(name)
        except AdapterUnavailable:
            continue
    return engine_module(names[-1])


def decode(module: Any, batch: int, context: int, heads: int, kv_heads: int) -> Make:
    lens, indptr, places, slots = history(batch, context)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(batch, heads, DIM, generator=generator)
    k, v = (torch.randn(slots, kv_heads, DIM, generator=generator) for _ in range(2))

    def make() -> tuple[Callable[[], None], Callable[[], list[bytes]]]:
        out = torch.zeros(batch, heads, DIM)
        logits = torch.zeros(batch, heads, SPLITS, DIM)
        lse = torch.zeros(batch, heads, SPLITS)
        splits = torch.full((batch,), SPLITS, dtype=torch.int32)

        def call() -> None:
            module.decode_attention_fwd(
                q, k, v, out, indptr, places, logits, lse, splits, SPLITS, DIM**-0.5, 1.0, 1.0
            )

        return call, lambda: bytes_of([out, logits, lse])

    return make


def main(version: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.path.insert(0, str(ensure("sglang", version)))
    attention = _first(
        "sglang.srt.layers.attention.triton_ops.decode_attention",
        "sglang.kernels.ops.attention.decode_attention",
    )
    writers = _first("sglang.srt.layers.attention.utils", "sglang.kernels.ops.attention.kv_indices")
    found: list[Measured] = []
    for batch, context, heads, kv_heads in SHAPES:
        name = f"decode, batch {batch}, context {context}, heads {heads}/{kv_heads}"
        found.append(measure(name, decode(attention, batch, context, heads, kv_heads), 3))
    kernel = writers.create_flashinfer_kv_indices_triton
    for batch in (4, 32):
        name = f"create_flashinfer_kv_indices_triton, batch {batch}, context 1024"
        found.append(measure(name, kv_writer(kernel, batch, 1024), 5))
    rows = [
        {"name": m.name, "stock": m.stock, "lanes": m.lanes, "equal": m.equal, "said": m.said}
        for m in found
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1])
