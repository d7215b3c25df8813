"""`fuzzgraph run` and `resume`: a campaign in the terminal."""

from __future__ import annotations

import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzgraph.cli.options import (
    as_json,
    duration,
    one_of,
    say_summary,
    setup_options,
    whole_number,
)
from fuzzgraph.errors import UsageError
from fuzzgraph.events import Setup

if TYPE_CHECKING:
    from fuzzgraph.campaign import Opened, Plan
    from fuzzgraph.campaign.resuming import Past
    from fuzzgraph.campaign.standing import Standing
    from fuzzgraph.corpus import Loaded

__all__ = ["resume", "run"]


@click.command()
@setup_options
@click.option(
    "--time", "seconds", metavar="TIME", callback=duration, help="How long, e.g. 60s, 10m, 8h."
)
@click.option("--examples", metavar="N", callback=whole_number(0), help="How many generated cases.")
@click.option(
    "--findings", "max_findings", metavar="N", callback=whole_number(1), help="Stop after so many."
)
@click.option("--seed", metavar="N", callback=whole_number(0), help="Same seed, same cases.")
@click.option(
    "--profile",
    metavar="[ci|nightly]",
    callback=one_of("ci", "nightly"),
    default="ci",
    show_default=True,
    help="How hard to try.",
)
@click.option("--corpus", "corpus_folder", type=Path, help="Cases to run first. [corpus/cases]")
@click.option("--ledger", type=Path, help="Tolerated and quarantined. [corpus/ledger.toml]")
@click.option("--baseline", type=Path, help="Findings that were there before.")
@click.option(
    "--database", default="", help="Share cases: dir:FOLDER, redis://HOST:PORT, github:OWNER/REPO."
)
@click.option("--only-new", is_flag=True, help="Exit with 1 for findings beyond --baseline only.")
@click.option("--out", type=Path, help="New folder of the run. [reports/runs/TIME-SEED]")
@as_json
def run(
    setup: Setup,
    seconds: float | None,
    examples: int | None,
    max_findings: int | None,
    seed: int | None,
    profile: str,
    corpus_folder: Path | None,
    ledger: Path | None,
    baseline: Path | None,
    database: str,
    only_new: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Fuzz a target: the corpus first, then new cases until the budget is spent.

    Without --time and --examples it runs for 60 seconds. Ctrl-C finishes the case at hand and
    writes the report.
    """
    from fuzzgraph.campaign import Budget, Plan, fresh_folder, load_corpus, open_setup
    from fuzzgraph.campaign.sharing import checked_database
    from fuzzgraph.campaign.standing import load_standing

    if only_new and baseline is None:
        raise UsageError("--only-new needs a baseline to be new against. Name it with --baseline.")
    checked_database(database, "--database")
    if seconds is None and examples is None:
        seconds = 60.0
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    seeds = load_corpus(corpus_folder)
    standing = load_standing(ledger, baseline, only_new=only_new)
    with closing(open_setup(setup)) as opened:  # a wrong name is said before a folder is made
        plan = Plan(
            setup=setup,
            seed=seed,
            budget=Budget(seconds, examples, max_findings),
            out=fresh_folder(out, seed),
            profile=profile,
            corpus=str(corpus_folder or ""),
            ledger=str(ledger or ""),
            baseline=str(baseline or ""),
            database=database,
            only_new=only_new,
        ).patient()
        return _run(plan, opened, seeds, standing, as_json=as_json)


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option("--time", "seconds", metavar="TIME", callback=duration, help="A new budget in all.")
@click.option("--shard", metavar="N", callback=whole_number(0), hidden=True)
@as_json
def resume(folder: Path, seconds: float | None, shard: int | None, as_json: bool) -> int:
    """Go on with a run that was killed, with what is left of its budget. DIR is its folder.

    Of a run of several processes each is taken up by one; a fleet's run goes on on its cluster.
    """
    from fuzzgraph.campaign import load_corpus, open_setup
    from fuzzgraph.campaign.resuming import past_of, resumed_plan
    from fuzzgraph.campaign.shards import resume_shards, shards_of
    from fuzzgraph.campaign.standing import load_standing
    from fuzzgraph.corpus import Loaded

    if (folder / "fleet.json").is_file():
        from fuzzgraph.cli.fleet import resume_fleet

        return resume_fleet(folder, seconds, None, as_json=as_json)
    shards = shards_of(folder)
    if shards > 1 and shard is None:
        return say_summary(resume_shards(folder, shards, seconds), as_json=as_json)
    past = past_of(folder, shard or 0, shards)
    plan = resumed_plan(past, folder, seconds).patient()
    named = Path(plan.corpus) if plan.corpus else None
    seeds = Loaded() if shards > 1 and named is None else load_corpus(named)
    standing = load_standing(*map(_named, (plan.ledger, plan.baseline)), only_new=plan.only_new)
    with closing(open_setup(plan.setup)) as opened:
        return _run(plan, opened, seeds, standing, past, as_json=as_json)


def _named(path: str) -> Path | None:
    return Path(path) if path else None


def _run(
    plan: Plan,
    opened: Opened,
    seeds: Loaded,
    standing: Standing,
    past: Past | None = None,
    *,
    as_json: bool,
) -> int:
    from fuzzgraph.campaign import hunt
    from fuzzgraph.reporting import progress_on

    with closing(progress_on(sys.stderr if as_json else sys.stdout)) as progress:
        summary = hunt(plan, progress, seeds=seeds, opened=opened, standing=standing, past=past)
    return say_summary(summary, as_json=as_json)
