"""`python -m fuzzgraph.faults`: score all planted faults, and store what came out.

    python -m fuzzgraph.faults --cases corpus/faults --table docs/faults.md

rewrites the table between the markers of the document, and those stored cases that no longer show
their fault or that a simpler case replaces. Plain scores are `fuzzgraph faults`' business.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from fuzzgraph.case import Case, encode_case, load_case
from fuzzgraph.execution import Execution
from fuzzgraph.faults.catalogue import FAULTS, fault_named, open_fault, setup_of
from fuzzgraph.faults.scoring import FaultScore, score
from fuzzgraph.faults.table import in_document
from fuzzgraph.strategies.minimise import complexity


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzzgraph.faults", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(FAULTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--healthy", type=int, default=1000)
    parser.add_argument("--cases", type=Path, help="folder for the shrunk cases")
    parser.add_argument("--table", type=Path, help="document whose table is rewritten")
    parser.add_argument("--scores", type=Path, help="JSON file for all figures")
    return parser.parse_args()


def _say(one: FaultScore) -> None:
    mark = "" if one.found else f"  MISSED in some seed ({one.found_in} found it)"
    print(
        f"{one.name}: {one.examples} examples, {one.seconds} s, {one.steps} steps, "
        f"{one.requests} requests, {', '.join(one.oracles)}{mark}",
        file=sys.stderr,
        flush=True,
    )


def store(path: Path, name: str, found: Case) -> None:
    """Writes the case found, unless one as simple is stored there and still shows the fault."""
    if path.exists():
        stored = load_case(path)
        if complexity(stored) <= complexity(found) and _shows(name, stored):
            return
    path.write_bytes(msgspec.json.format(encode_case(found), indent=2) + b"\n")


def _shows(name: str, case: Case) -> bool:
    execution = Execution(open_fault(name), setup_of(fault_named(name)))
    try:
        return bool(execution.run_case(case).findings)
    finally:
        execution.close()


def main() -> int:
    """Exit code 1 where a fault was missed or the healthy engine accused."""
    asked = _arguments()
    result = score(
        asked.names,
        seeds=asked.seeds,
        max_examples=asked.examples,
        healthy_cases=asked.healthy,
        progress=_say,
    )
    if asked.cases:
        asked.cases.mkdir(parents=True, exist_ok=True)
        for one in result.faults:
            if one.case is not None:
                store(asked.cases / f"{one.name}.json", one.name, one.case)
    if asked.scores:
        asked.scores.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    if asked.table:
        asked.table.write_text(in_document(result, asked.table.read_text("utf-8")), "utf-8")
    missed = [one.name for one in result.faults if not one.found]
    print(f"{len(result.faults)} faults, missed: {missed or 'none'}; healthy: {result.healthy}")
    return 1 if missed or result.healthy.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
