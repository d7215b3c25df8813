"""Runs a campaign without an engine and prints what it came to; the process of tests in which the
machine itself is against it."""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
from pathlib import Path

import msgspec

from fuzzgraph import corpus
from fuzzgraph.campaign import load_corpus, run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.resume import load_run_state, resumed_spec
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Setup
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget
from tests.unit.campaigns import many_bugs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--largest", type=int, help="bytes of a file, beyond which writes fail")
    asked = parser.parse_args()
    if asked.largest:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked.largest, asked.largest))
    opened = Opened(Setup(), FakeTarget(), FakeRunner(many_bugs), lambda: None)
    seeds = load_corpus(asked.corpus) if asked.corpus else None
    state = None
    plan = RunSpec(
        out=str(asked.out), seed=asked.seed, budget=Budget(None, 300), progress_seconds=0.0
    )
    if (asked.out / "events.jsonl").exists():
        state = load_run_state(asked.out)
        plan = msgspec.structs.replace(resumed_spec(state, asked.out, 600.0), progress_seconds=0.0)
    asked.out.mkdir(exist_ok=True)
    try:
        summary = run_campaign(
            plan, lambda event: None, seeds=seeds, opened=opened, export=no_export, state=state
        )
    except FuzzGraphError as error:
        print(json.dumps({"refused": str(error)}))
        return 2
    if asked.corpus:
        corpus.merge(asked.corpus, [asked.out / "corpus"])
        corpus.prune(asked.corpus)
    print(
        json.dumps(
            {
                "reason": summary.reason,
                "error": summary.error,
                "found": sorted(one.id for one in summary.findings),
                "bad": summary.bad_entries,
            }
        )
    )
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
