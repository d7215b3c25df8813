"""`fuzzgraph settings`: what the project's file says."""

from __future__ import annotations

import click

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.errors import UsageError
from fuzzgraph.run.settings_file import FILE, Settings, find_settings
from fuzzgraph.run.spec import OPTIONS
from fuzzgraph.text.escaping import visible


@click.command()
@click.option("--source", metavar="DIR", help="Folder of the tree.  [default: the current one]")
@click.option("--targets", is_flag=True, help="Only the names of targets, one a line.")
@as_json
def settings(source: str | None, targets: bool, as_json: bool) -> int:
    """Show what fuzzgraph.toml or pyproject.toml says."""
    found = find_settings(source or "")
    if as_json:
        say_json(_record(found))
    elif targets:
        _say_targets(found, source or ".")
    elif found is None:
        click.echo(f"no {FILE} and no [tool.fuzzgraph]: every option has its default")
    else:
        _say(found)
    return 0


def _record(found: Settings | None) -> dict[str, object]:
    if found is None:
        return {"path": "", "options": {}, "targets": []}
    return {"path": str(found.path), "options": _options(found), "targets": found.targets}


def _options(found: Settings) -> dict[str, object]:
    """Options under the names that they have in the file."""
    return {row.word: found.given[row.name] for row in OPTIONS if row.name in found.given}


def _say(found: Settings) -> None:
    click.echo(visible(found.words))
    for row in OPTIONS:
        if row.name in found.given:
            click.echo(visible(f"  {row.word} = {row.typed(found.given[row.name])}"))
    if found.targets:
        click.echo(visible(f"  targets = {' '.join(found.targets)}"))


def _say_targets(found: Settings | None, folder: str) -> None:
    """For a loop of a shell, in which no name is a mistake and not a reason to run nothing."""
    if found is None or not found.targets:
        where = str(found.path) if found else f"{folder} has no {FILE}, which"
        raise UsageError(f'{where} names no targets. Write targets = ["..."] in it.')
    for name in found.targets:
        click.echo(visible(name))
