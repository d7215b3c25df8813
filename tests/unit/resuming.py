"""Takes up one shard of a run on a target without an engine: a process that a test starts."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzzgraph.campaign import run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.resume import load_run_state, resumed_spec
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, FakeTarget
from tests.unit.campaigns import many_bugs


def main(out: Path, shard: int) -> int:
    state = load_run_state(out, shard, 2)
    opened = Opened(Setup(), FakeTarget(), FakeRunner(many_bugs), lambda: None)
    plan = resumed_spec(state, out)
    return run_campaign(
        plan, lambda event: None, opened=opened, export=no_export, state=state
    ).exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
