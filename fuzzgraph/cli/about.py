"""`fuzzgraph targets`, `releases`, `doctor` and `schema`: what there is, and what is missing."""

from __future__ import annotations

import click

from fuzzgraph.cli.options import as_json, say_json

__all__ = ["doctor", "schema"]


@click.command()
@as_json
def schema(as_json: bool) -> int:
    """Print the JSON schema of a case file."""
    from fuzzgraph.case import case_schema

    say_json(case_schema())
    return 0


@click.command()
@as_json
def doctor(as_json: bool) -> int:
    """Say what this machine offers, what is missing, and how to get it."""
    from fuzzgraph.cli.doctor import examine, readable

    checks = examine()
    if as_json:
        say_json({"checks": checks, "exit_code": 0})
    else:
        click.echo(readable(checks))
    return 0
