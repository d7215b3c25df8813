"""`fuzzgraph run`: a campaign in the terminal."""

from __future__ import annotations

import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzgraph.cli.options import as_json, duration, one_of, say_json, setup_options, whole_number
from fuzzgraph.events import Setup

if TYPE_CHECKING:
    from fuzzgraph.campaign import Opened, Plan
    from fuzzgraph.corpus import Loaded

__all__ = ["run"]


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
    out: Path | None,
    as_json: bool,
) -> int:
    """Fuzz a target: the corpus first, then new cases until the budget is spent.

    Without --time and --examples it runs for 60 seconds. Ctrl-C finishes the case at hand and
    writes the report.
    """
    from fuzzgraph.campaign import Budget, Plan, fresh_folder, load_corpus, open_setup

    if seconds is None and examples is None:
        seconds = 60.0
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    seeds = load_corpus(corpus_folder)
    with closing(open_setup(setup)) as opened:  # a wrong name is said before a folder is made
        plan = Plan(
            setup=setup,
            seed=seed,
            budget=Budget(seconds, examples, max_findings),
            out=fresh_folder(out, seed),
            profile=profile,
            shrink_seconds=60.0 if profile == "nightly" else 20.0,
            export_seconds=600.0 if profile == "nightly" else 240.0,
        )
        return _run(plan, opened, seeds, as_json=as_json)


def _run(plan: Plan, opened: Opened, seeds: Loaded, *, as_json: bool) -> int:
    from fuzzgraph.campaign import hunt
    from fuzzgraph.reporting import ending, progress_on

    with closing(progress_on(sys.stderr if as_json else sys.stdout)) as progress:
        summary = hunt(plan, progress, seeds=seeds, opened=opened)
    if as_json:
        say_json(summary)
    else:
        click.echo("\n" + ending(summary))
    return summary.exit_code
