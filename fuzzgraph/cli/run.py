"""`fuzzgraph run` and `resume`: a campaign in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fuzzgraph.cli.options import (
    as_json,
    new_budget,
    say_summary,
    spec_options,
    trusted_options,
    whole_number,
)
from fuzzgraph.cli.source_hint import source_hint
from fuzzgraph.text.escaping import visible

if TYPE_CHECKING:
    from fuzzgraph.campaign import Opened
    from fuzzgraph.campaign.resume import Trusted
    from fuzzgraph.corpus import Loaded
    from fuzzgraph.policy import FindingPolicy
    from fuzzgraph.run.events import RunSummary
    from fuzzgraph.run.spec import RunSpec, Setup
    from fuzzgraph.run.state import RunState


@click.command()
@partial(spec_options, verb="run")
@as_json
def run(spec: RunSpec, as_json: bool) -> int:
    """Fuzz a target.

    The corpus first, then new cases until the budget is spent.
    Without --time and --examples it runs for 60 seconds. Ctrl-C finishes the case at hand and
    writes the report.
    """
    from fuzzgraph.campaign import fresh_folder, load_corpus, open_setup
    from fuzzgraph.targets import open_target

    seeds = load_corpus(_named(spec.corpus))
    policy = _policy(spec)
    own = ":" in spec.setup.target  # of the caller's own code nothing runs here before it is opened
    if not own:
        _propose_source(spec.setup, open_target(spec.setup.target))
    with closing(open_setup(spec.setup)) as opened:  # a wrong name is said before a folder is made
        if own:
            _propose_source(spec.setup, opened.target)
        spec = msgspec.structs.replace(spec, out=str(fresh_folder(_named(spec.out), spec.seed)))
        summary = _run(spec, opened, seeds, policy, as_json=as_json)
    return say_summary(summary, as_json=as_json)


def _propose_source(setup: Setup, target: object) -> None:
    if hint := source_hint(setup, target):
        click.echo(f"fuzzgraph: {visible(hint)}", err=True)


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@new_budget
@click.option("--shard", metavar="N", callback=whole_number(0), hidden=True)
@trusted_options
@as_json
def resume(
    folder: Path, seconds: float | None, shard: int | None, trusted: Trusted, as_json: bool
) -> int:
    """Resume an interrupted run.

    DIR is its folder. It goes on with what is left of its budget. Multi-process runs resume with
    one process per shard; fleet runs resume on their cluster.
    """
    from fuzzgraph.campaign import load_corpus, open_setup
    from fuzzgraph.campaign.resume import load_run_state, resumed_spec
    from fuzzgraph.campaign.shards import resume_shards, shards_of
    from fuzzgraph.corpus import Loaded

    if (folder / "fleet.json").is_file():
        from fuzzgraph.cli.fleet import resume_fleet

        return resume_fleet(folder, seconds, None, trusted, as_json=as_json)
    shards = shards_of(folder)
    if shards > 1 and shard is None:
        return say_summary(resume_shards(folder, shards, seconds, named=trusted), as_json=as_json)
    state = load_run_state(folder, shard or 0, shards)
    trusted.check(folder, state.start.spec)
    spec = resumed_spec(state, folder, seconds)
    corpus = _named(spec.corpus)
    seeds = Loaded() if shards > 1 and corpus is None else load_corpus(corpus)
    policy = _policy(spec)
    with closing(open_setup(spec.setup)) as opened:
        summary = _run(spec, opened, seeds, policy, state, as_json=as_json)
        if seconds is None and summary.reason == "time" and not spec.finish_only:
            state = load_run_state(folder, shard or 0, shards)
            if state.left:  # the old budget has no room for it, and a resume is to be enough
                spec = resumed_spec(state, folder)
                summary = _run(spec, opened, seeds, policy, state, as_json=as_json)
    return say_summary(summary, as_json=as_json)


def _named(path: str) -> Path | None:
    return Path(path) if path else None


def _policy(spec: RunSpec) -> FindingPolicy:
    from fuzzgraph.policy import load_policy

    return load_policy(_named(spec.ledger), _named(spec.baseline), only_new=spec.only_new)


def _run(
    spec: RunSpec,
    opened: Opened,
    seeds: Loaded,
    policy: FindingPolicy,
    state: RunState | None = None,
    *,
    as_json: bool,
) -> RunSummary:
    from fuzzgraph.campaign import run_campaign
    from fuzzgraph.reporting import progress_on

    with closing(progress_on(sys.stderr if as_json else sys.stdout)) as progress:
        return run_campaign(spec, progress, seeds=seeds, opened=opened, policy=policy, state=state)
