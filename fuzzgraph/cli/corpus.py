"""`fuzzgraph corpus`: list, add, merge, prune, minimise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click

from fuzzgraph import corpus as store
from fuzzgraph.case import Case, load_case
from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.errors import UsageError
from fuzzgraph.shipped import case_folders

_DEFAULT = Path("corpus/cases")
_folder = click.option(
    "--folder",
    type=Path,
    default=_DEFAULT,
    show_default=True,
    help="Folder of the corpus.",
)


@click.group()
def corpus() -> None:
    """Saved cases, one file each, named by their content."""


@corpus.command("list")
@click.argument("folder", type=Path, default=None, required=False)
@as_json
def list_(folder: Path | None, as_json: bool) -> int:
    """Show the cases of a folder, else those that a run starts with; bad entries are named."""
    loaded = store.load(folder) if folder else store.load_saved()
    where = str(folder) if folder else " and ".join(map(str, case_folders()))
    if as_json:
        say_json({"folder": where, "cases": _records(loaded), "bad": loaded.bad_lines})
        return 0
    for entry in loaded.entries:
        click.echo(f"{entry.digest}  {_summary(entry)}  {entry.path}")
    _say_bad(loaded.bad_lines)
    click.echo(f"{len(loaded.entries)} cases in {where}")
    return 0


def _records(loaded: store.Loaded) -> list[dict[str, object]]:
    return [
        {
            "digest": entry.digest,
            "path": str(entry.path),
            "steps": len(entry.case.steps),
            "modes": sorted({step.mode for step in entry.case.steps}),
        }
        for entry in loaded.entries
    ]


def _summary(entry: store.Entry) -> str:
    modes = ",".join(sorted({step.mode for step in entry.case.steps}))
    return f"{len(entry.case.steps):>2} steps  {modes}"


def _say_bad(bad: list[str]) -> None:
    for line in bad:
        click.echo(f"left out: {line}", err=True)


@corpus.command()
@click.argument("cases", metavar="CASE...", type=Path, nargs=-1, required=True)
@_folder
@as_json
def add(cases: tuple[Path, ...], folder: Path, as_json: bool) -> int:
    """Save cases in the corpus; all are checked before any is written."""
    loaded = [load_case(path) for path in cases]
    paths = [store.add(folder, case) for case in loaded]
    if as_json:
        say_json({"folder": str(folder), "paths": [str(path) for path in paths]})
    for path in paths if not as_json else []:
        click.echo(path)
    return 0


@corpus.command()
@click.argument("sources", metavar="FOLDER...", type=Path, nargs=-1, required=True)
@_folder
@as_json
def merge(sources: tuple[Path, ...], folder: Path, as_json: bool) -> int:
    """Add the cases of other folders, for example of a run: reports/runs/NAME/corpus."""
    merged = store.merge(folder, sources)
    if as_json:
        added = [str(path) for path in merged.added]
        say_json(
            {"folder": str(folder), "added": added, "known": merged.known, "bad": merged.bad_lines}
        )
        return 0
    _say_bad(merged.bad_lines)
    click.echo(f"{len(merged.added)} added to {folder}, {merged.known} were there already")
    return 0


@corpus.command()
@click.argument("folder", type=Path, default=_DEFAULT)
@click.option("--malformed", is_flag=True, help="Also remove entries that cannot be read.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@as_json
def prune(folder: Path, malformed: bool, dry_run: bool, as_json: bool) -> int:
    """Remove second copies of a case and the files of killed writes."""
    gone = store.prune(folder, malformed=malformed, dry_run=dry_run)
    if as_json:
        names = [str(path) for path in gone]
        say_json({"folder": str(folder), "removed": names, "dry_run": dry_run})
        return 0
    for path in gone:
        click.echo(f"{'would remove' if dry_run else 'removed'} {path}")
    click.echo(f"{len(gone)} files {'to remove' if dry_run else 'removed'}")
    return 0


@corpus.command()
@click.argument("folder", type=Path, default=_DEFAULT)
@click.option("--target", default="", help="Also keep a case for each finding on this target.")
@click.option("--fault", default="", help="The same with this fault planted.")
@click.option("--release", default="", help="Release of the target's engine, e.g. 0.5.12.")
@click.option("--branches", is_flag=True, help="Also keep a case for each branch of the engine.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@as_json
def minimise(
    folder: Path,
    target: str,
    fault: str,
    release: str,
    branches: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove cases that cover no pair of dimension values which others do not cover.

    Cases named by a person stay. With --target or --fault every case is run, and the clauses that
    it breaks are part of what it covers; with --branches so are the branches that it takes in the
    engine's Python.
    """
    if branches and not (target or fault):
        raise UsageError("--branches needs a target to run the cases on. Name it with --target.")
    with _covered(target, fault, release, branches=branches) as features:
        gone = store.minimise(folder, features, dry_run=dry_run)
    if as_json:
        names = [str(path) for path in gone]
        say_json({"folder": str(folder), "removed": names, "dry_run": dry_run})
        return 0
    for path in gone:
        click.echo(f"{'would remove' if dry_run else 'removed'} {path}")
    click.echo(f"{len(gone)} cases {'to remove' if dry_run else 'removed'}")
    return 0


@contextmanager
def _covered(
    target: str, fault: str, release: str, *, branches: bool
) -> Iterator[Callable[[Case], set[Hashable]]]:
    """What a case covers: its dimension values, their pairs, and what it breaks and which branches
    of the engine it takes where it is run."""
    from fuzzgraph.coverage_values import coverage_values
    from fuzzgraph.run.coverage import pairs_of

    def words(case: Case) -> set[Hashable]:
        names = coverage_values(case)
        return {*names, *pairs_of(names)}

    if not (target or fault):
        yield words
        return
    from fuzzgraph.campaign import open_setup
    from fuzzgraph.run_options import checked_setup

    setup = checked_setup(target or "builtin", release=release, fault=fault)
    with closing(open_setup(setup, branches=branches)) as opened:

        def as_run(case: Case) -> set[Hashable]:
            verdict = opened.runner.run_case(case)
            broken = {(finding.clause, finding.key) for finding in verdict.findings}
            return words(case) | broken | set(map(sys.intern, verdict.branches))

        yield as_run
