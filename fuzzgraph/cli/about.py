"""`fuzzgraph releases`, `doctor` and `schema`: what there is, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fuzzgraph.cli.options import as_json, say_json


@click.group()
def releases() -> None:
    """Released engines, unpacked side by side in a cache."""


@releases.command("list")
@as_json
def list_(as_json: bool) -> int:
    """Show the releases that are there."""
    from fuzzgraph import releases as store

    found = store.installed()
    if as_json:
        say_json({"cache": str(store.cache_folder()), "releases": [_record(one) for one in found]})
        return 0
    for one in found:
        click.echo(f"{one.package}=={one.version}  {one.path}")
    click.echo(f"{len(found)} releases in {store.cache_folder()}")
    return 0


def _record(release: Any) -> dict[str, str]:
    return {"package": release.package, "version": release.version, "path": str(release.path)}


@releases.command()
@click.argument("requirements", metavar="PACKAGE==VERSION...", nargs=-1, required=True)
@as_json
def fetch(requirements: tuple[str, ...], as_json: bool) -> int:
    """Fetch and unpack releases; one already there is left alone."""
    from fuzzgraph import releases as store

    wanted = [store.parse(requirement) for requirement in requirements]
    paths = []
    for package, version in wanted:
        paths.append(str(store.ensure(package, version)))
        if not as_json:
            click.echo(f"{package}=={version}  {paths[-1]}")
    if as_json:
        say_json({"cache": str(store.cache_folder()), "paths": paths})
    return 0


@click.command()
@click.argument("of", metavar="[case|event|summary]", default="case")
@as_json
def schema(of: str, as_json: bool) -> int:
    """Print the JSON schema of a case, an event or a summary."""
    import msgspec

    from fuzzgraph.case import case_schema
    from fuzzgraph.errors import UsageError
    from fuzzgraph.run.events import Event, RunSummary

    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "case": case_schema,
        "event": lambda: msgspec.json.schema(Event),
        "summary": lambda: msgspec.json.schema(RunSummary),
    }
    if of not in makers:
        raise UsageError(f"schema={of!r} is unknown. Use one of: {', '.join(makers)}.")
    say_json(makers[of]())
    return 0


@click.command()
@as_json
def doctor(as_json: bool) -> int:
    """Say what this machine offers and what is missing."""
    from fuzzgraph.cli.doctor import examine, readable

    checks = examine()
    if as_json:
        say_json({"checks": checks, "exit_code": 0})
    else:
        click.echo(readable(checks))
    return 0
