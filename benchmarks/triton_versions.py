"""Runs the lanes under every version of Triton that they claim, and writes what came out.

    python benchmarks/triton_versions.py --write reports/triton.md

Each version is fetched into a folder of its own and put first on the path. Then: `tests/lanes`
(the bytes of that version's own interpreter, accesses, races, the switch), the healthy built-in
engine with Triton attention, and a planted kernel that reads out of bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pages import add_write, publish

from fuzzgraph.lanes.versions import TESTED_TRITON

ROOT = Path(__file__).resolve().parents[1]
FAULT = "vllm-pr-57158-gather-past-the-lengths"
OLDER_NUMPY = "2.3.5"
"""The last one with which Triton 3.6.0 runs loops whose bounds are tensors."""

_NOTES = """\
`tests/lanes` holds up to {launches} random launches of each kernel against the same version's own
interpreter, byte for byte, and plants accesses and races. The healthy engine is
`fuzzgraph run --target builtin-triton --time {time} --seed 1`, the planted load
`fuzzgraph run --fault {fault} --findings 1 --seed 1`. {jobs} versions
ran at a time, on a machine with other work: the speeds say that lanes are in use, and compare
nothing.

Skipped is what a version itself cannot run, so that there is nothing to compare with: Triton 3.6.0
loops over bounds that are tensors only before numpy 2.4 (hence its second row), and from 3.9.0 on
there are no block pointers."""


@dataclass(frozen=True)
class Row:
    """What one version showed."""

    triton: str
    numpy: str
    tests: dict[str, int]
    healthy: dict[str, Any]
    planted: dict[str, Any]

    @property
    def good(self) -> bool:
        """Whether every test passed, the healthy engine is clean, and the planted kernel found."""
        broken = self.tests.get("failed", 0) + self.tests.get("error", 0)
        caught = "stray_access" in self.planted["symptoms"]
        clean = not self.healthy["symptoms"] and not self.healthy["unchecked"]
        return bool(self.tests.get("passed")) and not broken and clean and caught


def fetched(triton: str, numpy: str, folder: Path) -> Path:
    """The folder of a version; fetched where it is not there yet."""
    place = folder / (f"{triton}-numpy-{numpy}" if numpy else triton)
    if not place.is_dir():
        wanted = [f"triton=={triton}", *([f"numpy=={numpy}"] if numpy else [])]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(place), *wanted], check=True)
    return place


def row_of(asked: argparse.Namespace, triton: str, numpy: str = "") -> Row:
    """Fetch a version and run everything with it."""
    place = fetched(triton, numpy, asked.folder)
    environment = {
        **os.environ,
        "PYTHONPATH": str(place),
        "OMP_NUM_THREADS": "1",
        "FUZZGRAPH_LAUNCHES": str(asked.launches),
    }
    run = partial(
        subprocess.run, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = run([sys.executable, "-c", "import triton; print(triton.__version__)"]).stdout.strip()
    assert found == triton, f"{place} holds Triton {found}, wanted {triton}"
    row = Row(
        triton,
        numpy or version("numpy"),
        _tests(run, triton),
        _run(run, "--target", "builtin-triton", "--time", asked.time),
        _run(run, "--fault", FAULT, "--findings", "1", "--time", "120s"),
    )
    print(_line(row), file=sys.stderr, flush=True)
    return row


def _tests(run: Any, triton: str) -> dict[str, int]:
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    said = run([*pytest, "--timeout", "600", "tests/lanes"]).stdout
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", said.splitlines()[-1])
    for line in said.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"{triton}: {line}", file=sys.stderr, flush=True)
    return {name: int(count) for count, name in counts}


def _run(run: Any, *arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "fuzzgraph", "run", "--seed", "1", "--json"]
        ran = run([*command, "--out", f"{out}/run", *arguments])
        try:
            summary = json.loads((Path(out) / "run" / "summary.json").read_text())
        except FileNotFoundError:
            raise SystemExit(f"{' '.join(arguments)} did not run: {ran.stderr[-2000:]}") from None
    symptoms = [found["finding"]["symptom"] for found in summary["findings"]]
    return {**summary, "symptoms": symptoms, "unchecked": summary.get("unchecked", {})}


def _line(row: Row) -> str:
    tests = ", ".join(f"{count} {name}" for name, count in row.tests.items())
    healthy = row.healthy
    checked = "; ".join(healthy["unchecked"]) or "accesses, races"
    planted = "found" if "stray_access" in row.planted["symptoms"] else "NOT FOUND"
    return (
        f"| {row.triton} | {row.numpy} | {tests} | {len(healthy['symptoms'])} in"
        f" {healthy['cases']} cases | {healthy['rate']:.1f} | {checked} | {planted} |"
    )


def page(rows: list[Row], asked: argparse.Namespace) -> str:
    """The table, and below it what limits it."""
    import torch

    return "\n".join(
        (
            "# Triton versions",
            "",
            "Written by `make triton-versions`. Each version lay in a folder of its own, first on",
            f"the path, beside torch {torch.__version__}, Python {platform.python_version()}.",
            "",
            "| Triton | numpy | `tests/lanes` | findings on the healthy engine | cases a second"
            " | checked | planted out-of-bounds load |",
            "|---|---|---|---|---|---|---|",
            *map(_line, rows),
            "",
            *_NOTES.format(fault=FAULT, **vars(asked)).splitlines(),
            "",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=TESTED_TRITON, help="[all tested ones]")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "fuzzgraph-triton"
    )
    parser.add_argument("--launches", type=int, default=40, help="of each kernel")
    parser.add_argument("--time", default="40s", help="for the healthy engine")
    parser.add_argument("--jobs", type=int, default=1, help="versions at a time")
    add_write(parser)
    asked = parser.parse_args()
    wanted = [(one, "") for one in asked.versions]
    wanted += [(one, OLDER_NUMPY) for one in asked.versions if one == "3.6.0"]
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda pair: row_of(asked, *pair), sorted(wanted)))
    publish(page(rows, asked), asked)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
