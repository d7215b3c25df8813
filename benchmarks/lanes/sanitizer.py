"""Triton-Viz's sanitizer on a kv-indices writer whose buffer counts pages; prints JSON.

Runs in an environment that has triton-viz beside the same torch and Triton:

    PYTHON benchmarks/lanes/sanitizer.py BATCH CONTEXT PAGE_SIZE
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton_viz
from overrun import arguments, kv_indices
from triton_viz.clients import Sanitizer


def main(batch: int, context: int, page_size: int) -> None:
    found = []
    for pages in (page_size, 1):
        sanitizer = Sanitizer(abort_on_error=False)
        kernel = triton_viz.trace(sanitizer)(kv_indices)
        values = arguments(batch, context, pages)
        shown = io.StringIO()
        start = time.process_time()
        with contextlib.redirect_stdout(shown):
            kernel[(batch,)](*values)
        seconds = time.process_time() - start
        records = getattr(sanitizer, "records", [])
        lines = [line for line in shown.getvalue().splitlines() if line.strip()]
        found.append({"seconds": seconds, "records": len(records), "text": lines[:12]})
    print(json.dumps({"version": getattr(triton_viz, "__version__", "?"), "runs": found}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*map(int, sys.argv[1:4]))
