"""`fuzzgraph ledger`: which tolerated and quarantined entries hold today."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import click

from fuzzgraph.cli.options import as_json, say_json


@click.command()
@click.argument("file", type=Path, default=None, required=False)
@as_json
def ledger(file: Path | None, as_json: bool) -> int:
    """Show which entries of a ledger hold today.

    FILE is corpus/ledger.toml unless another one is named.

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
