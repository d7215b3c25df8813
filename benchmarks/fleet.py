"""How much more two shards of a fleet see than one in the same time.

    python benchmarks/fleet.py --seconds 60 --pairs 3 --write reports/fleet.md

One shard and two take turns on a Ray cluster that each run starts and ends, on the healthy built-in
engine with an empty corpus. What is counted are distinct coverage states: different sets of
dimension values that a case had, as `fuzzgraph.coverage` names and counts them (HyperLogLog,
standard error 1.6%; two shards' counters are merged, so that a state seen by both counts once).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzzgraph.events import RunSummary

BOUND = 1.8
"""Distinct states of two shards, in those of one."""


@dataclass(frozen=True)
class Seen:
    """What one run came to."""

    states: int
    pairs: int
    cases: int
    seconds: float
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
        done = subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit(f"the fleet ended with exit code {done.returncode}")
        summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=RunSummary)
    coverage = summary.coverage
    return Seen(coverage.states, coverage.pairs, summary.cases, summary.seconds, load)


def page(pairs: list[tuple[Seen, Seen]], seconds: float, command: str) -> str:
    """The report."""
    ratios = [two.states / one.states for one, two in pairs]
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
        "| pair | shards | distinct states | pairs of dimension values | cases | load at begin |",
        "|---|---|---|---|---|---|",
    ]
    for number, pair in enumerate(pairs, 1):
        lines += [
            f"| {number} | {shards} | {seen.states} | {seen.pairs} | {seen.cases} "
            f"| {seen.load:.1f} |"
            for shards, seen in enumerate(pair, 1)
        ]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    lines += [
        "",
        f"Distinct states of two shards in those of one: {shown}; median "
        f"{statistics.median(ratios):.2f}, bound {BOUND}: {verdict}.",
        "",
        "A state is the set of all dimension values that a case had, such as `page_size=16` and",
        "`mode draft`. Each set counts once, however many cases had it in both shards together.",
        "Counted by HyperLogLog with a standard error of 1.6%. Pairs of dimension values, by which",
        "a corpus is minimised, run full soon and say little here.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="file of the report [stdout]")
    asked = parser.parse_args()
    seconds = asked.seconds
    seeds = range(asked.seed, asked.seed + asked.pairs)
    pairs = [(run(1, seconds, seed), run(2, seconds, seed)) for seed in seeds]
    command = f"python benchmarks/fleet.py --seconds {asked.seconds:g} --pairs {asked.pairs}"
    text = page(pairs, asked.seconds, command)
    if asked.write:
        asked.write.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
