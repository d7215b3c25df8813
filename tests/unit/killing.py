"""Kills a campaign over and over at chosen instants and lets it go on; prints what is left.

Run as a script: it forks, and a test process that has threads should not. An instant is a number of
function calls inside FuzzGraph, so that a kill hits between any two of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from fuzzgraph.campaign import run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.reports import rebuilt
from fuzzgraph.campaign.resume import load_run_state, resumed_spec
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.corpus import Entry, Loaded
from fuzzgraph.finding import Finding
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Setup
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget, case, finding

EXAMPLES = 80
CORPUS = [case(2, 1, page_size=16, seed=seed) for seed in range(4)]


def bugs(one: Case) -> tuple[Finding, ...]:
    """Four bugs, two of which first show together, and one that only the corpus shows."""
    seen = []
    if one.config.page_size > 1:
        seen.append(finding(buffer="paged"))
    if len(one.steps) > 2:
        seen.append(finding(buffer="long"))
    if any(len(step.rows) > 3 for step in one.steps):
        seen.append(finding(buffer="wide", oracle="history", clause="history"))
    if one.seed == 3 and len(one.steps) == 2:
        seen.append(finding(buffer="corpus only"))
    return tuple(seen)


WANTED = {"paged", "long", "wide", "corpus only"}


def campaign(out: Path) -> None:
    """Start the run, or go on with it."""
    opened = Opened(Setup(), FakeTarget(), FakeRunner(bugs), lambda: None)
    seeds = Loaded(entries=[Entry(Path(f"{i}.json"), c, digest(c)) for i, c in enumerate(CORPUS)])
    state = None
    plan = RunSpec(out=str(out), seed=1, budget=Budget(None, EXAMPLES), progress_seconds=0.0)
    if (out / "events.jsonl").exists() and (out / "events.jsonl").read_bytes().count(b"\n"):
        state = load_run_state(out)
        plan = msgspec.structs.replace(resumed_spec(state, out), progress_seconds=0.0)
    run_campaign(
        plan, lambda event: None, seeds=seeds, opened=opened, export=no_export, state=state
    )


def killed_after(calls: int, out: Path) -> bool:
    """Run in a child that kills itself after so many calls; whether it got that far."""
    child = os.fork()
    if child == 0:
        left = [calls]

        def count(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and "/fuzzgraph/" in frame.f_code.co_filename:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count if calls else None)
        campaign(out)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
        sys.exit(f"the campaign failed with {status}")
    return os.WIFSIGNALED(status)


def half_written(out: Path) -> list[str]:
    """Files of findings and of the corpus that cannot be read."""
    bad = []
    for path in [*out.glob("findings/*/*.json"), *out.glob("corpus/*.json")]:
        try:
            if path.name == "finding.json":
                json.loads(path.read_bytes())
            else:
                load_case(path)
        except Exception as error:
            bad.append(f"{path.name}: {error}")
    return bad


def main(out: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    # Warm: what is imported or cached on the way counts no calls in the children.
    warm = out.with_name(f"{out.name}-warm")
    warm.mkdir()
    killed_after(0, warm)
    out.mkdir()
    done, bad = 0, list[str]()
    for _ in range(kills):
        # Mostly soon after the start, where a resume has just been at work.
        done += killed_after(int(10 ** chance.uniform(0.0, 4.5)), out)
        bad += half_written(out)
    killed_after(0, out)
    summary = rebuilt(out)
    names = [reported.finding.buffer for reported in summary.findings]
    print(
        json.dumps(
            {
                "kills": done,
                "half_written": bad,
                "found": sorted(names),
                "lost": sorted(WANTED - set(names)),
                "cases": summary.cases,
                "reason": summary.reason,
                "corpus": len(list((out / "corpus").glob("*.json"))),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
