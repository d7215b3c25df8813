"""`python -m fuzzgraph.faults`: score all planted faults, and store what came out.

    python -m fuzzgraph.faults --cases corpus/faults --table docs/faults.md

rewrites the stored cases and the table between the markers of the document. Plain scores are
`fuzzgraph faults`' business.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from fuzzgraph.case import encode_case
from fuzzgraph.faults.catalogue import FAULTS
from fuzzgraph.faults.scoring import FaultScore, Score, score
from fuzzgraph.faults.table import in_document


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


def _store_cases(result: Score, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in result.faults:
        if one.case is not None:
            text = msgspec.json.format(encode_case(one.case), indent=2)
            (folder / f"{one.name}.json").write_bytes(text + b"\n")


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
        _store_cases(result, asked.cases)
    if asked.scores:
        asked.scores.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    if asked.table:
        asked.table.write_text(in_document(result, asked.table.read_text("utf-8")), "utf-8")
    missed = [one.name for one in result.faults if not one.found]
    print(f"{len(result.faults)} faults, missed: {missed or 'none'}; healthy: {result.healthy}")
    return 1 if missed or result.healthy.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
