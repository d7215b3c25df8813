"""Healthy cases on the recorder and on the emulated device: how many verdicts differ.

python -m benchmarks.emulated --target builtin --examples 1000 --seed 7
"""

from __future__ import annotations

import argparse
import time

from fuzzgraph.targets import open_target
from tests.quality.agreement import on_drawn_cases


def main() -> int:
    """Print one line, and one for each case that differs; 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="builtin")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    start = time.process_time()
    agreement = on_drawn_cases(lambda: open_target(asked.target), asked.seed, asked.examples)
    print(
        f"{asked.target}, seed {asked.seed}: {agreement.cases} cases, "
        f"{agreement.accused} with a finding, {len(agreement.different)} verdicts differ, "
        f"{time.process_time() - start:.0f} s of processor time"
    )
    for case, recorder, emulated in agreement.different:
        print(f"recorder {recorder}, emulated {emulated}: {case.config}")
    return bool(agreement.different)


if __name__ == "__main__":
    raise SystemExit(main())
