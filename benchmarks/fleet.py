"""How many more cases two shards of a fleet run than one in the same time.

    python benchmarks/fleet.py --seconds 60 --pairs 3 --write reports/fleet.md

One shard and two take turns on a Ray cluster that each run starts and ends, on the healthy built-in
engine with an empty corpus. Shards of one run draw different cases, so that cases count once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pages import add_write, publish

from fuzzgraph.fleet.ports import descendants
from fuzzgraph.run.events import RunSummary

BOUND = 1.8
"""Cases of two shards, in those of one."""


@dataclass(frozen=True)
class Seen:
    """What one run came to."""

    pairs: int
    cases: int
    processor: float
    """Seconds of a core that shards and engines had together."""
    load: float
    """Processes that wanted a core when the run began: other work on the machine."""


def run(shards: int, seconds: float, seed: int) -> Seen:
    """One run of a fleet, by the command line."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        out, corpus = Path(folder, "run"), Path(folder, "corpus")
        corpus.mkdir()
        words = [sys.executable, "-m", "fuzzgraph", "fleet", "run", "--shards", str(shards)]
        words += ["--time", f"{seconds:g}s", "--seed", str(seed), "--profile", "ci"]
        words += ["--corpus", str(corpus), "--out", str(out)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        busy = 0.0
        while process.poll() is None:
            busy = max(busy, processor(process.pid))
            time.sleep(0.25)
        if process.returncode:
            sys.exit(f"the fleet ended with exit code {process.returncode}")
        summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=RunSummary)
    return Seen(summary.coverage.pairs, summary.cases, busy, load)


def processor(driver: int) -> float:
    """Seconds of a core that the shards below a driver and their engines have had."""
    ticks = 0
    for shard in (pid for pid in descendants(driver) if "ray::Shard" in text_of(pid, "cmdline")):
        for pid in descendants(shard):
            fields = text_of(pid, "stat").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def text_of(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def rate(seen: Seen) -> float:
    """Cases for each second of a core."""
    return seen.cases / seen.processor


def page(pairs: list[tuple[Seen, Seen]], seconds: float, command: str) -> str:
    """The report."""
    ratios = [two.cases / one.cases for one, two in pairs]
    each = [2 * rate(two) / rate(one) for one, two in pairs]
    verdict = "kept" if statistics.median(ratios) >= BOUND else "not kept"
    lines = [
        "# Two shards against one",
        "",
        f"The healthy built-in engine on {os.cpu_count()} cores, each shard with its engine in a "
        f"process of its own, {seconds:g} s each,",
        "one shard and two in turns, an empty corpus, another seed for each pair:",
        "",
        f"    {command}",
        "",
        "| pair | shards | cases | pairs of values | core seconds | load |",
        "|---|---|---|---|---|---|",
    ]
    for number, pair in enumerate(pairs, 1):
        lines += [
            f"| {number} | {shards} | {seen.cases} | {seen.pairs} "
            f"| {seen.processor:.0f} | {seen.load:.1f} |"
            for shards, seen in enumerate(pair, 1)
        ]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    lines += [
        "",
        f"Cases of two shards in those of one: {shown}; median "
        f"{statistics.median(ratios):.2f}, bound {BOUND}: {verdict}.",
        "On a machine with other work shards do not get a core each; for the same time of a core",
        f"per shard the median is {statistics.median(each):.2f}.",
        "",
        "Shards of one run draw different cases. Pairs of dimension values, by which a corpus is",
        "minimised, run full soon and say little here.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    add_write(parser)
    asked = parser.parse_args()
    seconds = asked.seconds
    seeds = range(asked.seed, asked.seed + asked.pairs)
    pairs = [(run(1, seconds, seed), run(2, seconds, seed)) for seed in seeds]
    command = f"python benchmarks/fleet.py --seconds {asked.seconds:g} --pairs {asked.pairs}"
    text = page(pairs, asked.seconds, command)
    publish(text, asked)


if __name__ == "__main__":
    main()
