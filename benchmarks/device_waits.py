"""How often a step makes the host wait for a device, counted on the emulated one.

python -m benchmarks.device_waits builtin sglang-triton --release 0.5.23 --examples 10 --seed 5
"""

from __future__ import annotations

import argparse
from collections import Counter

from fuzzgraph import releases
from fuzzgraph.execution import Execution
from fuzzgraph.ports import load_engine
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target
from fuzzgraph.worker.bytecode import import_engine_from
from tests.device_waits import DeviceWaits
from tests.targets.sglang.in_two_memories import drawn
from tests.two_memories import TwoMemories


def main() -> None:
    """Print a line for each target: waits of a step, and by what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--release", default="", help="of sglang, for its targets")
    parser.add_argument("--examples", type=int, default=10)
    parser.add_argument("--seed", type=int, default=5)
    asked = parser.parse_args()
    if asked.release:
        path = releases.ensure("sglang", asked.release)
        import_engine_from([str(path)], Setup(target=asked.targets[-1]))
    for name in asked.targets:
        steps, seen = _waits(name, asked.seed, asked.examples)
        by = ", ".join(f"{what} {count / steps:.1f}" for what, count in seen.most_common())
        print(f"{name}: {steps} steps, {seen.total() / steps:.1f} waits a step: {by}", flush=True)


def _waits(name: str, seed: int, examples: int) -> tuple[int, Counter[str]]:
    """Steps of drawn cases and their waits; sessions are open by then."""
    target, steps = open_target(name), 0
    some = drawn(target, examples, seed)
    load_engine(target)
    with TwoMemories().watching() as memories:
        execution = Execution(target, Setup(target=name, graphs="emulated"))
        for case in some:
            execution.run_case(case)
        with DeviceWaits(memories).counting() as seen:
            for case in some:
                steps += execution.run_case(case).steps
        execution.close()
    return steps, seen


if __name__ == "__main__":
    main()
