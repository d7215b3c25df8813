"""`fuzzgraph bisect`: in which releases, or by which commits, a finding came in and went."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from fuzzgraph.case import load_case
from fuzzgraph.cli.options import (
    as_json,
    case_argument,
    case_folders,
    say_json,
    setup_options,
    whole_number,
)
from fuzzgraph.corpus import find
from fuzzgraph.errors import UsageError
from fuzzgraph.text.finding_text import sentence
from fuzzgraph.text.numbers import counted

if TYPE_CHECKING:
    from fuzzgraph.bisect import Answer, Bisection, Boundary, Line
    from fuzzgraph.run.spec import Setup


@click.command()
@case_argument
@partial(setup_options, leave=("release", "tree", "fault", "sanitizer"))
@click.option(
    "--good", required=True, metavar="REF|VERSION",
    help="A commit of --source, or a release, without the finding.",
)  # fmt: skip
@click.option("--bad", required=True, metavar="REF|VERSION", help="One with it.")
@click.option(
    "--releases", "only", metavar="VERSION,...", default="",
    help="Ask no other releases than these.  [default: all between the two]",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Ask every one between the two.")
@click.option("--finding", default="", help="Id or oracle of the finding. [the first one]")
@click.option(
    "--times", metavar="N", default="3", show_default=True, callback=whole_number(1),
    help="Fresh sessions for each answer.",
)  # fmt: skip
@as_json
def bisect(
    case: str,
    setup: Setup,
    good: str,
    bad: str,
    only: str,
    every: bool,
    finding: str,
    times: int,
    as_json: bool,
) -> int:
    """Find the commit or release by which a finding came or went.

    With --source the commits of a checkout are asked, in worktrees; else releases, and those that
    are not in the cache are fetched. Half of the rest is ruled out by each run.

    Exit code 1: it was found, in `--bad` at least.
    """
    from fuzzgraph.bisect import bisect as bisect_line
    from fuzzgraph.bisect.search import most_runs

    loaded = load_case(find(case, case_folders()))
    line = _line(setup, good, bad, only)
    runs = most_runs(len(line.points), every=every)
    click.echo(f"{len(line.points)} {line.about}; {_told(runs, every=every)}", err=as_json)

    def tell(answer: Answer) -> None:
        click.echo(_said(line, answer), err=as_json)

    found = bisect_line(loaded, line, wanted=finding, times=times, every=every, progress=tell)
    if as_json:
        say_json({"bisection": found, "exit_code": 1})
    else:
        click.echo(_end(line, found))
    return 1


def _line(setup: Setup, good: str, bad: str, only: str) -> Line:
    from fuzzgraph.bisect import commit_line, release_line

    if not setup.source:
        return release_line(setup, good, bad, only.split(",") if only else ())
    if only:
        raise UsageError(
            f"--releases={only!r} and --source={setup.source!r}: name one of them, releases or a "
            "checkout."
        )
    return commit_line(setup, good, bad)


def _told(runs: int, *, every: bool) -> str:
    if every:
        return counted(runs, "run")
    return f"at most {counted(runs, 'run')} if each can run the case"


def _said(line: Line, answer: Answer) -> str:
    shown = {point.name: point.short for point in line.points}
    width = max(map(len, shown.values()))
    said = f"{answer.verdict} {answer.rate or answer.why}"
    subject = f"  {answer.subject}" if answer.subject else ""
    return f"{shown[answer.point].ljust(width)}  {said}{subject}"


def _end(line: Line, found: Bisection) -> str:
    lines = [f"first broken: {_boundary(line, one, 'good')}" for one in found.broken]
    lines += [f"first fixed:  {_boundary(line, one, 'bad')}" for one in found.fixed]
    return "\n".join([f"finding: {sentence(found.finding)}", *lines, *_not_asked(found)])


def _not_asked(found: Bisection) -> list[str]:
    left = len(found.points) - len(found.answers)
    if not left:
        return []
    return [
        f"asked {len(found.answers)} of {len(found.points)}; a finding that went and came back "
        "among the others would not be seen: --all asks every one"
    ]


def _boundary(line: Line, one: Boundary, before: str) -> str:
    points = {point.name: point for point in line.points}
    subject = points[one.after].subject
    named = f"{points[one.after].short}{f' {subject!r}' if subject else ''}"
    between = ", ".join(points[name].short for name in one.skipped)
    skipped = f"; skipped between them: {between}" if between else ""
    return f"{named} ({points[one.before].short} is {before}{skipped})"
