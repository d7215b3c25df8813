"""Counts how much of the Triton kernels of released engines runs over lanes.

    python benchmarks/lanes/released_kernels.py [--write reports/lanes.md]
    python benchmarks/lanes/released_kernels.py --engine NAME [--sm 9.0] [--only CALL,...]

The first call prints the section of the report, and puts it in its place there. The second one
prints what came of each call as JSON. Fetches the releases; an engine without its companions (`make
sglang`, `make vllm`) is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2])]

from released.device import VERSIONS, companions  # noqa: E402
from released.page import TITLE, section  # noqa: E402
from released.processes import run_rows  # noqa: E402
from released.tables import rows  # noqa: E402

CAPABILITIES = ("8.0", "9.0")


def released_section() -> list[str]:
    """Runs all calls of all engines; empty where no engine's companions are there."""
    found = {
        (engine, capability): _run(engine, capability)
        for engine in VERSIONS
        if companions(engine)
        for capability in CAPABILITIES
    }
    return section(found, VERSIONS) if found else []


def _run(engine: str, capability: str) -> list[Any]:
    command = [sys.executable, str(HERE), "--engine", engine, "--sm", capability]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def put_in_place(page: Path, lines: Sequence[str]) -> None:
    """Replace the section in a page, or put it at its end."""
    before, _, rest = page.read_text().partition(f"{TITLE}\n")
    _, mark, after = rest.partition("\n## ")
    parts = [before.rstrip(), "\n".join(lines).strip()]
    if mark:
        parts.append(f"{mark.strip()} {after}".rstrip())
    text = "\n\n".join(parts) + "\n"
    aside = page.with_suffix(".new")
    aside.write_text(text)
    aside.replace(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(VERSIONS), help="print JSON of this engine's")
    parser.add_argument("--sm", default="9.0", help="claimed compute capability")
    parser.add_argument("--only", default="", help="names of calls, with commas between")
    parser.add_argument("--write", type=Path, help="page whose section is written")
    options = parser.parse_args()
    if not options.engine:
        lines = released_section()
        print("\n".join(lines))
        if options.write and lines:
            put_in_place(options.write, lines)
        return
    major, minor = map(int, options.sm.split("."))
    only = set(filter(None, options.only.split(",")))
    chosen = [row for row in rows(options.engine) if not only or row.name in only]
    for seen in run_rows(options.engine, (major, minor), chosen):
        print(json.dumps(asdict(seen)), flush=True)


if __name__ == "__main__":
    main()
