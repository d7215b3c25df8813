"""`fuzzgraph fleet run` and `resume`: one run over the machines of a Ray cluster."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, closing
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
from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from fuzzgraph.campaign.resume import Trusted
    from fuzzgraph.fleet.cluster import RayCluster
    from fuzzgraph.run.spec import RunSpec


@click.group()
def fleet() -> None:
    """Fuzz on the machines of a Ray cluster.

    One shard for each GPU or core.
    """


@fleet.command()
@partial(spec_options, verb="fleet run", here=False, isolation="on", profile="nightly")
@click.option(
    "--shards",
    metavar="N",
    callback=whole_number(1),
    help="How many.  [default: one for each GPU or core]",
)
@click.option(
    "--address",
    default="",
    help="HOST:PORT or auto of a running cluster.  [default: one started here]",
)
@as_json
def run(spec: RunSpec, shards: int | None, address: str, as_json: bool) -> int:
    """Fuzz a target with many shards at once, and make one report of them.

    Shards that are lost are started again; a driver that was killed is taken up by 'fleet resume'.
    Without --time and --examples it runs for 60 seconds.
    """
    from fuzzgraph.campaign import fresh_folder
    from fuzzgraph.fleet.cluster import require_ray
    from fuzzgraph.open_target import check_names
    from fuzzgraph.policy import DEFAULT_LEDGER

    check_names(spec.setup)
    if not spec.ledger and DEFAULT_LEDGER.is_file():
        spec = msgspec.structs.replace(spec, ledger=str(DEFAULT_LEDGER))
    require_ray(address)
    named = Path(spec.out) if spec.out else None
    spec = msgspec.structs.replace(spec, out=str(fresh_folder(named, spec.seed).resolve()))
    return _drive(spec, address, shards, as_json=as_json)


@fleet.command()
@click.argument("folder", metavar="DIR", type=Path)
@new_budget
@click.option("--address", help="HOST:PORT or auto of a cluster.  [default: as before]")
@trusted_options
@as_json
def resume(
    folder: Path, seconds: float | None, address: str | None, trusted: Trusted, as_json: bool
) -> int:
    """Resume an interrupted fleet run.

    DIR is its folder.
    """
    return resume_fleet(folder, seconds, address, trusted, as_json=as_json)


def resume_fleet(
    folder: Path, seconds: float | None, address: str | None, trusted: Trusted, *, as_json: bool
) -> int:
    """Take up the run in a folder, on the cluster that it had unless another one is named."""
    from fuzzgraph.fleet.cluster import require_ray
    from fuzzgraph.fleet.run import fleet_of

    record = fleet_of(folder)
    if record is None:
        raise UsageError(f"{folder}: holds no fleet.json. Name the folder of a fleet's run.")
    trusted.check(folder, record.spec)
    where = record.address if address is None else address
    require_ray(where)
    spec = record.resumed(folder.resolve(), seconds)
    return _drive(spec, where, None, more=seconds is not None, as_json=as_json)


def _drive(
    spec: RunSpec, address: str, shards: int | None, *, more: bool = False, as_json: bool
) -> int:
    from fuzzgraph.campaign import load_corpus
    from fuzzgraph.fleet.cluster import ray_cluster
    from fuzzgraph.fleet.run import run_fleet
    from fuzzgraph.policy import load_policy
    from fuzzgraph.reporting import progress_on

    seeds = load_corpus(Path(spec.corpus) if spec.corpus else None)
    ledger, baseline = (Path(name) if name else None for name in (spec.ledger, spec.baseline))
    standing = load_policy(ledger, baseline, only_new=spec.only_new)

    def join(count: int | None) -> AbstractContextManager[RayCluster]:
        return ray_cluster(address, count, spec.setup.device)

    with closing(progress_on(sys.stderr if as_json else sys.stdout)) as progress:
        summary = run_fleet(
            spec,
            join,
            progress,
            address=address,
            shards=shards,
            more=more,
            seeds=seeds,
            standing=standing,
        )
    return say_summary(summary, as_json=as_json)
