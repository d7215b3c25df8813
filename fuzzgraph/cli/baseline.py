"""`fuzzgraph baseline`: the findings of earlier runs, as known ones."""

from __future__ import annotations

from pathlib import Path

import click

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.errors import UsageError


@click.command()
@click.argument("runs", metavar="DIR...", type=Path, nargs=-1, required=True)
@click.option("--out", type=Path, required=True, help="File to write, or to add to.")
@click.option("--fresh", is_flag=True, help="Forget what the file holds: only these runs count.")
@as_json
def baseline(runs: tuple[Path, ...], out: Path, fresh: bool, as_json: bool) -> int:
    """Write the findings of runs down as known.

    For --baseline and --only-new.
    """
    from fuzzgraph.baseline import baseline_text, known_of, load_baseline
    from fuzzgraph.campaign.reports import rebuilt
    from fuzzgraph.corpus import write_atomically

    if out.is_dir():
        raise UsageError(f"--out={str(out)!r} is a folder. Name a file, e.g. baseline.jsonl.")
    before = load_baseline(out) if out.exists() and not fresh else None
    known = dict(before.known) if before else {}
    for folder in runs:
        summary = rebuilt(folder)
        for name, entry in known_of(summary.findings, summary.started).items():
            known.setdefault(name, entry)
    write_atomically(out, baseline_text(known.values()))
    bad = before.bad_lines if before else ()
    if as_json:
        say_json({"path": str(out), "known": sorted(known), "bad": bad})
        return 0
    for line in bad:
        click.echo(f"left out: {line}", err=True)
    click.echo(f"{len(known)} known findings in {out}")
    return 0
