"""Whether memory stays flat: fuzzes the built-in engine and watches the process's resident set.

The figure that counts is how far the largest resident set of the rest lies above the largest of the
first five minutes, when caches fill. It is taken after every case.

    python benchmarks/memory.py [--minutes 30] [--write reports/memory.md]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pages import add_write, publish

from fuzzgraph.case import Case, encode_case
from fuzzgraph.execution import Execution
from fuzzgraph.strategies import DEFAULT, block_size, cases, draw
from fuzzgraph.targets import open_target

_SETTLED_SECONDS = 300.0


def resident_mib() -> float:
    """Resident set of this process in MiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def watch(minutes: float) -> tuple[list[tuple[float, int, float]], int]:
    """Fuzz for so long; returns (seconds, cases, largest MiB) of each block, and the findings."""
    execution = Execution(open_target("builtin"))
    samples: list[tuple[float, int, float]] = []
    begin = time.monotonic()
    run = findings = 0
    peak = 0.0

    def one(case: Case) -> None:
        nonlocal run, findings, peak
        if time.monotonic() - begin < 60 * minutes:
            if found := execution.run_case(case).findings:
                findings += 1
                print(f"{found[0].message}\n{encode_case(case).decode()}", file=sys.stderr)
            run += 1
            peak = max(peak, resident_mib())

    block = 0
    while time.monotonic() - begin < 60 * minutes:
        draw(cases(execution.target.capabilities, DEFAULT.at(block)), block, block_size(block), one)
        samples.append((time.monotonic() - begin, run, peak))
        peak, block = 0.0, block + 1
    return samples, findings


def report(samples: list[tuple[float, int, float]], findings: int) -> str:
    """The figures as Markdown: about a dozen samples, and the growth."""
    first = max(mib for seconds, _, mib in samples if seconds <= _SETTLED_SECONDS)
    growth = max(mib for _, _, mib in samples) / first - 1
    shown = samples[:: max(1, len(samples) // 12)]
    rows = [f"| {seconds / 60:.1f} | {count} | {mib:.0f} |" for seconds, count, mib in shown]
    return "\n".join(
        [
            "# Memory of a long run on the built-in engine",
            "",
            f"{samples[-1][1]} cases in {samples[-1][0] / 60:.0f} minutes, {findings} findings.",
            f"Largest resident set: {first:.0f} MiB in five minutes, {growth:+.1%} later.",
            "Written by `python benchmarks/memory.py`.",
            "",
            "| minutes | cases | largest MiB of the block |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    add_write(parser)
    options = parser.parse_args()
    text = report(*watch(options.minutes))
    publish(text, options)


if __name__ == "__main__":
    main()
