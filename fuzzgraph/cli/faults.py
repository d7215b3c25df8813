"""`fuzzgraph faults`: the planted faults, and how soon each is found."""

from __future__ import annotations

import click

from fuzzgraph.cli.options import as_json, say_json
from fuzzgraph.errors import UsageError

__all__ = ["faults"]


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Print one name a line and stop.")
@as_json
def faults(names: tuple[str, ...], only_list: bool, as_json: bool) -> int:
    """Score the fuzzer over its planted faults, all or those named.

    Exit code 1 says that a fault was not found, or that the healthy engine was accused.
    """
    from fuzzgraph import faults as planted

    known = list(planted.FAULTS)
    _refuse_unknown(names, known)
    chosen = [name for name in known if not names or name in names]
    if only_list:
        _list(chosen, as_json=as_json)
        return 0
    raise NotImplementedError


def _refuse_unknown(names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(
                f"fault={name!r} is unknown. 'fuzzgraph faults --list' prints the {len(known)} "
                "names."
            )


def _list(names: list[str], *, as_json: bool) -> None:
    if as_json:
        say_json({"faults": names})
        return
    for name in names:
        click.echo(name)
