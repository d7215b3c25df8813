"""`fuzzgraph report`: the reports of a run again, from its event log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzgraph.cli.entry import RUN_FAILED
from fuzzgraph.cli.options import as_json, one_of, say_json
from fuzzgraph.text.escaping import one_line

if TYPE_CHECKING:
    from fuzzgraph.reporting.formats import Format


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option(
    "--as",
    "kind",
    metavar="[html|junit|sarif|markdown|json]",
    callback=one_of("html", "junit", "sarif", "markdown", "json"),
    help="Only this one. [all of them]",
)
@click.option("--out", type=Path, help="File to write, with --as. [in DIR]")
@click.option("--history", type=Path, help="Folder of earlier runs, for the trend. [beside DIR]")
@as_json
def report(
    folder: Path, kind: Format | None, out: Path | None, history: Path | None, as_json: bool
) -> int:
    """Make the reports of a run again.

    DIR is its folder; the run may have been interrupted.

    Ends with exit code 3 where the log is damaged, since the reports then do not tell all.
    """
    from fuzzgraph.campaign.reports import gathered, rebuilt, write_reports
    from fuzzgraph.corpus import write_atomically
    from fuzzgraph.errors import UsageError
    from fuzzgraph.reporting.formats import FORMATS
    from fuzzgraph.reporting.formats import report as written

    if out is not None and kind is None:
        raise UsageError(f"--out={str(out)!r} needs one report. Say which with --as.")
    summary = rebuilt(folder)
    code = RUN_FAILED if summary.damaged else 0
    if out is not None and kind is not None:
        write_atomically(out, written(kind, summary, gathered(folder, summary, history)))
        paths = [out]
    else:
        kinds = FORMATS if kind is None else (kind,)
        paths = write_reports(folder, summary, kinds=kinds, history=history)
    if as_json:
        names = [str(path) for path in paths]
        say_json(
            {
                "folder": str(folder),
                "paths": names,
                "bad": summary.bad_entries,
                "damaged": summary.damaged,
            }
        )
        return code
    for path in paths:
        click.echo(path)
    for line in summary.bad_entries:
        click.echo(one_line(f"left out: {line}"), err=True)
    for line in summary.damaged:
        click.echo(one_line(f"damaged: {line}"), err=True)
    return code
