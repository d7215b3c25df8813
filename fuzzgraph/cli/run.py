"""`fuzzgraph run` and `resume`: a campaign in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fuzzgraph.cli.options import as_json, duration, say_summary, setup_options, whole_number
from fuzzgraph.cli.search import named_options, search_options

if TYPE_CHECKING:
    from fuzzgraph.campaign import Opened
    from fuzzgraph.campaign.resume import RunState, Trusted
    from fuzzgraph.corpus import Loaded
    from fuzzgraph.events import RunSummary
    from fuzzgraph.policy import FindingPolicy
    from fuzzgraph.run_spec import RunSpec

__all__ = ["resume", "run"]


@click.command()
@setup_options
@partial(search_options, profile="ci")
@click.option(
    "--findings", "max_findings", metavar="N", callback=whole_number(1), help="Stop after so many."
)
@as_json
def run(plan: RunSpec, out: Path | None, max_findings: int | None, as_json: bool) -> int:
    """Fuzz a target: the corpus first, then new cases until the budget is spent.

    Without --time and --examples it runs for 60 seconds. Ctrl-C finishes the case at hand and
    writes the report.
    """
    from fuzzgraph.campaign import fresh_folder, load_corpus, open_setup

    seeds = load_corpus(_named(plan.corpus))
    policy = _policy(plan)
    with closing(open_setup(plan.setup)) as opened:  # a wrong name is said before a folder is made
        plan = msgspec.structs.replace(
            plan,
            budget=msgspec.structs.replace(plan.budget, findings=max_findings),
            out=str(fresh_folder(out, plan.seed)),
        )
        summary = _fuzz(plan, opened, seeds, policy, as_json=as_json)
    return say_summary(summary, as_json=as_json)


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option("--time", "seconds", metavar="TIME", callback=duration, help="A new budget in all.")
@click.option("--shard", metavar="N", callback=whole_number(0), hidden=True)
@named_options
@as_json
def resume(
    folder: Path, seconds: float | None, shard: int | None, named: Trusted, as_json: bool
) -> int:
    """Go on with a run that was killed, with what is left of its budget. DIR is its folder.

    Of a run of several processes each is taken up by one; a fleet's run goes on on its cluster.
    """
    from fuzzgraph.campaign import load_corpus, open_setup
    from fuzzgraph.campaign.resume import load_run_state, resumed_spec
    from fuzzgraph.campaign.shards import resume_shards, shards_of
    from fuzzgraph.corpus import Loaded

    if (folder / "fleet.json").is_file():
        from fuzzgraph.cli.fleet import resume_fleet

        return resume_fleet(folder, seconds, None, named, as_json=as_json)
    shards = shards_of(folder)
    if shards > 1 and shard is None:
        return say_summary(resume_shards(folder, shards, seconds, named=named), as_json=as_json)
    state = load_run_state(folder, shard or 0, shards)
    named.check(folder, state.start.spec)
    plan = resumed_spec(state, folder, seconds)
    corpus = _named(plan.corpus)
    seeds = Loaded() if shards > 1 and corpus is None else load_corpus(corpus)
    policy = _policy(plan)
    with closing(open_setup(plan.setup)) as opened:
        summary = _fuzz(plan, opened, seeds, policy, state, as_json=as_json)
        if seconds is None and summary.reason == "time" and not plan.finish_only:
            state = load_run_state(folder, shard or 0, shards)
            if state.left:  # the old budget has no room for it, and a resume is to be enough
                plan = resumed_spec(state, folder)
                summary = _fuzz(plan, opened, seeds, policy, state, as_json=as_json)
    return say_summary(summary, as_json=as_json)


def _named(path: str) -> Path | None:
    return Path(path) if path else None


def _policy(plan: RunSpec) -> FindingPolicy:
    from fuzzgraph.policy import load_policy

    return load_policy(_named(plan.ledger), _named(plan.baseline), only_new=plan.only_new)


def _fuzz(
    plan: RunSpec,
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
        return run_campaign(plan, progress, seeds=seeds, opened=opened, policy=policy, state=state)
