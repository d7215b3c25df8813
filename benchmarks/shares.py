"""Where the processor's time goes while a target runs drawn cases: shares by package.

Python's profiler makes calls dearer than they are, so read the shares as a rough order.

    python benchmarks/shares.py TARGET [--release sglang==0.5.23] [--cases 60]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fuzzgraph import releases
from fuzzgraph.case import EngineConfig
from fuzzgraph.compatibility import released_targets
from fuzzgraph.targets.packages import ENGINES

_ROOT = Path(__file__).resolve().parent.parent
_OUTSIDE = ("triton", "torch", "numpy")
_SMALLEST = 0.01
"""Shares below are left out of the table."""


def profiled(name: str, cases: int) -> pstats.Stats:
    """The profile of one block of drawn cases, in this process, after one that warms up."""
    from fuzzgraph.execution import Execution
    from fuzzgraph.strategies import CI, draw
    from fuzzgraph.strategies import cases as drawn
    from fuzzgraph.targets import open_target

    target = open_target(name)
    execution = Execution(target)
    profile = cProfile.Profile(time.process_time)

    def supports(config: EngineConfig) -> bool:
        return target.unsupported(config) is None

    for block in range(2):
        drawn_now = drawn(target.capabilities, CI.at(block), supports=supports)
        if block:
            profile.enable()
        draw(drawn_now, block, cases, execution.run_case)
    profile.disable()
    return pstats.Stats(profile)


def shares(stats: pstats.Stats) -> Counter[str]:
    """Package -> share of the time; what is built in counts for those who call it."""
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        if file == "~":
            for (caller, _, _), figures in callers.items():
                spent[package(caller)] += figures[2]
        else:
            spent[package(file)] += own
    total = sum(spent.values())
    return Counter({name: seconds / total for name, seconds in spent.items()})


def package(file: str) -> str:
    """What a source file belongs to."""
    path = Path(file)
    if path.is_relative_to(_ROOT / "fuzzgraph"):
        return "fuzzgraph/" + "/".join(path.relative_to(_ROOT / "fuzzgraph").parts[:-1])
    if path.is_relative_to(_ROOT) and ".venv" not in path.parts:
        return path.relative_to(_ROOT).parts[0]
    for engine in ENGINES:
        if engine.package in path.parts:
            return engine.package
    return next((each for each in _OUTSIDE if each in path.parts), "Python and others")


def table(name: str, path: Path, cases: int) -> list[str]:
    """The shares of a target as rows of a table, from a process of its own."""
    command = [sys.executable, __file__, name, "--cases", str(cases), "--here"]
    search = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    environment = dict(os.environ, PYTHONPATH=search, TRITON_INTERPRET="1", TQDM_DISABLE="1")
    done = subprocess.run(
        command, env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.splitlines()
    return [line for line in done if line.startswith("| ")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--release", default="sglang==0.5.23", metavar="PACKAGE==VERSION")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--here", action="store_true", help="the engine lies on the path")
    options = parser.parse_args()
    package, release = releases.parse(options.release)
    if options.here or options.target not in released_targets(package):
        for name, share in shares(profiled(options.target, options.cases)).most_common():
            if share >= _SMALLEST:
                print(f"| {name} | {share:.0%} |")
        return
    path = releases.ensure(package, release)
    print("\n".join(table(options.target, path, options.cases)))


if __name__ == "__main__":
    main()
