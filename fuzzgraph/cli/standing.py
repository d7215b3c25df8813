"""`fuzzgraph ledger` and `baseline`: what is known of findings before a run."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.errors import UsageError

__all__ = ["baseline", "ledger"]


@click.command()
@click.argument("file", type=Path, default=None, required=False)
@as_json
def ledger(file: Path | None, as_json: bool) -> int:
    """Show the entries of a ledger [corpus/ledger.toml] that hold today, and those that do not.

    Exit code 1 where an entry has ended or cannot be read.
    """
    from fuzzgraph.ledger import load_ledger
    from fuzzgraph.policy import DEFAULT_LEDGER

    found = load_ledger(file or DEFAULT_LEDGER, datetime.now(timezone.utc).date())
    code = 1 if found.bad_lines else 0
    if as_json:
        say_json(
            {
                "tolerated": found.tolerated,
                "quarantined": found.quarantined,
                "bad": found.bad_lines,
                "exit_code": code,
            }
        )
        return code
    for word, entries in (("tolerated", found.tolerated), ("quarantined", found.quarantined)):
        for entry in entries:
            click.echo(f"{word:<12}until {entry.expires}  {entry.name}")
    for line in found.bad_lines:
        click.echo(f"left out: {line}", err=True)
    click.echo(f"{len(found.tolerated)} tolerated, {len(found.quarantined)} quarantined")
    return code


@click.command()
@click.argument("runs", metavar="DIR...", type=Path, nargs=-1, required=True)
@click.option("--out", type=Path, required=True, help="File to write, or to add to.")
@click.option("--fresh", is_flag=True, help="Forget what the file holds: only these runs count.")
@as_json
def baseline(runs: tuple[Path, ...], out: Path, fresh: bool, as_json: bool) -> int:
    """Write the findings of runs down as known, for --baseline and --only-new."""
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
