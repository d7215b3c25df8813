"""Runs drawn cases of targets where host and device are two memories; a process of its own.

    python -m tests.targets.sglang.in_two_memories RELEASE CASES TARGET [TARGET ...]

prints a line of JSON for each target: how many cases ran, and what a device would have refused.
With `--plant` a step's past is written from the host, as it was once.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from fuzzgraph import releases
from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.ports import Target, load_engine
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.worker.bytecode import import_engine_from
from tests.two_memories import TwoMemories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release")
    parser.add_argument("cases", type=int)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    installed = {entry.version: entry.path for entry in releases.installed("sglang")}
    import_engine_from([str(installed[asked.release])], Setup(target=asked.targets[0]))
    if asked.plant:
        _plant()
    for name in asked.targets:
        print(json.dumps({"target": name, **_run(name, asked.cases, asked.seed)}), flush=True)


def _run(name: str, count: int, seed: int) -> dict[str, Any]:
    target, ran = open_target(name), 0
    load_engine(target)
    with TwoMemories().watching() as memories:
        execution = Execution(target, Setup(target=name))
        for case in drawn(target, count, seed):
            ran += not execution.run_case(case).skipped
        execution.close()
    return {"ran": ran, "mixed": [f"{each.line}: {each.what}" for each in memories.mixings]}


def drawn(target: Target, count: int, seed: int) -> list[Case]:
    """The first cases that a seed draws for a target, on configs that it opens."""
    found: list[Case] = []
    strategy = cases(
        target.capabilities,
        DEFAULT.at(seed),
        supports=lambda config: target.unsupported(config) is None,
    )
    draw(strategy, seed, count, found.append)
    return found


def _plant() -> None:
    from fuzzgraph.targets.sglang import runner_session

    runner_session._where_it_goes = lambda *written: written


if __name__ == "__main__":
    main()
