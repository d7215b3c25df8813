"""Lanes against the stock interpreter, checks on: by kernel, on sglang releases, and a sanitizer.

Both run in one process, in turn, on the same arguments; every byte they leave is compared. Times
are processor seconds of one thread, so that other work on the machine does not count.

    python benchmarks/lanes/run.py [--rounds 3] [--sweep 100] [--viz PYTHON] [--write FILE]

`--viz` names the Python of an environment with triton-viz beside the same torch and Triton; that
part is left out without it. Releases of sglang are fetched; without their companions
(`make sglang`) that part is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import triton
from overrun import arguments, kv_indices
from released_kernels import released_section
from subjects import decode, indices, kv_writer, random_launches, test_kernels
from timing import Measured, measure

from fuzzgraph.lanes import lanes

HERE = Path(__file__).parent
SIZES = ((4, 64), (4, 1024), (16, 256), (32, 64), (32, 1024))
RELEASES = ("0.5.12", "0.5.23")
DRAWN = 12
"""Random launches of each kernel of the tests in one round."""


def table(found: Sequence[Measured]) -> list[str]:
    """One row for each subject."""
    lines = ["| what | stock, ms | lanes, ms | ratio | same bytes |", "|---|---|---|---|---|"]
    for each in found:
        low, high = min(each.ratios), max(each.ratios)
        lines.append(
            f"| {each.name} | {statistics.median(each.stock) * 1e3:.1f} |"
            f" {statistics.median(each.lanes) * 1e3:.1f} |"
            f" {each.ratio:.1f} (from {low:.1f} to {high:.1f}) | {'yes' if each.equal else 'NO'} |"
        )
    return lines


def decode_section(rounds: int) -> list[str]:
    found = [
        measure(f"batch {batch}, context {context}", decode(batch, context), rounds)
        for batch, context in SIZES
    ]
    head = "Paged decode attention in two stages, 8 query heads over 2 KV heads, ragged lengths."
    return ["## Decode attention", "", head, "", *table(found), ""]


def writer_section(rounds: int) -> list[str]:
    found = [
        measure(
            f"kv_indices, batch {batch}, context {context}",
            kv_writer(indices.kv_indices, batch, context, BLOCK=512),
            rounds,
            repeat=5,
        )
        for batch, context in ((4, 64), (4, 1024), (16, 256), (32, 1024))
    ]
    return ["## Writers of kv_indices", "", *table(found), ""]


def test_section(rounds: int) -> list[str]:
    found = [
        measure(name, random_launches(draw, name, DRAWN), rounds) for name, draw in test_kernels()
    ]
    found.sort(key=lambda each: each.ratio)
    head = (
        f"The first {DRAWN} random launches of each kernel of `tests/lanes`, grids of 1 to about 20"
        " programs: far too small for lanes to shine, here to see that nothing gets slower."
    )
    return ["## Every kernel of the tests, at their tiny sizes", "", head, "", *table(found), ""]


def release_section() -> list[str]:
    if importlib.util.find_spec("transformers") is None:
        return []
    lines = ["## Real kernels of sglang", ""]
    for version in RELEASES:
        said = subprocess.run(
            [sys.executable, str(HERE / "release.py"), version],
            check=True,
            capture_output=True,
            text=True,
        )
        rows = json.loads(said.stdout.splitlines()[-1])
        found = [
            Measured(
                row["name"],
                tuple(row["stock"]),
                tuple(row["lanes"]),
                row["equal"],
                tuple(row["said"]),
            )
            for row in rows
        ]
        told = sorted({line for each in found for line in each.said})
        lines += [f"Release {version}, its own launch code, 8 splits, head dimension 16:", ""]
        lines += [*table(found), ""]
        lines += [f"Reported: {'; '.join(told) or 'no access outside, no race, no fallback'}.", ""]
    return lines


def sanitizer_section(python: str) -> list[str]:
    batch, context, page_size = 4, 64, 16
    said = subprocess.run(
        [python, str(HERE / "sanitizer.py"), *map(str, (batch, context, page_size))],
        check=True,
        capture_output=True,
        text=True,
    )
    other = json.loads(said.stdout.splitlines()[-1])
    rows = [
        "| tool | with the bug | without it | ms, with and without |",
        "|---|---|---|---|",
        _tool_row(
            f"Triton-Viz {other['version']}, sanitizer",
            [f"{run['records']} records" for run in other["runs"]],
            [run["seconds"] for run in other["runs"]],
        ),
    ]
    found, seconds, example = [], [], ""
    for pages in (page_size, 1):
        values = arguments(batch, context, pages)
        with lanes() as report:
            kv_indices[(batch,)](*values)
            report.take_accesses()
            start = time.process_time()
            kv_indices[(batch,)](*values)
            seconds.append(time.process_time() - start)
        elements = sum(access.elements for access in report.accesses)
        found.append(f"{len(report.accesses)} record, {elements} elements" if elements else "none")
        example = example or "; ".join(map(str, report.accesses))
    rows.append(_tool_row("lanes", found, seconds))
    return [
        "## Against a sanitizer",
        "",
        f"The kv-indices writer with a buffer counted in pages of {page_size}: batch {batch},"
        f" context {context}, {batch * context} writes, {batch * context // page_size} fit. Both in"
        " this run, on the same machine. Triton-Viz decides by a solver whether some element can be"
        " outside and records one for each program and statement; it follows no loop bound that is"
        " computed from a loaded value, so the kernel here loops to the loaded value itself.",
        "",
        *rows,
        "",
        f"Lanes say: `{example}`",
        "",
    ]


def _tool_row(tool: str, found: Iterable[str], seconds: Iterable[float]) -> str:
    times = " and ".join(f"{each * 1e3:.1f}" for each in seconds)
    return f"| {tool} | {' | '.join(found)} | {times} |"


def sweep_section(count: int) -> list[str]:
    """Random launches of every kernel, bytes compared."""
    total = unequal = 0
    fallen: Counter[str] = Counter()
    for name, draw in test_kernels():
        for seed in range(1_000, 1_000 + count):
            launch = draw(np.random.default_rng([seed, *name.encode()]))
            other = launch.copy()
            launch.run()
            with lanes() as report:
                other.run()
            total += 1
            fallen.update(f"{kernel} ({reason})" for kernel, reason in report.fallbacks)
            unequal += launch.memory() != other.memory()
    return [
        "## Sweep",
        "",
        f"{total} random launches of {len(list(test_kernels()))} kernels, seeds that the tests do"
        f" not use: {total - unequal} leave the bytes of the stock interpreter, {unequal} do not."
        f" Fell back: {', '.join(f'{count} of {name}' for name, count in fallen.items())}.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", type=int, default=0, help="random launches of each kernel")
    parser.add_argument("--viz", help="Python of an environment with triton-viz")
    parser.add_argument("--write", type=Path, help="Markdown file to write as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    text = ""
    for section in _sections(options):
        print("\n".join(section), flush=True)
        text += "\n".join(section) + "\n"
    if options.write:
        aside = options.write.with_suffix(".new")
        aside.write_text(text.rstrip() + "\n")
        aside.replace(options.write)


def _sections(options: argparse.Namespace) -> Iterator[list[str]]:
    """Each as soon as it is done."""
    yield [
        "# Lanes against Triton's interpreter",
        "",
        f"Medians over {options.rounds} rounds (least to greatest) in one run, every access checked"
        " and every byte compared; processor milliseconds of one thread.",
        f"Triton {triton.__version__}, torch {torch.__version__}, numpy {np.__version__}, Python"
        f" {platform.python_version()}. Written by `make bench-lanes`.",
        "",
    ]
    if options.viz:
        yield sanitizer_section(options.viz)
    yield decode_section(options.rounds)
    yield writer_section(options.rounds)
    yield release_section()
    yield released_section()
    yield test_section(options.rounds)
    if options.sweep:
        yield sweep_section(options.sweep)


if __name__ == "__main__":
    main()
