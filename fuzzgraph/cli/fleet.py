"""`fuzzgraph fleet run` and `resume`: one run over the machines of a Ray cluster."""

from __future__ import annotations

import secrets
import sys
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
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
    from fuzzgraph.campaign import Plan
    from fuzzgraph.fleet.cluster import RayCluster

__all__ = ["fleet", "resume_fleet"]


@click.group()
def fleet() -> None:
    """Fuzz on many machines: one shard for each GPU or core of a Ray cluster."""


@fleet.command()
@partial(setup_options, here=False, default_isolation="on")
@click.option(
    "--time", "seconds", metavar="TIME", callback=duration, help="How long, e.g. 60s, 10m, 8h."
)
@click.option("--examples", metavar="N", callback=whole_number(0), help="How many generated cases.")
@click.option("--seed", metavar="N", callback=whole_number(0), help="Same seed, same cases.")
@click.option(
    "--profile",
    metavar="[ci|nightly]",
    callback=one_of("ci", "nightly"),
    default="nightly",
    show_default=True,
    help="How hard to try.",
)
@click.option("--shards", metavar="N", callback=whole_number(1), help="[one per GPU or core]")
@click.option("--address", default="", help="HOST:PORT or auto of a cluster. [one started here]")
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
    seed: int | None,
    profile: str,
    shards: int | None,
    address: str,
    corpus_folder: Path | None,
    ledger: Path | None,
    baseline: Path | None,
    database: str,
    only_new: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Fuzz a target with many shards at once, and make one report of them.

    Shards that are lost are started again; a driver that was killed is taken up by 'fleet resume'.
    Without --time and --examples it runs for 60 seconds.
    """
    from fuzzgraph.campaign import Budget, Plan, fresh_folder
    from fuzzgraph.campaign.opening import check_names
    from fuzzgraph.campaign.sharing import checked_database
    from fuzzgraph.campaign.standing import DEFAULT_LEDGER
    from fuzzgraph.fleet.cluster import require_ray

    checked_database(database, "--database")
    check_names(setup)
    if only_new and baseline is None:
        raise UsageError("--only-new needs a baseline to be new against. Name it with --baseline.")
    if seconds is None and examples is None:
        seconds = 60.0
    if ledger is None and DEFAULT_LEDGER.is_file():
        ledger = DEFAULT_LEDGER
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    plan = Plan(
        setup=setup,
        seed=seed,
        budget=Budget(seconds, examples),
        profile=profile,
        corpus=str(corpus_folder or ""),
        ledger=str(ledger or ""),
        baseline=str(baseline or ""),
        database=database,
        only_new=only_new,
    )
    require_ray()
    plan = replace(plan, out=fresh_folder(out, seed).resolve())
    return _drive(plan, address, shards, as_json=as_json)


@fleet.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option("--time", "seconds", metavar="TIME", callback=duration, help="A new budget in all.")
@click.option("--address", help="HOST:PORT or auto of a cluster. [as before]")
@as_json
def resume(folder: Path, seconds: float | None, address: str | None, as_json: bool) -> int:
    """Go on with a fleet's run whose driver was killed. DIR is its folder."""
    return resume_fleet(folder, seconds, address, as_json=as_json)


def resume_fleet(folder: Path, seconds: float | None, address: str | None, *, as_json: bool) -> int:
    """Take up the run in a folder, on the cluster that it had unless another one is named."""
    from fuzzgraph.fleet.cluster import require_ray
    from fuzzgraph.fleet.run import fleet_of

    record = fleet_of(folder)
    if record is None:
        raise UsageError(f"{folder}: holds no fleet.json. Name the folder of a fleet's run.")
    require_ray()
    plan = record.plan(folder.resolve(), seconds)
    where = record.address if address is None else address
    return _drive(plan, where, None, more=seconds is not None, as_json=as_json)


def _drive(
    plan: Plan, address: str, shards: int | None, *, more: bool = False, as_json: bool
) -> int:
    from fuzzgraph.campaign import load_corpus
    from fuzzgraph.campaign.standing import load_standing
    from fuzzgraph.fleet.cluster import ray_cluster
    from fuzzgraph.fleet.run import run_fleet
    from fuzzgraph.reporting import progress_on

    seeds = load_corpus(Path(plan.corpus) if plan.corpus else None)
    ledger, baseline = (Path(name) if name else None for name in (plan.ledger, plan.baseline))
    standing = load_standing(ledger, baseline, only_new=plan.only_new)

    def join(count: int | None) -> AbstractContextManager[RayCluster]:
        return ray_cluster(address, count, plan.setup.device)

    with closing(progress_on(sys.stderr if as_json else sys.stdout)) as progress:
        summary = run_fleet(
            plan,
            join,
            progress,
            address=address,
            shards=shards,
            more=more,
            seeds=seeds,
            standing=standing,
        )
    return say_summary(summary, as_json=as_json)
