"""Counts how much of the Triton kernels of released engines runs over lanes.

    python benchmarks/lanes/released_kernels.py [--engine NAME] [--sm 9.0] [--only ROW,...] [--json]

Fetches the releases; an engine without its companions (`make sglang`, `make vllm`) is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from released.processes import run_rows  # noqa: E402
from released.tables import rows  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--sm", default="9.0", help="claimed compute capability")
    parser.add_argument("--only", default="", help="names of rows, with commas")
    options = parser.parse_args()
    major, minor = map(int, options.sm.split("."))
    only = set(filter(None, options.only.split(",")))
    chosen = [row for row in rows(options.engine) if not only or row.name in only]
    for seen in run_rows(options.engine, (major, minor), chosen):
        print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    main()
