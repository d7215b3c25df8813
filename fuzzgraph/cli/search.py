"""The options of a search, which `run` and `fleet run` share, as one plan."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuzzgraph.cli.options import duration, one_of, whole_number, with_options
from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from fuzzgraph.run_spec import Profile, Setup

__all__ = ["named_options", "search_options"]

F = TypeVar("F", bound=Callable[..., Any])

_SECONDS = 60.0
"""How long a search without a budget runs."""


def search_options(command: F, *, profile: str) -> F:
    """What to search with and how long, as one `plan`, and the run's folder as `out`.

    The plan has no folder yet: one is made once nothing can be refused any more.

    Args:
        command: takes `plan`, `out` and what other options give; the setup is in the plan.
        profile: that of a search without the option.
    """

    def gather(
        setup: Setup,
        seconds: float | None,
        examples: int | None,
        seed: int | None,
        profile: Profile,
        corpus_folder: Path | None,
        ledger: Path | None,
        baseline: Path | None,
        database: str,
        only_new: bool,
        **rest: Any,
    ) -> object:
        from fuzzgraph.case_database import checked_database
        from fuzzgraph.run_spec import Budget, RunSpec

        if only_new and baseline is None:
            raise UsageError(
                "--only-new needs a baseline to be new against. Name it with --baseline."
            )
        plan = RunSpec(
            setup=setup,
            seed=secrets.randbelow(1 << 31) if seed is None else seed,
            budget=Budget(_SECONDS if seconds is None and examples is None else seconds, examples),
            profile=profile,
            corpus=str(corpus_folder or ""),
            ledger=str(ledger or ""),
            baseline=str(baseline or ""),
            database=checked_database(database, "--database"),
            only_new=only_new,
        ).with_profile_times()
        return command(plan=plan, **rest)

    return with_options(gather, command, (*_BUDGET, _profile(profile), *_STANDING))


_BUDGET = (
    click.option(
        "--time", "seconds", metavar="TIME", callback=duration, help="How long, e.g. 60s, 10m, 8h."
    ),
    click.option(
        "--examples", metavar="N", callback=whole_number(0), help="How many generated cases."
    ),
    click.option("--seed", metavar="N", callback=whole_number(0), help="Same seed, same cases."),
)
_STANDING = (
    click.option(
        "--corpus", "corpus_folder", type=Path, help="Run these cases first, not the saved ones."
    ),
    click.option("--ledger", type=Path, help="Tolerated and quarantined. [corpus/ledger.toml]"),
    click.option("--baseline", type=Path, help="Findings that were there before."),
    click.option(
        "--database",
        default="",
        help="Share cases: dir:FOLDER, redis://HOST:PORT, github:OWNER/REPO.",
    ),
    click.option(
        "--only-new", is_flag=True, help="Exit with 1 for findings beyond --baseline only."
    ),
    click.option("--out", type=Path, help="New folder of the run. [reports/runs/TIME-SEED]"),
)


def named_options(command: F) -> F:
    """What a resumed run's log may not decide by itself, as `named`."""

    def gather(target: str | None, database: str | None, **rest: Any) -> object:
        from fuzzgraph.campaign.resume import Trusted

        return command(named=Trusted(target, database), **rest)

    return with_options(gather, command, _NAMED)


_NAMED = (
    click.option(
        "--target", metavar="TARGET", help="As before; a module:factory has to be named again."
    ),
    click.option("--database", metavar="DB", help="As before; it has to be named again."),
)


def _profile(default: str) -> Callable[[F], F]:
    return click.option(
        "--profile",
        metavar="[ci|nightly]",
        callback=one_of("ci", "nightly"),
        default=default,
        show_default=True,
        help="How hard to try.",
    )
