"""`fuzzgraph known-bugs`: bugs of released engines, and whether the fuzzer finds them there."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzgraph.cli.options import as_json, duration, say_json, whole_number
from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuzzgraph.known_bugs import BugScore, KnownBug, Other, ReleaseResult, Search
    from fuzzgraph.run.events import RunSummary

_names = click.argument("names", metavar="[NAME]...", nargs=-1)
_catalogue = click.option("--catalogue", type=Path, help="Folder of another catalogue.")


@click.group()
def known_bugs() -> None:
    """Bugs that released engines had."""


def _chosen(catalogue: Path | None, names: Sequence[str]) -> dict[str, KnownBug]:
    from fuzzgraph.known_bugs import chosen, default_catalogue, load

    return chosen(load(catalogue or default_catalogue()), names)


@known_bugs.command("list")
@_names
@_catalogue
@as_json
def list_(names: tuple[str, ...], catalogue: Path | None, as_json: bool) -> int:
    """Show the catalogue: all bugs, or those named."""
    bugs = _chosen(catalogue, names)
    if as_json:
        say_json({"known_bugs": [{"name": name, **_record(bug)} for name, bug in bugs.items()]})
        return 0
    width = max(map(len, bugs), default=0)
    for name, bug in bugs.items():
        where = (
            f"{bug.target} {_span(bug.broken)}" if bug.broken else f"not driven: {bug.not_driven}"
        )
        click.echo(f"{name.ljust(width)}  {where}")
    return 0


def _record(bug: KnownBug) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.to_builtins(bug))


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


@known_bugs.command()
@_names
@click.option(
    "--time",
    "seconds",
    metavar="TIME",
    default="120s",
    show_default=True,
    callback=duration,
    help="For each release.",
)
@click.option(
    "--seed", metavar="N", default="1", show_default=True, callback=whole_number(0),
    help="Same seed, same cases.",
)  # fmt: skip
@click.option(
    "--jobs", metavar="N", callback=whole_number(1),
    help="Releases fuzzed at a time.  [default: as many as this process has cores]",
)  # fmt: skip
@click.option("--only", metavar="TARGET==RELEASE[+overlap]", help="Fuzz this release alone.")
@click.option("--out", type=Path, help="New folder of the runs. [reports/runs/TIME-SEED]")
@_catalogue
@as_json
def run(
    names: tuple[str, ...],
    seconds: float,
    seed: int,
    jobs: int | None,
    only: str | None,
    out: Path | None,
    catalogue: Path | None,
    as_json: bool,
) -> int:
    """Fuzz the broken and the fixed releases of all known bugs, or of those named.

    Exit code 1 says that a bug was missed in a broken release or came up in a fixed one, 3 that
    a run failed.
    """
    from fuzzgraph.campaign import fresh_folder
    from fuzzgraph.known_bugs import SubprocessRunner, default_catalogue, score, searches_for

    bugs = _chosen(catalogue, names)
    if only is not None:
        bugs = _on_one_release(bugs, only)
    jobs = min(jobs or _cores(), max(1, len(searches_for(bugs))))
    folder = fresh_folder(out, seed)
    width = max(map(len, bugs), default=0)

    def progress(name: str, seen: ReleaseResult, wanted: bool) -> None:
        click.echo(f"{name.ljust(width)}  {_line(seen, wanted)}", err=as_json)

    if jobs == 1:
        fuzz = _FuzzRelease(seconds, seed, folder, single=only is not None)
        scores, others = score(bugs, fuzz, progress)
    else:
        options = ["--time", f"{seconds}s", "--seed", str(seed)]
        options += ["--catalogue", str(catalogue or default_catalogue())]
        with SubprocessRunner(options, folder) as in_processes:
            scores, others = score(bugs, in_processes, progress, jobs=jobs)
    code = 1 if _failed(scores) else 0
    if as_json:
        say_json({"known_bugs": scores, "others": others, "seed": seed, "exit_code": code})
    else:
        click.echo(_end(scores, others))
    return code


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_one_release(bugs: dict[str, KnownBug], only: str) -> dict[str, KnownBug]:
    """Those bugs that are sought on a target's release, as if there were no other release.

    Raises:
        UsageError: none is; lists where they are.
    """
    import msgspec

    from fuzzgraph.known_bugs import searches_for

    searches = {search.name: search for search in searches_for(bugs)}
    if only not in searches:
        raise UsageError(
            f"only={only!r}: no bug is sought there. Use one of: {', '.join(searches) or 'none'}."
        )
    found, there = searches[only], (searches[only].release,)
    return {
        name: msgspec.structs.replace(
            bug,
            broken=there if name in found.has else (),
            fixed=there if name in found.lacks else (),
        )
        for name, bug in bugs.items()
        if name in found.has or name in found.lacks
    }


class _FuzzRelease:
    """The ordinary campaign, in a worker for each release, without the corpus.

    Args:
        single: whether one release is all, and `out` the folder of its run.
    """

    def __init__(self, seconds: float, seed: int, out: Path, *, single: bool) -> None:
        self._seconds, self._seed, self._out, self._single = seconds, seed, out, single

    def __call__(self, search: Search) -> RunSummary:
        from fuzzgraph.campaign import open_setup, run_until_found
        from fuzzgraph.known_bugs import run_folder
        from fuzzgraph.run.spec import Budget, RunSpec
        from fuzzgraph.run_options import checked_setup

        setup = checked_setup(search.target, release=search.release, overlap=search.overlap)
        folder = self._out if self._single else run_folder(self._out, search)
        with closing(open_setup(setup)) as opened:
            folder.mkdir(parents=True, exist_ok=True)
            budget, out = Budget(self._seconds), str(folder)
            plan = RunSpec(setup=setup, seed=self._seed, budget=budget, out=out)
            return run_until_found(plan, opened, search.bug_of, search.wanted)


def _line(seen: ReleaseResult, wanted: bool) -> str:
    if wanted and not seen.found:
        return f"{seen.release:<14} MISSED in {seen.cases} cases {seen.message}".rstrip()
    if wanted:
        return (
            f"{seen.release:<14} found    {seen.seconds:>6.1f} s {seen.after_cases:>6} cases  "
            f"{seen.steps} steps {seen.requests} requests  {seen.clause}: {seen.buffer or '-'}"
        )
    if seen.clause:
        return f"{seen.release:<14} FALSE ALARM  {seen.message}"
    return f"{seen.release:<14} silent in {seen.cases} cases"


def _failed(scores: Sequence[BugScore]) -> bool:
    driven = [one for one in scores if not one.not_driven]
    return any((one.broken and not one.found) or one.false_alarms for one in driven)


def _end(scores: Sequence[BugScore], others: Sequence[Other]) -> str:
    driven = [one for one in scores if one.broken]
    found = sum(one.found for one in driven)
    alarms = sum(one.false_alarms for one in scores)
    lines = [f"not driven: {one.name} ({one.not_driven})" for one in scores if one.not_driven]
    lines += [f"also in {one.target} {one.release}: {one.message}" for one in others]
    lines.append(
        f"{found} of {len(driven)} known bugs found in every broken release; "
        f"{alarms} false alarms on fixed ones"
    )
    return "\n".join(lines)
