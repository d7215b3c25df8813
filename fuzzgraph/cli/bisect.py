"""`fuzzgraph bisect`: in which releases a case shows its finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fuzzgraph.case import load_case
from fuzzgraph.cli.options import as_json, case_argument, case_folders, say_json, whole_number
from fuzzgraph.corpus import find
from fuzzgraph.errors import UsageError
from fuzzgraph.text.finding_text import sentence

if TYPE_CHECKING:
    from fuzzgraph.bisect import Bisection, Boundary, ReleaseVerdict


@click.command()
@case_argument
@click.option("--package", required=True, help="Released package of the engine, e.g. sglang.")
@click.option("--good", required=True, metavar="VERSION", help="A release without the finding.")
@click.option("--bad", required=True, metavar="VERSION", help="A release with it.")
@click.option("--target", required=True, help="Engine under test.")
@click.option("--finding", default="", help="Id or oracle of the finding. [the first one]")
@click.option(
    "--times", metavar="N", default="3", show_default=True, callback=whole_number(1),
    help="Fresh sessions for each verdict.",
)  # fmt: skip
@as_json
def bisect(
    case: str,
    package: str,
    good: str,
    bad: str,
    target: str,
    finding: str,
    times: int,
    as_json: bool,
) -> int:
    """Find the releases in which a finding came in and went.

    Every release between two is asked.

    Releases that are not in the cache are fetched. Exit code 1: it was found, in `--bad` at least.
    """
    from fuzzgraph import releases
    from fuzzgraph.bisect import bisect as bisect_releases
    from fuzzgraph.bisect import release_range
    from fuzzgraph.run_options import checked_setup

    _check_package(target, package)
    setup = checked_setup(target)
    loaded = load_case(find(case, case_folders()))
    versions = release_range(releases.available(package), good, bad)
    width = max(map(len, versions))

    def tell(verdict: ReleaseVerdict) -> None:
        click.echo(f"{verdict.release.ljust(width)}  {_said(verdict)}", err=as_json)

    found = bisect_releases(
        loaded, setup, versions, good=good, bad=bad, wanted=finding, times=times, progress=tell
    )
    if as_json:
        say_json({"bisection": found, "exit_code": 1})
    else:
        click.echo(_end(found))
    return 1


def _check_package(target: str, package: str) -> None:
    from fuzzgraph.targets import open_target

    owner = getattr(open_target(target), "package", "")
    if owner != package:
        raise UsageError(
            f"--package={package!r}: target {target!r} comes in {owner or 'no package'!r}. "
            "Name a target of that package (see 'fuzzgraph targets')."
        )


def _said(verdict: ReleaseVerdict) -> str:
    return f"{verdict.verdict} {verdict.rate or verdict.why}"


def _end(found: Bisection) -> str:
    lines = [f"first broken: {_boundary(one, 'good')}" for one in found.broken]
    lines += [f"first fixed:  {_boundary(one, 'bad')}" for one in found.fixed]
    return "\n".join([f"finding: {sentence(found.finding)}", *lines])


def _boundary(one: Boundary, before: str) -> str:
    skipped = f"; skipped between them: {', '.join(one.skipped)}" if one.skipped else ""
    return f"{one.after} ({one.before} is {before}{skipped})"
